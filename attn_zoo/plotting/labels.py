"""Placement of labels beside points, so that labels do not cover each other."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from attn_zoo.plotting.theme import MUTED

Box = tuple[float, float, float, float]
"""Left, bottom, right and top edge of a box, in pixels."""
Leader = tuple[tuple[float, float], tuple[float, float]]
"""Ends of a leader line from a marker to its label, in pixels."""
_DISTANCES = (7.0, 14.0, 20.0, 27.0, 36.0, 46.0, 58.0, 72.0, 90.0, 110.0)
"""Distances between a marker and its label, in points; the nearest free one is used."""
_DIRECTIONS = (
    *((1.0, 0.0), (-1.0, 0.0), (0.7, 0.7), (0.7, -0.7), (-0.7, 0.7), (-0.7, -0.7), (0.0, 1.0), (0.0, -1.0)),
    *((0.9, 0.4), (0.9, -0.4), (-0.9, 0.4), (-0.9, -0.4), (0.4, 0.9), (0.4, -0.9), (-0.4, 0.9), (-0.4, -0.9)),
)
_LEADER = 10.0
"""Distance in points beyond which a leader line joins a label to its marker."""


def beside_points(
    figure: Any,
    axes: Any,
    points: Sequence[tuple[float, float]],
    names: Sequence[str],
    taken: Sequence[Box] = (),
    avoided: Sequence[Box] = (),
) -> list[Any]:
    """Write each name next to its point in a plot, so that it covers no marker, no other name and no box of ``taken``.

    Names for which there is no free place nearby are left out.

    Args:
        points: positions of the points in data coordinates.
        names: name of each point.
        taken: boxes that no name may cover.
        avoided: boxes that a name covers only if no other place is free.

    Returns:
        The written annotations in the order of ``points``.
    """
    pixel = figure.dpi / 72
    places = [tuple(axes.transData.transform(point)) for point in points]
    blocked = [*taken, *((x - 4 * pixel, y - 4 * pixel, x + 4 * pixel, y + 4 * pixel) for x, y in places)]
    frame = axes.get_window_extent()
    written: list[Any] = []
    boxes: list[Box] = []
    leaders: list[Leader] = []
    for point, place, name in zip(points, places, names, strict=True):
        note = axes.annotate(name, point, xytext=(0, 0), textcoords="offset points", fontsize=8)
        note.set_in_layout(False)
        extent = note.get_window_extent()
        size = (extent.width, extent.height)
        found = _free_place(place, size, [*blocked, *avoided], boxes, leaders, frame, pixel)
        found = found or _free_place(place, size, blocked, boxes, leaders, frame, pixel)
        if found is None:
            note.remove()
            continue
        box, leader = found
        blocked.append(box)
        boxes.append(box)
        note.set_position(((box[0] - place[0]) / pixel, (box[1] - place[1]) / pixel))
        note.set_verticalalignment("bottom")
        if leader:
            leaders.append(leader)
            (x0, y0), (x1, y1) = axes.transData.inverted().transform(leader)
            axes.plot([x0, x1], [y0, y1], color=MUTED, linewidth=0.6, zorder=1.5)
        written.append(note)
    return written


def _free_place(
    place: tuple[float, float],
    size: tuple[float, float],
    blocked: Sequence[Box],
    names: Sequence[Box],
    leaders: Sequence[Leader],
    frame: Any,
    pixel: float,
) -> tuple[Box, Leader | None] | None:
    """Return the nearest free box for a label, or None. The label gets a leader line if it is more than ``_LEADER`` points away."""
    width, height = size
    for distance, (right, up) in itertools.product(_DISTANCES, _DIRECTIONS):
        centre_x = place[0] + right * (distance * pixel + width / 2 if abs(right) == 1 else distance * pixel)
        left = centre_x - width / 2 if abs(right) in (0.0, 1.0) else centre_x - (width if right < 0 else 0)
        bottom = place[1] + up * (distance * pixel + height / 2) - height / 2
        box = (left, bottom, left + width, bottom + height)
        inside = box[0] >= frame.x0 and box[2] <= frame.x1 and box[1] >= frame.y0 and box[3] <= frame.y1
        if not inside or any(overlap(box, other) for other in blocked) or any(_crosses(line, box) for line in leaders):
            continue
        if distance <= _LEADER:
            return box, None
        line = (place, (min(max(place[0], box[0]), box[2]), min(max(place[1], box[1]), box[3])))
        if not any(_crosses(line, name) for name in names) and not any(_meet(line, other) for other in leaders):
            return box, line
    return None


def overlap(one: Box, other: Box) -> bool:
    """Return True if two boxes share an area."""
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]


def _crosses(line: Leader, box: Box) -> bool:
    """Return True if a line runs through a box. The test uses steps smaller than the height of a label."""
    (x0, y0), (x1, y1) = line
    steps = max(2, int(max(abs(x1 - x0), abs(y1 - y0)) / 4))
    points = [(x0 + (x1 - x0) * at / steps, y0 + (y1 - y0) * at / steps) for at in range(steps + 1)]
    return any(box[0] < x < box[2] and box[1] < y < box[3] for x, y in points)


def _meet(one: Leader, other: Leader) -> bool:
    """Return True if two lines cross."""

    def side(line: Leader, point: tuple[float, float]) -> bool:
        (x0, y0), (x1, y1) = line
        return (x1 - x0) * (point[1] - y0) > (y1 - y0) * (point[0] - x0)

    return side(one, other[0]) != side(one, other[1]) and side(other, one[0]) != side(other, one[1])
