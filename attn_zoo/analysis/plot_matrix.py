"""Plot of the attention matrices of softmax and of a mechanism, and of their difference, on one colour scale."""

from __future__ import annotations

from pathlib import Path

from jaxtyping import Float
from torch import Tensor

from attn_zoo.plotting.theme import MUTED, save, settings

_SIZE = (12.6, 4.6)


def plot_matrix(
    effective: Float[Tensor, "queries keys"], exact: Float[Tensor, "queries keys"], folder: Path, *, name: str, title: str
) -> list[Path]:
    """Draw the effective attention matrix of a mechanism, softmax's attention matrix and their difference into ``folder`` as
    matrix.png and matrix.svg, and return both paths. The effective matrix is the matrix A for which A V is the output, where V are
    the values.

    The colour scale is linear up to 1 / keys, the weight of a uniform average, and logarithmic above, because a few entries near 1
    would hide all others on a linear scale.

    Args:
        exact: softmax's attention matrix.
        name: name of the mechanism.
        title: description of the inputs.
    """
    import matplotlib
    from matplotlib.colors import SymLogNorm
    from matplotlib.figure import Figure

    keys = exact.shape[-1]
    panels = {"exact softmax P": exact, f"effective matrix A of {name}": effective, "difference A − P": effective - exact}
    most = max(float(matrix.abs().max()) for matrix in panels.values())
    scale = SymLogNorm(linthresh=1 / keys, linscale=1.0, vmin=-most, vmax=most, base=10)
    with matplotlib.rc_context(settings("matrix")):
        figure = Figure(figsize=_SIZE, layout="constrained")
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
        ticks = _ticks(1 / keys, most)
        bar = figure.colorbar(picture, ax=grid, pad=0.01, ticks=ticks)
        bar.set_label(f"weight: linear up to 1/{keys} (uniform), logarithmic beyond", fontsize=8)
        bar.ax.set_yticklabels([f"{tick:.3g}" for tick in ticks])
        bar.ax.minorticks_off()
        return save(figure, folder / "matrix.png", folder / "matrix.svg")


def _ticks(uniform: float, most: float) -> list[float]:
    """Return ticks at zero and, with both signs, at the uniform weight and the powers of ten above it."""
    beyond = [10.0**power for power in range(-6, 7) if 1.5 * uniform < 10.0**power <= most]
    positive = [uniform, *beyond]
    return [*(-tick for tick in reversed(positive)), 0.0, *positive]
