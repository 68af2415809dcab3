"""Pictures of ``attn-zoo analyze``. Each function writes NAME.png and NAME.svg into a folder, and returns both paths."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from jaxtyping import Float
from torch import Tensor

from attn_zoo.analysis.projections import KINDS
from attn_zoo.analysis.spectrum import Spectrum
from attn_zoo.grouping import grouped
from attn_zoo.plotting.theme import GRID, INK, MARKERS, MUTED, PAPER, SERIES, hover, save, settings
from attn_zoo.terminal import short

_ANNOTATED_CELLS = 240
"""Values are printed in a heat map with at most this number of cells."""
_ON_DARK = "#fefefe"
"""Colour of numbers on dark cells. It is not exactly the white of ``PAPER``, because dark pages replace the colour ``PAPER``."""
_EXACT = 1e-9
"""A mechanism with at most this error counts as exact, because float64 rounding can cause it."""
_NAMED = 24
"""Greatest number of lines with a colour and a marker of their own; others are grey."""
_TICKS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 1, 1.5, 2, 3, 5, 7, 10, 20, 50, 100)

Row = Mapping[str, Any]
"""Row of the result of ``attn-zoo analyze error``."""


@contextmanager
def _figure(name: str, size: tuple[float, float], **how: Any) -> Iterator[Any]:
    """Return a context with the settings of the theme and an empty figure."""
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(settings(name)):
        yield Figure(figsize=size, **how)


def plot_spectrum(spectrum: Spectrum, folder: Path, *, title: str) -> list[Path]:
    """Draw singular values as in Figure 1 of the Linformer paper. The left plot has one curve per layer, and the right plot is a
    heat map of all heads.

    Args:
        spectrum: cumulative singular values of every head.
        title: title of one or two lines.
    """
    layers, heads, _ = spectrum.mean.shape
    width = max(5.2, 1.6 + 0.42 * heads)
    with _figure("spectrum", (6.0 + width, max(4.6, 2.0 + 0.26 * layers)), layout="constrained") as figure:
        figure.suptitle(title, fontsize=8.5, color=MUTED, x=0.012, ha="left")
        left, right = figure.subplots(1, 2, width_ratios=[6.0, width])
        _curves(left, spectrum)
        _heat_map(figure, right, spectrum)
        return save(figure, folder / "spectrum.png", folder / "spectrum.svg")


def _curves(axes: Any, spectrum: Spectrum) -> None:
    import matplotlib

    layers, _, rank = spectrum.mean.shape
    index, counts = spectrum.index, range(1, rank + 1)
    # Viridis is readable with colour blindness and in grey. Its ends are cut: too dark on a black page, too pale on a white one.
    colours = matplotlib.colors.ListedColormap([matplotlib.colormaps["viridis"](0.25 + 0.57 * at / 255) for at in range(256)])
    for layer, heads in enumerate(spectrum.mean):
        style = {"color": colours(layer / max(1, layers - 1)), "linewidth": 1.6, "label": f"layer {layer}"}
        axes.plot(counts, heads.mean(dim=0).tolist(), **style)
    flat = [k / rank for k in counts]
    axes.plot(counts, flat, color=MUTED, linewidth=1.2, linestyle=(0, (4, 3)), label="all equal (k / n)")
    axes.axvline(index, color=INK, linewidth=0.9, linestyle=":")
    axes.annotate(f"k = {index}", (index, 0.0), textcoords="offset points", xytext=(4, 4), ha="left", color=INK)
    axes.set(xlim=(1, rank), ylim=(0, 1.01), xlabel="largest singular values counted, k", ylabel="share of the sum of all")
    axes.set_title("Cumulative singular values of P, mean over heads", fontsize=10, loc="left")
    axes.grid()
    axes.legend(loc="lower right", ncols=1 + layers // 9)


def _heat_map(figure: Any, axes: Any, spectrum: Spectrum) -> None:
    values = spectrum.at(spectrum.index)
    layers, heads = values.shape
    low, high = float(values.min()), float(values.max())
    picture = axes.imshow(values.tolist(), cmap="viridis", aspect="auto", vmin=low, vmax=high)
    figure.colorbar(picture, ax=axes, label=f"share at k = {spectrum.index}")
    axes.set(xlabel="head", ylabel="layer (0 is the first)")
    axes.set_xticks(range(0, heads, max(1, heads // 16)))
    axes.set_yticks(range(0, layers, max(1, layers // 24)))
    axes.spines[:].set_visible(False)
    axes.set_title(f"Share held by the {spectrum.index} largest of {spectrum.rank}", fontsize=10, loc="left")
    if layers * heads > _ANNOTATED_CELLS:
        return
    for (layer, head), value in [((layer, head), float(values[layer, head])) for layer in range(layers) for head in range(heads)]:
        colour = "black" if value > (low + high) / 2 else _ON_DARK
        axes.text(head, layer, f"{value:.2f}".removeprefix("0"), ha="center", va="center", color=colour, fontsize=7.5)


def plot_projections(found: Mapping[str, Any], folder: Path) -> list[Path]:
    """Draw the result of ``attn-zoo analyze projections``: the error of Linformer's attention against the projected length, with
    one panel per model."""
    from matplotlib.ticker import FixedLocator, LogLocator, NullFormatter, NullLocator, ScalarFormatter

    models = found["models"]
    with _figure("projections", (max(5.5, 3.3 * len(models)), 4.2), layout="constrained") as figure:
        panels = figure.subplots(1, len(models), sharey=True, squeeze=False)[0]
        for panel, model in zip(panels, models, strict=True):
            k = model["k"]
            for (kind, name), colour, mark in zip(KINDS.items(), SERIES[:5], ("o", "s", "^", "D", "v"), strict=True):
                panel.plot(k, model["error"][kind], label=name, color=colour, marker=mark, markersize=4, linewidth=1.4)
            shape = [model["error"]["theorem"][0] * (length / k[0]) ** -0.5 for length in k]
            panel.plot(k, shape, color=MUTED, linestyle=(0, (4, 3)), label="shape of the bound, 1 / √k")
            panel.axhline(model["uniform"], color=MUTED, linestyle=":", linewidth=1.2, label="average of all values")
            panel.set(xscale="log", yscale="log", xlabel=f"projected length k, of n = {model['length']}")
            panel.xaxis.set_major_locator(FixedLocator(k))
            panel.xaxis.set_minor_locator(NullLocator())
            panel.set_xticks(k, [str(length) for length in k])
            panel.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            panel.yaxis.set_major_formatter(ScalarFormatter())
            panel.yaxis.set_minor_formatter(NullFormatter())
            panel.set_title(f"{model['model']}\n{model['weights']}", fontsize=9, loc="left")
            panel.grid()
        panels[0].set_ylabel("relative error of the output")
        figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=4, fontsize=8)
        return save(figure, folder / "projections.png", folder / "projections.svg")


def plot_matrix(
    effective: Float[Tensor, "queries keys"], exact: Float[Tensor, "queries keys"], folder: Path, *, name: str, title: str
) -> list[Path]:
    """Draw the effective attention matrix of a mechanism, softmax's attention matrix, and their difference, on one colour scale.

    The scale is linear up to 1 / keys, the weight of a uniform average, and logarithmic above, because a few entries near 1 would
    hide all others on a linear scale.

    Args:
        name: name of the mechanism.
        title: description of the inputs.
    """
    from matplotlib.colors import SymLogNorm

    keys = exact.shape[-1]
    panels = {"exact softmax P": exact, f"effective matrix A of {name}": effective, "difference A − P": effective - exact}
    most = max(float(matrix.abs().max()) for matrix in panels.values())
    scale = SymLogNorm(linthresh=1 / keys, linscale=1.0, vmin=-most, vmax=most, base=10)
    with _figure("matrix", (12.6, 4.6), layout="constrained") as figure:
        figure.suptitle(title, fontsize=8.5, color=MUTED, x=0.005, y=0.995, ha="left", va="top")
        grid = figure.subplots(1, len(panels))
        for axes, (words, matrix) in zip(grid, panels.items(), strict=True):
            # No interpolation, which would draw weights that do not exist.
            picture = axes.imshow(matrix.numpy(), cmap="RdBu_r", norm=scale, interpolation="nearest", aspect="auto")
            axes.set_title(words, fontsize=10)
            axes.set(xlabel="key")
            axes.set_box_aspect(matrix.shape[0] / matrix.shape[1])
            axes.spines[:].set_visible(True)
        grid[0].set_ylabel("query")
        positive = [1 / keys, *(10.0**power for power in range(-6, 7) if 1.5 / keys < 10.0**power <= most)]
        ticks = [*(-tick for tick in reversed(positive)), 0.0, *positive]
        bar = figure.colorbar(picture, ax=grid, pad=0.01, ticks=ticks)
        bar.set_label(f"weight: linear up to 1/{keys} (uniform), logarithmic beyond", fontsize=8)
        bar.ax.set_yticklabels([f"{tick:.3g}" for tick in ticks])
        bar.ax.minorticks_off()
        return save(figure, folder / "matrix.png", folder / "matrix.svg")


def plot_error(found: Mapping[str, Any], folder: Path, *, title: str) -> list[Path]:
    """Draw the result of ``attn-zoo analyze error``: errors against FLOPs, with lines for the cost of softmax and the error of a
    uniform average.

    Args:
        title: description of the inputs.
    """
    rows = [row for row in found["rows"] if row["attention"] != "softmax"]  # which has a reference line
    groups = grouped(((row["attention"], row["dial"]), row) for row in rows).values()
    lines = sorted(groups, key=lambda line: min(row["error"] for row in line))
    looks = _looks(lines)
    with _figure("error", (11.0, 6.6)) as figure:
        head = "How far from exact softmax attention, and at what cost"
        figure.text(0.012, 0.985, head, va="top", fontsize=12, fontweight="bold")
        figure.text(0.012, 0.95, title, va="top", fontsize=8.5, color=MUTED)
        axes = figure.add_axes((0.065, 0.08, 0.675, 0.82))
        zero, floor = _axes(axes, found, rows)
        for line, look in zip(lines, looks, strict=True):
            places = [(row["flops"] or zero, row["error"] if row["error"] > _EXACT else floor) for row in line]
            axes.plot(*zip(*places, strict=True), color=look[0], linewidth=1.3, alpha=0.75, zorder=2)
            for row, place in zip(line, places, strict=True):
                (point,) = axes.plot(*place, **_marker(row, look), zorder=3, clip_on=False)
                hover(point, f"{row['label']}: {row['error']:.3g}")
        _draw_references(axes, found)
        figure.legend(handles=_legend(lines, looks), loc="upper left", bbox_to_anchor=(0.745, 0.92), labelcolor=INK)
        return save(figure, folder / "error.png", folder / "error.svg")


def _looks(lines: Sequence[Sequence[Row]]) -> list[tuple[str, str]]:
    """Return the colour and marker of each line. Up to ``_NAMED`` lines have a look of their own: first lines with several rows,
    then those with the smallest errors. All other lines are grey."""
    order = sorted(range(len(lines)), key=lambda at: (lines[at][0]["control"], len(lines[at]) == 1))
    named = sorted(at for at in order[:_NAMED] if not lines[at][0]["control"])
    count = len(SERIES)
    found = {line: (SERIES[at % count], MARKERS[(at + at // count) % len(MARKERS)]) for at, line in enumerate(named)}
    return [found.get(at, (MUTED, "x" if line[0]["control"] else ".")) for at, line in enumerate(lines)]


def _axes(axes: Any, found: Mapping[str, Any], rows: Sequence[Row]) -> tuple[float, float]:
    """Set limits and ticks. Return the positions that stand for zero cost and zero error, which logarithmic axes lack."""
    from matplotlib.ticker import FixedLocator, NullLocator

    costs = [found["softmax"]["flops"], *(row["flops"] for row in rows if row["flops"])]
    errors = [found["uniform"], *(row["error"] for row in rows if row["error"] > _EXACT)]
    free, exact = any(not row["flops"] for row in rows), any(row["error"] <= _EXACT for row in rows)
    zero, floor = min(costs) / 2.2, min(errors) / (1.35 if exact else 1.12)
    low, high = floor / (1.06 if exact else 1.0), max(errors) * 1.25
    axes.set(xscale="log", yscale="log", xlim=((zero if free else min(costs)) / 1.5, max(costs) * 1.9), ylim=(low, high))
    heights = [tick for tick in _TICKS if low <= tick <= high]
    axes.yaxis.set_major_locator(FixedLocator(heights))
    axes.set_yticklabels([f"{tick:g}" for tick in heights])
    powers = range(math.floor(math.log10(min(costs))), math.ceil(math.log10(max(costs))) + 1)
    places = [digit * 10.0**power for power in powers for digit in (1, 2, 5)]
    places = [place for place in places if min(costs) / 1.2 <= place <= max(costs) * 1.9]
    axes.xaxis.set_major_locator(FixedLocator([zero] * free + places))
    axes.set_xticklabels([*["none"] * free, *map(short, places)])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_minor_locator(NullLocator())
    if free:
        axes.axvline(zero * 1.5, color=GRID, linewidth=1.2)
    axes.set_xlabel("FLOPs of one layer and one sequence, forward, matrix products only", fontsize=9)
    axes.set_ylabel("‖Y − Y_exact‖ / ‖Y_exact‖, mean over heads", fontsize=9)
    axes.grid(which="major", color=GRID, linewidth=0.6)
    return zero, floor


def _marker(row: Row, look: tuple[str, str]) -> dict[str, Any]:
    """Return the style of a point. Rows with untrained parameters have hollow markers."""
    colour, marker = look
    shape = "v" if row["error"] <= _EXACT else "o" if marker == "." else marker
    face, size = PAPER if "untrained" in row["notes"] else colour, 4.0 if marker == "." else 5.5
    return {"color": colour, "marker": shape, "markersize": size, "markerfacecolor": face, "markeredgewidth": 1.2}


def _draw_references(axes: Any, found: Mapping[str, Any]) -> None:
    cost, uniform = found["softmax"]["flops"], found["uniform"]
    axes.axvline(cost, color=INK, linewidth=1.4, zorder=1.5)
    axes.axhline(uniform, color=MUTED, linewidth=1.1, linestyle=(0, (4, 3)), zorder=1.5)
    small: dict[str, Any] = {"textcoords": "offset points", "fontsize": 8}
    top = {"xycoords": ("data", "axes fraction"), "xytext": (4, -3)}
    right = {"xycoords": ("axes fraction", "data"), "xytext": (0, 3)}
    axes.annotate("exact softmax", (cost, 1.0), va="top", ha="left", color=INK, **top, **small)
    axes.annotate(f"uniform average {uniform:.2f}", (1.0, uniform), ha="right", color=MUTED, **right, **small)


def _name(line: Sequence[Row]) -> str:
    """Return the name of a line, such as ``performer, features 16 to 256``."""
    dial = line[0]["dial"]
    if dial is None or len(line) == 1:
        return str(line[0]["label"])
    return f"{line[0]['attention']}, {dial} {line[0]['options'][dial]} to {line[-1]['options'][dial]}"


def _legend(lines: Sequence[Sequence[Row]], looks: Sequence[tuple[str, str]]) -> list[Any]:
    """Return the entries of the legend: lines with a look of their own, and what grey, hollow and other markers mean."""
    from matplotlib.lines import Line2D

    rows = [row for line in lines for row in line]
    named = [(line, look) for line, look in zip(lines, looks, strict=True) if look[0] != MUTED]
    found = [Line2D([], [], linewidth=1.3 * (len(line) > 1), label=_name(line), **_marker(line[0], look)) for line, look in named]
    mark: dict[str, Any] = {"linestyle": "none", "marker": "o", "markersize": 5.5, "color": MUTED}
    for shown, label, style in (
        ((MUTED, ".") in looks, "other mechanisms", {"markersize": 4.0}),
        ((MUTED, "x") in looks, "control", {"marker": "x"}),
        (any("untrained" in row["notes"] for row in rows), "hollow: untrained", {"markerfacecolor": PAPER}),
        (any(row["error"] <= _EXACT for row in rows), "exact to rounding", {"marker": "v"}),
        (any(not row["flops"] for row in rows), "none: no matrix product is made", {"marker": ""}),
    ):
        if shown:
            found.append(Line2D([], [], label=label, **{**mark, **style}))
    return found
