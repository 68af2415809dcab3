"""Plot of the error of Linformer's attention against the projected length, with one panel per model."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from attn_zoo.analysis.projections import Kind
from attn_zoo.plotting.theme import MUTED, SERIES, save, settings

_MARKS = ("o", "s", "^", "D", "v")
_NAMES = {
    Kind.theorem: "Theorem 1",
    Kind.random: "random E, F",
    Kind.pooling: "means",
    Kind.spectrum: "spectrum of the keys",
    Kind.learned: "learned E, F",
}


def plot_projections(found: Mapping[str, Any], folder: Path) -> list[Path]:
    """Draw the result of ``attn-zoo analyze projections`` into ``folder`` as projections.png and projections.svg, and return both
    paths."""
    import matplotlib
    from matplotlib.figure import Figure
    from matplotlib.ticker import FixedLocator, LogLocator, NullFormatter, NullLocator, ScalarFormatter

    models = found["models"]
    with matplotlib.rc_context(settings("projections")):
        figure = Figure(figsize=(max(5.5, 3.3 * len(models)), 4.2), layout="constrained")
        panels = figure.subplots(1, len(models), sharey=True, squeeze=False)[0]
        for panel, model in zip(panels, models, strict=True):
            k = model["k"]
            for at, (kind, name) in enumerate(_NAMES.items()):
                style = {"color": SERIES[at], "marker": _MARKS[at], "markersize": 4, "linewidth": 1.4}
                panel.plot(k, model["error"][kind.value], label=name, **style)
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
        handles, labels = panels[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=4, fontsize=8)
        return save(figure, folder / "projections.png", folder / "projections.svg")
