"""Pictures of ``docs/reports/length-and-state.md``: recall against state, and scores against length."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from axes_tables import LENGTHS, PAIRS, WIDTHS, Recall, in_pairs

from attn_zoo.grouping import grouped
from attn_zoo.leaderboard import Row, Table
from attn_zoo.leaderboard.compare import BASELINE
from attn_zoo.plotting.theme import INK, MARKERS, MUTED, SERIES, hover, save, settings

FEWER = PAIRS[0] / 2
"""Height at which rows are drawn that recall fewer pairs than were tested."""
_SIZES = dict(zip(WIDTHS, (4.0, 6.0, 8.5), strict=True))
"""Size of a marker by the width of the network."""


def plot_capacity(found: Sequence[Recall], *paths: Path) -> list[Path]:
    """Draw the number of recalled pairs against the bytes of state, a colour and a marker for each mechanism."""
    import matplotlib
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter, NullLocator

    looks = _looks([cell.row for cell in found])
    hollow: dict[str, Any] = {"markerfacecolor": "none", "markeredgewidth": 1.4}  # of equal points, both are seen
    with matplotlib.rc_context(settings("capacity")):
        figure = Figure(figsize=(8.0, 4.4), layout="constrained")
        axes = figure.add_subplot()
        axes.set_xscale("log", base=2)
        axes.set_yscale("log", base=2)
        for (name, width), cells in grouped(((cell.row.attention, cell.width), cell) for cell in found if cell.state).items():
            ordered = sorted(cells, key=lambda cell: cell.state)
            heights = [cell.pairs or FEWER for cell in ordered]
            axes.plot([cell.state for cell in ordered], heights, color=looks[name]["color"], linestyle=looks[name].get("linestyle"))
            for cell, height in zip(ordered, heights, strict=True):
                (point,) = axes.plot(cell.state, height, markersize=_SIZES[width], label=name, **hollow, **looks[name])
                hover(point, f"{cell.name}, width {width}: {in_pairs(cell.pairs)} pairs")
        axes.set_yticks([FEWER, *PAIRS], [in_pairs(0), *map(str, PAIRS)])
        axes.yaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_major_formatter(FuncFormatter(lambda count, _: f"{count / 1024:g}"))
        axes.set_ylim(FEWER / 1.2, PAIRS[-1] * 1.2)
        axes.set_xlabel(f"state of one sequence (KiB); larger markers: network of width {', '.join(map(str, WIDTHS))}")
        axes.set_ylabel("pairs recalled at 90 %")
        axes.grid()
        _legend(figure, axes)
        return save(figure, *paths)


def plot_length(found: Mapping[int, Mapping[str, tuple[Row, Table]]], *paths: Path) -> list[Path]:
    """Draw the test score against the length, with intervals, a line for each mechanism."""
    import matplotlib
    from matplotlib.figure import Figure
    from matplotlib.ticker import NullLocator

    looks = _looks([row for rows in found.values() for row, _ in rows.values()])
    with matplotlib.rc_context(settings("length")):
        figure = Figure(figsize=(8.0, 4.0), layout="constrained")
        axes = figure.add_subplot()
        axes.set_xscale("log", base=2)
        for name, look in looks.items():
            tests = {n: found[n][name][0].test for n in LENGTHS if name in found.get(n, {})}
            means = {n: test.mean for n, test in tests.items() if test is not None}
            ends = [(test.mean - test.low, test.high - test.mean) for test in tests.values() if test is not None]
            bars = [[100 * end[side] for end in ends] for side in (0, 1)]
            axes.errorbar(list(means), [100 * mean for mean in means.values()], yerr=bars, capsize=2, label=name, **look)
        axes.set_xticks(LENGTHS, [f"{n:,}" for n in LENGTHS])
        axes.xaxis.set_minor_locator(NullLocator())
        axes.set_ylim(-3, 103)
        axes.set_xlabel("length (tokens)")
        axes.set_ylabel("test accuracy (%)")
        axes.grid()
        _legend(figure, axes)
        return save(figure, *paths)


def _looks(rows: Sequence[Row]) -> dict[str, dict[str, Any]]:
    """Return the look of each mechanism: softmax a black star, controls grey, all others a colour and a marker."""
    controls = {row.attention for row in rows if row.control}
    names = [name for name in dict.fromkeys(row.attention for row in rows) if name not in {BASELINE, *controls}]
    found: dict[str, dict[str, Any]] = (
        {BASELINE: {"color": INK, "marker": "*"}} if any(r.attention == BASELINE for r in rows) else {}
    )
    for at, name in enumerate(names):
        turn = at // len(SERIES)
        found[name] = {"color": SERIES[at % len(SERIES)], "marker": MARKERS[(at + turn) % len(MARKERS)]}
        found[name] |= {"linestyle": (0, (4, 1.5))} if turn else {"linestyle": "-"}
    shapes = ("x", "+", "1", "2")
    return found | {name: {"color": MUTED, "marker": shapes[at % 4]} for at, name in enumerate(sorted(controls))}


def _legend(figure: Any, axes: Any) -> None:
    """Name each mechanism once, beside the panel; its markers have the middle size."""
    named = dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True))
    figure.legend(named.values(), named.keys(), loc="outside right upper")
