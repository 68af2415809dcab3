"""Picture of Figure 3: validation perplexity over training steps, with up to four panels for each arm."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from attn_zoo.plotting.theme import INK, MUTED, SERIES, hover, save, settings
from attn_zoo.terminal import short
from figure3.cells import Arm, Cell, Figure
from figure3.claims import CONTROLS

_WIDTH, _ROW, _PANELS = 13.0, 3.5, 4
"""Width of the figure in inches, height of a row of panels in inches, and number of panels per row."""
_DASHES: Sequence[Any] = ("-", (0, (6, 1.6)), (0, (3, 1.2)), (0, (1, 1.2)), (0, (5, 1.2, 1, 1.2)))
_BESIDE: Mapping[str, Any] = {"none": (0, (1, 1.2)), "convolution": (0, (5, 2))}
Line = tuple[Cell, str]


def plot_figure3(figure: Figure, *paths: Path) -> list[Path]:
    """Draw the mean and the interval over seeds of each curve, write the picture to each path, and return the paths.

    Raises:
        ValueError: no cell is recorded.
        OSError: a path cannot be written.
    """
    import matplotlib
    from matplotlib.figure import Figure as Canvas

    if not figure.cells:
        raise ValueError(
            "there is nothing to draw, because no masked language model is recorded. Make records with attn-zoo run -m "
            "experiment=linformer_figure3_cpu"
        )
    drawn = [
        (f"({letter}) {title}\n{arm.name.replace(', ', chr(10), 1)}", lines)
        for arm in figure.arms
        for letter, (title, lines) in zip("abcd", panels(figure, arm), strict=True)
        if lines
    ]
    rows = -(-len(drawn) // _PANELS)
    with matplotlib.rc_context(settings("figure3")):
        canvas = Canvas(figsize=(_WIDTH, 0.5 + _ROW * rows), layout="constrained")
        canvas.suptitle("Validation perplexity over training steps (Linformer, Figure 3)", x=0.01, ha="left", fontweight="bold")
        for at, (title, lines) in enumerate(drawn):
            axes = canvas.add_subplot(rows, _PANELS, at + 1)
            _draw(axes, figure, lines)
            axes.set_title(title, fontsize=9, loc="left")
            if at % _PANELS == 0:
                axes.set_ylabel("validation perplexity")
        return save(canvas, *paths)


def panels(figure: Figure, arm: Arm) -> list[tuple[str, list[Line]]]:
    """Return, for each panel a to d in one arm (setting of convolution and initialisation), its title and its curves. A curve is a
    pair of a cell and its name. A panel without a comparison has no curves."""
    found: list[tuple[str, list[Line]]] = []
    lengths = list(figure.by_length(arm).items())[-2:]
    for length, cells in [*lengths, *[(0, [])] * (2 - len(lengths))]:
        beside = [(Cell(Arm(arm.convolution), length, name), name) for name in ("softmax", *CONTROLS)]
        lines = [*beside[:1], *((cell, f"k = {cell.k}") for cell in cells), *beside[1:]]
        found.append((f"n = {length:,}", [line for line in lines if line[0] in figure.cells]))
    shared, fixed = figure.by_sharing(arm), figure.by_fixed_k(arm)
    title = f"sharing, n = {shared[0].length:,}, k = {shared[0].k}" if shared else ""
    found.append((title, [(cell, "no sharing" if cell.sharing == "none" else cell.sharing.replace("_", "-")) for cell in shared]))
    title = f"k = {fixed[0].k}" if fixed else ""
    found.append((title, [(cell, f"n = {cell.length:,}") for cell in fixed]))
    return found


def _draw(axes: Any, figure: Figure, lines: Sequence[Line]) -> None:
    """Draw curves, softmax in ink and controls in grey; colours and dashes tell the others apart."""
    others = [cell for cell, _ in lines if cell.k]
    for cell, name in lines:
        colour, dash = (INK if cell.attention == "softmax" else MUTED, _BESIDE.get(cell.attention, "-"))
        if cell.k:
            at = others.index(cell)
            colour, dash = SERIES[at % len(SERIES)], _DASHES[at % len(_DASHES)]
        points = figure.cells[cell].curve()
        steps, means = [step for step, _ in points], [value.mean for _, value in points]
        (drawn,) = axes.plot(steps, means, color=colour, linestyle=dash, linewidth=1.6, label=name)
        hover(drawn, f"{cell.label}, n = {cell.length}")
        lows, highs = [max(1.0, value.low) for _, value in points], [value.high for _, value in points]
        axes.fill_between(steps, lows, highs, color=colour, alpha=0.13, linewidth=0)
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(short)
    axes.yaxis.set_minor_formatter(short)
    axes.xaxis.set_major_formatter(short)
    axes.tick_params(which="both", labelsize=8)
    axes.set_xlabel("steps")
    axes.grid(which="both")
    axes.legend(labelcolor=MUTED, fontsize=8, labelspacing=0.25, ncols=1 + len(lines) // 6, columnspacing=1.0)
