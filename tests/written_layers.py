"""A layer written out: convolution, latents, shared heads, streams and gates by plain formulas around its mechanism."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from attn_zoo.layer import MultiHeadAttention
from attn_zoo.short_convolution import ShortConvolution

LENGTH, DIM, HEADS = 24, 8, 2


def perturbed(layer: MultiHeadAttention) -> MultiHeadAttention:
    """Return the layer in float64 and eval mode with changed parameters, so that no bias is zero, and with random taps."""
    with torch.no_grad():
        for key, parameter in layer.double().eval().named_parameters():
            if key.startswith("short_convolution"):
                torch.nn.init.normal_(parameter)
            else:
                parameter.add_(0.3 * torch.randn_like(parameter))
    return layer


def build(attention: str, width: int = 0, *, dim: int = DIM, heads: int = HEADS, **kwargs: Any) -> MultiHeadAttention:
    """Return a perturbed layer; ``width`` is that of its short convolution."""
    torch.manual_seed(0)
    return perturbed(MultiHeadAttention(dim, heads, attention, length=LENGTH, short_convolution=width, **kwargs))


def tokens(batch: int = 3, length: int = LENGTH, seed: int = 1, dim: int = DIM) -> Tensor:
    return torch.randn(batch, length, dim, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def padding() -> Tensor:
    """Mask of real tokens: padding at the end of the first example, at the start and in the middle of the second."""
    valid = torch.ones(3, LENGTH, dtype=torch.bool)
    valid[0, 15:] = False
    valid[1, 5:9] = False
    valid[1, :2] = False
    return valid


def convolved(convolution: ShortConvolution, x: Tensor) -> Tensor:
    """Short convolution computed position by position."""
    before, n = convolution.before, x.shape[1]
    out = torch.zeros_like(x)
    for i in range(n):
        for tap in range(convolution.weight.shape[1]):
            if 0 <= i + tap - before < n:
                out[:, i] += convolution.weight[:, tap] * x[:, i + tap - before]
    return out


def latents(layer: MultiHeadAttention, x: Tensor) -> Tensor:
    """RMSNorm(x W), from which a layer with a latent makes keys, values and their streams."""
    if layer.latent is None:
        return x
    down = x @ layer.get_parameter("latent.0.weight").T
    return layer.get_parameter("latent.1.weight") * down / (down.square().mean(dim=-1, keepdim=True) + 1e-6).sqrt()


def written_out(layer: MultiHeadAttention, x: Tensor, real: Tensor | None = None, context: Tensor | None = None) -> Tensor:
    """Outputs of a layer by plain formulas; with padding, those at real tokens have a meaning."""
    if layer.short_convolution is not None:
        x = convolved(layer.short_convolution, x if real is None else x.masked_fill(~real[..., None], 0))
    source, streams, made = latents(layer, x if context is None else context), {s.name: s for s in layer.streams}, {}
    for name in (*layer.reads, *streams):
        linear: Any = layer.stream_projections.get_submodule(name) if name in streams else None
        weight, bias = layer._parameters_of(name) if linear is None else (linear.weight, linear.bias)
        of_queries = streams[name].of == "queries" if linear is not None else name == "query"
        first = None if linear is None else streams[name].first
        flat = F.linear((x if of_queries else source)[:, :first], weight, bias)
        split = flat.unflatten(-1, (-1, layer.mechanism.geometry.head_dim)).transpose(1, 2)
        split = split if linear is None else streams[name].of_channels(split)
        made[name] = split.repeat_interleave(layer.mechanism.geometry.heads // split.shape[1], dim=1)
    given = {name: made[name] for name in streams}
    mixed = layer.mechanism(made.get("query"), made.get("key"), made["value"], key_valid=real, streams=given)
    heads = mixed.transpose(1, 2).flatten(2)
    if layer.gate is not None:
        gates = torch.sigmoid(x @ layer.gate.weight.T + layer.gate.bias)
        heads = heads * gates.repeat_interleave(heads.shape[-1] // gates.shape[-1], dim=-1)
    return heads @ layer.out.weight.T + layer.out.bias


def in_steps(layer: MultiHeadAttention, x: Tensor, sizes: Sequence[int]) -> Tensor:
    """Output of a layer that reads its tokens in pieces of these sizes."""
    state, out = layer.initial_state(x.shape[0], dtype=x.dtype), []
    for piece in x.split(list(sizes), dim=1):
        answer, state = layer.step(piece, state)
        out.append(answer)
    assert state.position == x.shape[1]
    return torch.cat(out, dim=1)
