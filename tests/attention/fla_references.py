"""flash-linear-attention's plain PyTorch references as replacements of its Triton kernels, which need a GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from peer_layers import fla_naive
from torch import Tensor

from attn_zoo.kernels import fla

CHUNK = 64


def linear_attn(query: Tensor, key: Tensor, value: Tensor, *, scale: float, normalize: bool) -> tuple[Tensor, None]:
    """Linear attention by the package's chunked reference, on inputs padded to whole chunks, which it requires."""
    n = query.shape[1]
    filled = (F.pad(x, (0, 0, 0, 0, 0, -n % CHUNK)) for x in (query, key, value))
    return fla_naive("linear_attn").naive_chunk_linear_attn(*filled, scale=scale, normalize=normalize)[:, :n], None


def gla(query: Tensor, key: Tensor, value: Tensor, gate: Tensor, *, scale: float) -> tuple[Tensor, None]:
    """Gated linear attention by the package's recurrence in float32; its division of queries by √m is cancelled here."""
    assert query.shape == key.shape == gate.shape, "the kernel wants gates of all features"
    return fla_naive("gla").naive_recurrent_gla(query * (scale * query.shape[-1] ** 0.5), key, value, gate)


def delta_rule(query: Tensor, key: Tensor, value: Tensor, beta: Tensor, *, scale: float) -> tuple[Tensor, None]:
    """Delta rule by the package's chunked reference: heads first, whole chunks, float32 or wider; its factor 1/√d is cancelled."""
    dtype, n = query.dtype, query.shape[1]
    query = query * (scale * query.shape[-1] ** 0.5)
    rows = (x.to(torch.promote_types(dtype, torch.float32)).transpose(1, 2) for x in (query, key, value))
    filled = (F.pad(x, (0, 0, 0, -n % CHUNK)) for x in rows)
    beta = F.pad(beta.transpose(1, 2), (0, -n % CHUNK))
    out, _ = fla_naive("delta_rule").delta_rule_chunkwise(*filled, beta)
    return out[:, :, :n].transpose(1, 2).to(dtype), None


def gated_delta_rule(query: Tensor, key: Tensor, value: Tensor, gate: Tensor, beta: Tensor, *, scale: float) -> tuple[Tensor, None]:
    """Gated delta rule by the package's recurrence in float32."""
    return fla_naive("gated_delta_rule").naive_recurrent_gated_delta_rule(query, key, value, beta, gate, scale=scale)


def kda(query: Tensor, key: Tensor, value: Tensor, gate: Tensor, beta: Tensor, *, scale: float) -> tuple[Tensor, None]:
    """Kimi delta attention by the package's recurrence in float32."""
    assert key.shape == gate.shape, "the kernel wants gates of all features"
    return fla_naive("kda").naive_recurrent_kda(query, key, value, gate, beta, scale=scale)


def simple_gla(query: Tensor, key: Tensor, value: Tensor, gate: Tensor, *, scale: float) -> tuple[Tensor, None]:
    """Linear attention with a decay per head by the package's recurrence in float32."""
    return fla_naive("simple_gla").naive_recurrent_simple_gla(query, key, value, gate, scale=scale)


KERNELS: dict[str, Callable[..., Any]] = {
    "linear_attn": linear_attn,
    "gla": gla,
    "delta_rule": delta_rule,
    "gated_delta_rule": gated_delta_rule,
    "kda": kda,
    "simple_gla": simple_gla,
}


def on_a_cpu(monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype = torch.bfloat16) -> None:
    """Let the ``fla`` implementations run on CPU tensors with these references, which multiply in ``dtype``."""
    for module in ("contract.attention", "conformance.subject"):
        monkeypatch.setattr(f"attn_zoo.{module}.unavailable", lambda *_: None)
    for module in ("contract.implementations", "conformance.subject"):
        monkeypatch.setattr(f"attn_zoo.{module}.FLA_DTYPE", dtype)
    monkeypatch.setattr(fla, "DTYPE", dtype)
    monkeypatch.setattr(fla, "kernel", KERNELS.__getitem__)
