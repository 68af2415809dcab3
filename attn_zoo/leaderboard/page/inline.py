"""SVG figures inlined in a page, with unique ids and the page's colours."""

from __future__ import annotations

import re

from markupsafe import Markup

from attn_zoo.escapes import markup
from attn_zoo.plotting.theme import DARK, GRID, INK, MUTED, PAPER, SERIES

NAMES = {INK: "--ink", MUTED: "--muted", GRID: "--grid", PAPER: "--paper", **{c: f"--s{at}" for at, c in enumerate(SERIES)}}
"""CSS variable of the page for each colour of the figures."""


def variables() -> dict[str, dict[str, str]]:
    """Values of the CSS variables in light and dark mode."""
    return {
        "light": {name: colour for colour, name in NAMES.items()},
        "dark": {name: DARK[colour] for colour, name in NAMES.items()},
    }


def inlined(svg: str, name: str, said: str) -> Markup:
    """Convert an SVG file to an element of a page that holds several, in the page's colours.

    Args:
        name: prefix of its ids.
        said: description for screen readers.
    """
    body = svg[svg.index("<svg") :]
    body = re.sub(r'\bid="([^"]+)"', rf'id="{name}.\1"', body)
    body = re.sub(r'(href="#|url\(#)', rf"\g<1>{name}.", body)
    body = re.sub("#[0-9a-f]{6}", lambda found: f"var({NAMES[found[0]]})" if found[0] in NAMES else found[0], body)
    box = re.search(r'viewBox="[^"]+"', body)
    assert box, "matplotlib gives every figure a view box"
    head = f'<svg {box[0]} role="img" aria-label="{markup(said)}" xmlns:xlink="http://www.w3.org/1999/xlink">'
    return Markup(head + body[body.index(">") + 1 :])
