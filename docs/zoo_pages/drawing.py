"""A small drawing of which tokens a mechanism lets each token see, from the mechanism itself."""

from __future__ import annotations

from itertools import groupby

import torch
from torch import Tensor

from attn_zoo.analysis.inputs import AttentionInputs, attend, build_layers
from attn_zoo.contract import AttentionCard
from attn_zoo.plotting.theme import GRID, INK, PAPER, SERIES, with_dark_colours

TOKENS, KINDS, HEAD_DIM = 32, 4, 16
SHARP = 3.0
"""Score q·k / √d of two tokens of one kind; tokens of two kinds have the score 0."""
CELL = 6
"""Side of a cell in pixels."""
LEVELS = 20
"""Number of shades of a cell."""


def drawing(entry: AttentionCard) -> str:
    """Return an SVG with a grid for each direction in time that the card claims: a row for each query, a column for each key.

    Tokens are of four kinds in turn, two of a kind side by side; the queries and keys of a kind are equal. A cell is the darker the
    more the output at the query changes with the value at the key, relative to the largest change in its row.
    """
    grids = [("bidirectional", seen(entry, causal=False))]
    if entry.can.causal:
        grids.append(("causal", seen(entry, causal=True)))
    side = TOKENS * CELL
    parts = [_grid(found, title, at * (side + 24)) for at, (title, found) in enumerate(grids)]
    width, height = len(grids) * (side + 24) - 22, side + 20
    title = f"Tokens that each token sees through {entry.title}"
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img">'
    paper = f'<rect width="{width}" height="{height}" fill="{PAPER}"/>'
    return with_dark_colours(f"{head}<title>{title.replace('&', '&amp;')}</title>{paper}{''.join(parts)}</svg>\n")


def seen(entry: AttentionCard, *, causal: bool) -> Tensor:
    """Return the change of each output with each value, queries × keys, as a share of the largest in the row."""
    generator = torch.Generator().manual_seed(0)
    kinds = torch.arange(TOKENS) // 2 % KINDS
    directions = torch.zeros(KINDS, HEAD_DIM, dtype=torch.float64)
    directions[:, :KINDS] = (SHARP * HEAD_DIM**0.5) ** 0.5 * torch.eye(KINDS)  # some mechanisms read the first channels alone
    tokens = directions[kinds].expand(1 + TOKENS, 2, -1, -1)
    value, change = (torch.randn(1, 2, TOKENS, HEAD_DIM, dtype=torch.float64, generator=generator) for _ in range(2))
    own = torch.eye(TOKENS, dtype=torch.float64)[:, None, :, None]  # sequence j has another value at token j alone
    inputs = AttentionInputs(tokens, tokens, torch.cat([value, value + 0.1 * change * own]), causal=causal)
    [mechanism], _ = build_layers(entry.name, [inputs], {})
    out = attend(mechanism, inputs)
    changes = (out[1:] - out[:1]).norm(dim=-1).mean(dim=1).T / change.norm(dim=-1).mean(dim=1)
    return changes / changes.amax(dim=-1, keepdim=True).clamp(min=1e-12)


def _grid(found: Tensor, title: str, left: int) -> str:
    side = TOKENS * CELL
    frame = f'<rect x="{left}.5" y="16.5" width="{side}" height="{side}" fill="{PAPER}" stroke="{GRID}"/>'
    text = f'<text x="{left}" y="11" font-size="11" font-family="sans-serif" fill="{INK}">{title}</text>'
    shades: dict[int, list[str]] = {}
    for query, row in enumerate((found * LEVELS).round().int().tolist()):
        at = 0
        for level, cells in groupby(row):
            count = len(list(cells))
            if level:
                shades.setdefault(level, []).append(
                    f"M{left + at * CELL} {16 + query * CELL}h{count * CELL}v{CELL}h{-count * CELL}z"
                )
            at += count
    paths = (f'<path opacity="{level / LEVELS:g}" d="{"".join(parts)}"/>' for level, parts in sorted(shades.items()))
    return f'{text}{frame}<g fill="{SERIES[0]}">{"".join(paths)}</g>'
