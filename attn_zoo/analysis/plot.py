"""Plot of singular values as in Figure 1 of the Linformer paper: curves for each layer, and a heat map over layers and heads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from attn_zoo.analysis.spectrum import Spectrum
from attn_zoo.plotting.theme import INK, MUTED, save, settings

_ANNOTATED_CELLS = 240
"""Values are printed in a heat map with at most this number of cells."""
_ON_DARK = "#fefefe"
"""Colour of numbers on dark cells. It is not exactly the white of ``PAPER``, because dark pages replace the colour ``PAPER``."""
_LEGEND_LAYERS = 8
"""Layers are named in a legend if there are at most this many. Otherwise there is a colour bar."""


def plot_spectrum(spectrum: Spectrum, index: int, folder: Path, *, title: str, log_index: bool = False) -> list[Path]:
    """Draw cumulative singular values of attention matrices into ``folder`` as spectrum.png and spectrum.svg, and return both
    paths. The left plot has one curve per layer, and the right plot is a heat map of all heads.

    Args:
        spectrum: cumulative singular values of every head, averaged over sequences.
        index: number k for the heat map, which shows the sum of the k largest singular values as a share of the sum of all.
        title: title of one or two lines.
        log_index: True for a logarithmic x-axis in the left plot, which spreads out the largest singular values.

    Raises:
        ValueError: ``index`` is not from 1 to the number of singular values.
    """
    import matplotlib
    from matplotlib.figure import Figure

    layers, heads, _ = spectrum.mean.shape
    height = max(4.6, 2.0 + 0.26 * layers)
    with matplotlib.rc_context(settings("spectrum")):
        figure = Figure(figsize=(6.0 + max(5.2, 1.6 + 0.42 * heads), height), layout="constrained")
        figure.suptitle(title, fontsize=8.5, color=MUTED, x=0.012, ha="left")
        left, right = figure.subplots(1, 2, width_ratios=[6.0, max(5.2, 1.6 + 0.42 * heads)])
        _curves(figure, left, spectrum, index, log_index)
        _heat_map(figure, right, spectrum, index)
        return save(figure, folder / "spectrum.png", folder / "spectrum.svg")


def _curves(figure: Any, axes: Any, spectrum: Spectrum, index: int, log_index: bool) -> None:
    import matplotlib

    layers, _, rank = spectrum.mean.shape
    counts = range(1, rank + 1)
    # Viridis is readable with colour blindness and in grey. Its ends are cut: too dark on a black page, too pale on a white one.
    named = layers <= _LEGEND_LAYERS
    shades = [matplotlib.colormaps["viridis"](0.25 + 0.57 * at / 255) for at in range(256)]
    colour_map = matplotlib.colors.ListedColormap(shades)
    for layer in range(layers):
        colour = colour_map(layer / max(1, layers - 1))
        axes.plot(
            counts,
            spectrum.mean[layer].mean(dim=0).tolist(),
            color=colour,
            linewidth=1.6,
            label=f"layer {layer}" if named else None,
        )
    flat = [k / rank for k in counts]
    axes.plot(counts, flat, color=MUTED, linewidth=1.2, linestyle=(0, (4, 3)), label="all equal (k / n)")
    axes.axvline(index, color=INK, linewidth=0.9, linestyle=":")
    side = {"xytext": (4, 4), "ha": "left"} if index < rank / 2 else {"xytext": (-4, 4), "ha": "right"}
    axes.annotate(f"k = {index}", (index, 0.0), textcoords="offset points", color=INK, **side)
    if log_index:
        axes.set_xscale("log")
    axes.set(xlim=(1, rank), ylim=(0, 1.01), xlabel="largest singular values counted, k", ylabel="share of the sum of all")
    axes.set_title("Cumulative singular values of P, mean over heads", fontsize=10, loc="left")
    axes.grid()
    axes.legend(loc="best" if log_index else "lower right")
    if named:
        return
    scale = matplotlib.cm.ScalarMappable(matplotlib.colors.Normalize(0, layers - 1), colour_map)
    bar = figure.colorbar(scale, ax=axes, label="layer", boundaries=[layer - 0.5 for layer in range(layers + 1)])
    bar.set_ticks(range(0, layers, max(1, layers // 8)))


def _heat_map(figure: Any, axes: Any, spectrum: Spectrum, index: int) -> None:
    values = spectrum.at(index)
    layers, heads = values.shape
    low, high = float(values.min()), float(values.max())
    picture = axes.imshow(values.tolist(), cmap="viridis", aspect="auto", vmin=low, vmax=high)
    figure.colorbar(picture, ax=axes, label=f"share at k = {index}")
    axes.set(xlabel="head", ylabel="layer (0 is the first)")
    axes.set_xticks(range(0, heads, max(1, heads // 16)))
    axes.set_yticks(range(0, layers, max(1, layers // 24)))
    axes.spines[:].set_visible(False)
    axes.set_title(f"Share held by the {index} largest of {spectrum.rank}", fontsize=10, loc="left")
    if layers * heads > _ANNOTATED_CELLS:
        return
    for layer in range(layers):
        for head in range(heads):
            value = float(values[layer, head])
            text_colour = "black" if value > (low + high) / 2 else _ON_DARK
            axes.text(head, layer, f"{value:.2f}".removeprefix("0"), ha="center", va="center", color=text_colour, fontsize=7.5)
