"""Theme of all plots: colours for light and dark mode, settings of matplotlib, and functions that write figures to files."""

from __future__ import annotations

import io
import re
import warnings
from pathlib import Path
from typing import Any

from attn_zoo.escapes import terminal, terminal_lines

INK = "#1b1f24"
MUTED = "#69707d"
GRID = "#e4e7eb"
PAPER = "#ffffff"
SERIES = ("#1a2fcf", "#2e9fb8", "#ee6325", "#b45cf0", "#9c2a17", "#5c1a73")
"""Colours of series. They can be told apart with red-green and blue-yellow blindness. Their contrast to white is at least 3 : 1."""
DARK = {
    INK: "#eef1f5",
    MUTED: "#9aa4b2",
    GRID: "#2c323b",
    PAPER: "#14171c",
    **dict(zip(SERIES, ("#5f84ff", "#5fd6e6", "#ff9a4d", "#d3a6ff", "#d8644d", "#b25cd2"), strict=True)),
}
"""For each colour of light mode, the colour that replaces it in dark mode."""
MARKERS = ("o", "^", "s", "D", "v", "P")
SUFFIXES = (".svg", ".png")


def settings(name: str, *, outlined: bool = True) -> dict[str, Any]:
    """Return settings of matplotlib. With them, equal figures give equal files, and figures with different names have different
    ids.

    Args:
        name: name of the figure. The ids of its SVG elements depend on it.
        outlined: True for letters as outlines, which look the same everywhere; False for letters as text, with which a file is
            smaller and can be searched.
    """
    return {
        "font.family": "DejaVu Sans",  # ships with matplotlib, so that the layout is the same on every machine
        "font.size": 9,
        "text.parse_math": False,  # a name with two dollar signs is not a formula
        "svg.hashsalt": f"attn-zoo {name}",
        "svg.fonttype": "path" if outlined else "none",
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.edgecolor": MUTED,
        "axes.labelcolor": INK,
        "axes.axisbelow": True,
        "text.color": INK,
        "xtick.color": MUTED,
        "ytick.color": MUTED,
        "grid.color": GRID,
        "grid.linewidth": 0.6,
        "hatch.linewidth": 0.5,
        "legend.frameon": False,
        "legend.fontsize": 8,
    }


def check_plot(path: Path) -> None:
    """Check that a plot can be written to ``path``. Commands call this before they start to compute.

    Raises:
        ValueError: the suffix is not .svg or .png, the path is a folder, or its folder does not exist.
    """
    if path.suffix not in SUFFIXES:
        raise ValueError(f"plot must end in {' or '.join(SUFFIXES)}; got {str(path)!r}")
    if path.is_dir() or not path.absolute().parent.is_dir():
        raise ValueError(f"plot must be a file in a folder that exists; got {str(path)!r}")


def save(figure: Any, *paths: Path) -> list[Path]:
    """Write a matplotlib figure to each path, as PNG with 160 dots per inch or as SVG, and return the paths.

    The colours of the SVG follow the reader's light or dark mode.

    Raises:
        OSError: a path cannot be written.
    """
    for path in paths:
        if path.suffix == ".svg":
            path.write_text(with_dark_colours(svg_text(figure)), encoding="utf-8")
        else:
            _write(figure, path, dpi=160, metadata={"Software": None})
    return list(paths)


def svg_text(figure: Any) -> str:
    """Return a matplotlib figure as SVG text without a date.

    An element with the id ``title:TEXT`` gets the title TEXT.
    """
    text = io.StringIO()
    _write(figure, text, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    body = re.sub(r"<metadata>.*?</metadata>\s*", "", terminal_lines(text.getvalue()), flags=re.DOTALL)
    body = re.sub(r' transform="rotate\(-0 [^"]*"', "", body).replace("'DejaVu Sans';", "'DejaVu Sans', Verdana, sans-serif;")
    return re.sub(r'<g id="title:([^"]*)">', r"<g><title>\1</title>", body)


def _write(figure: Any, into: Any, **how: Any) -> None:
    """Write a figure. A letter that the font lacks becomes a box, without a warning."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing", UserWarning)
        figure.savefig(into, **how)


def with_dark_colours(svg: str) -> str:
    """Return SVG text with the theme's dark colours added, for readers who prefer dark mode."""
    rules = "".join(_dark_rule(light, dark) for light, dark in DARK.items() if light in svg)
    end = svg.index(">", svg.index("<svg")) + 1
    return f"{svg[:end]}\n<style>@media (prefers-color-scheme:dark){{{rules}}}</style>{svg[end:]}"


def _dark_rule(light: str, dark: str) -> str:
    """Return CSS rules that replace a colour, both as an attribute and in matplotlib's inline style."""
    return "".join(
        f'[{name}="{light}"]{{{name}:{dark}}}[style*="{name}: {light}"]{{{name}:{dark}!important}}' for name in ("fill", "stroke")
    )


def hover(artist: Any, words: str) -> None:
    """Give an element of a figure a title, which a browser shows when the pointer is on the element.

    Args:
        artist: matplotlib's element.
        words: the title.
    """
    artist.set_gid(f"title:{terminal(words)}")


def plain(value: float, _: Any = None) -> str:
    """Return a number as text such as ``1,200``, for ticks of an axis whose label states the unit."""
    return f"{value:,.6g}"
