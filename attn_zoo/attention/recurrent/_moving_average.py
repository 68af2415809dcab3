"""Damped exponential moving averages, computed exactly and in a time linear in the length.

The state s of a channel holds h numbers. In one direction, each number is sₜ = q sₜ₋₁ + w xₜ, and the average yₜ is the sum of
all h products r sₜ. Within a chunk, the inputs are multiplied by a matrix: in the average at t, input j has the weight Σ r qᵗ⁻ʲ w.
Positions before the chunk (in the other direction, after the chunk) enter through the state. If causal, later inputs do not change
an average, not even by rounding.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from attn_zoo.contract import Geometry
from attn_zoo.kernels.cpu._chunks import filled, into_chunks


def moving_average(
    x: Float[Tensor, "batch heads n d"],
    keep: Float[Tensor, "directions heads d h"],
    write: Float[Tensor, "directions heads d h"],
    read: Float[Tensor, "directions heads d h"],
) -> Float[Tensor, "batch heads n d"]:
    """Return for each position the average over this position and all earlier positions. If ``keep`` has a second
    direction, add the average over this position and all later positions.

    Args:
        keep: q, the factor that multiplies the state at each step, in [0, 1].
        write: w, weight of an input in the state.
        read: r, weight of the state in an output.
    """
    batch, heads, n, d = x.shape
    chunk, _ = filled(n)
    rows = into_chunks(x, chunk).permute(1, 4, 0, 2, 3).flatten(0, 1)  # (channels, batch, chunks, chunk)
    keep, write, read = (t.flatten(1, 2)[..., None] for t in (keep, write, read))
    powers = keep ** torch.arange(chunk + 1, dtype=x.dtype, device=x.device)
    flat = rows.flatten(1, 2)
    out = flat @ _between((write * read * powers[..., :-1]).sum(dim=2)).mT
    if n > chunk:
        # Forwards, the last position of a chunk has the largest weight in the next state and the first reads it with the largest;
        # backwards the reverse.
        enters, leaves = write * powers[..., :-1], read * powers[..., 1:]
        enters = torch.cat([enters[:1].flip(-1), enters[1:]]).movedim(0, 1).flatten(1, 2)
        leaves = torch.cat([leaves[:1], leaves[1:].flip(-1)]).movedim(0, 1).flatten(1, 2)
        states = _states((flat @ enters.mT).unflatten(1, rows.shape[1:3]), powers[..., -1])
        out = out + states.flatten(1, 2) @ leaves
    return out.unflatten(1, (batch, -1)).flatten(2)[..., :n].unflatten(0, (heads, d)).permute(2, 0, 3, 1)


def moving_average_flops(geometry: Geometry, directions: int, h: int) -> int:
    """Return the FLOPs of the forward pass of ``moving_average``, whose state has ``h`` numbers per channel. The backward pass
    takes twice as many.
    """
    chunk, slots = filled(geometry.keys)
    return 2 * geometry.inner_dim * slots * (chunk + (2 * directions * h if slots > chunk else 0))


def _between(weights: Float[Tensor, "directions channels chunk"]) -> Float[Tensor, "channels chunk chunk"]:
    """Return the matrix that holds the weight of the distance i - j at row i and column j."""
    chunk = weights.shape[-1]
    line = F.pad(weights[0], (chunk - 1, 0))
    if len(weights) > 1:
        line = line + F.pad(weights[1].flip(-1), (0, chunk - 1))
    return line.flip(-1).unfold(-1, chunk, 1).flip(-2)


def _states(
    sums: Float[Tensor, "channels batch chunks directions_h"], keep: Float[Tensor, "directions channels h"]
) -> Float[Tensor, "channels batch chunks directions_h"]:
    """Return the states before each chunk and, in the second direction, after each chunk. ``sums`` holds what the chunks add to the
    state.
    """
    parts = sums.chunk(len(keep), dim=-1)
    both = torch.stack([part.flip(2) if at else part for at, part in enumerate(parts)])
    state, found = torch.zeros_like(both[:, :, :, 0]), []
    for added in both.unbind(3):
        found.append(state)
        state = state * keep[:, :, None] + added
    states = torch.stack(found, dim=3)
    return torch.cat([part.flip(2) if at else part for at, part in enumerate(states.unbind(0))], dim=-1)
