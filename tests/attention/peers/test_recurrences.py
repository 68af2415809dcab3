"""Recurrent mechanisms, Based and forgetting attention against public references, in float64: outputs and gradients."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from public_references import in_float64, require_close
from torch import Tensor

from attn_zoo import Geometry, build_attention, card
from attn_zoo.attention.linear.delta_rule import unit_length
from attn_zoo.attention.linear.log_linear import ONE

HEADS, D = 3, 16
LENGTHS = [37, 130]
"""Lengths that no chunk divides."""

Reference = Callable[..., Tensor]
"""(mechanism, query, key, value, streams) → outputs, with all tensors (batch, heads, length, width)."""


def tokens_first(*tensors: Tensor) -> list[Tensor]:
    return [x.transpose(1, 2) for x in tensors]


def prepared(query: Tensor, key: Tensor) -> list[Tensor]:
    return [unit_length(F.silu(x)) for x in (query, key)]


def log_decay(mechanism: Any, logits: Tensor) -> Tensor:
    """The public layers' gate: −exp(A_log) softplus(a + dt_bias)."""
    gate = mechanism.forget
    bias = gate.offset.view(HEADS, 1, -1)
    return -gate.log_rate.exp()[:, None, None] * F.softplus(logits + bias)


def fla_gated_delta_rule(function: str) -> Reference:
    def reference(mechanism: Any, query: Tensor, key: Tensor, value: Tensor, decay: Tensor, strength: Tensor) -> Tensor:
        module = in_float64("fla", "ops/gated_delta_rule/naive.py")
        query, key, value = tokens_first(*prepared(query, key), value)
        gate = log_decay(mechanism, decay)[..., 0].transpose(1, 2)
        beta = strength[..., 0].sigmoid().transpose(1, 2)
        return getattr(module, function)(query, key, value, beta=beta, g=gate)[0].transpose(1, 2)

    return reference


def transformers_gated_delta_rule(
    mechanism: Any, query: Tensor, key: Tensor, value: Tensor, decay: Tensor, strength: Tensor
) -> Tensor:
    module = in_float64("transformers", "models/qwen3_next/modeling_qwen3_next.py")
    query, key, value = tokens_first(F.silu(query), F.silu(key), value)
    gate = log_decay(mechanism, decay)[..., 0].transpose(1, 2)
    beta = strength[..., 0].sigmoid().transpose(1, 2)
    function = module.torch_chunk_gated_delta_rule
    out, _ = function(query, key, value, gate, beta, use_qk_l2norm_in_kernel=True)
    return out.transpose(1, 2)


def fla_kda(mechanism: Any, query: Tensor, key: Tensor, value: Tensor, decay: Tensor, strength: Tensor) -> Tensor:
    module = in_float64("fla", "ops/kda/naive.py")
    gate = log_decay(mechanism, decay)
    query, key, value, gate = tokens_first(*prepared(query, key), value, gate)
    beta = strength[..., 0].sigmoid().transpose(1, 2)
    return module.naive_recurrent_kda(query, key, value, gate, beta)[0].transpose(1, 2)


def transformers_ssd(mechanism: Any, query: Tensor, key: Tensor, value: Tensor, step: Tensor) -> Tensor:
    module = in_float64("transformers", "models/mamba2/modeling_mamba2.py")
    c, b, x = tokens_first(F.silu(query), F.silu(key), F.silu(value))
    dt = step[..., 0].transpose(1, 2)
    gate = mechanism.forget
    out = module.mamba2_chunk_scan(
        x, dt, -gate.log_rate.exp(), b, c, chunk_size=16, D=mechanism.skip, dt_bias=gate.offset, dt_softplus=True
    )
    return (out[0] if isinstance(out, tuple) else out).transpose(1, 2)


def fla_retention(mechanism: Any, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return in_float64("fla", "ops/retention/naive.py").naive_retention(query, key, value)


def fla_delta_product(mechanism: Any, query: Tensor, key: Tensor, value: Tensor, **streams: Tensor) -> Tensor:
    module = in_float64("fla", "ops/gated_delta_product/naive.py")
    rules = mechanism.options.rules
    keys = [unit_length(F.silu(k)) for k in (key, *(streams[f"key_{rule}"] for rule in range(2, rules + 1)))]
    values = [value, *(streams[f"value_{rule}"] for rule in range(2, rules + 1))]
    most = 2.0 if mechanism.options.negative_eigenvalues else 1.0
    betas = [most * streams[f"strength_{rule}"].sigmoid() for rule in range(1, rules + 1)]
    key, value, beta = (torch.stack(parts, dim=3).flatten(2, 3) for parts in (keys, values, betas))
    gate = log_decay(mechanism, streams["decay"])
    query, key, value, beta, gate = tokens_first(unit_length(F.silu(query)), key, value, beta, gate)
    out, _ = module.naive_recurrent_gated_delta_product(
        query, key, value, gate[..., 0], beta[..., 0], scale=D**-0.5, num_householder=rules
    )
    return out.transpose(1, 2)


def fla_forgetting(mechanism: Any, query: Tensor, key: Tensor, value: Tensor, gate: Tensor) -> Tensor:
    module = in_float64("fla", "ops/forgetting_attn/naive.py")
    logs = F.logsigmoid(gate[..., 0]).transpose(1, 2)
    return module.naive_forgetting_attn(*tokens_first(query, key, value), logs).transpose(1, 2)


def fla_based(mechanism: Any, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """The weighted sums of values and of ones, without the epsilon by which the package divides them."""
    function, f = in_float64("fla", "ops/based/naive.py").naive_parallel_based, mechanism.options.channels
    sums = function(query[..., :f], key[..., :f], F.pad(value, (0, 1), value=1.0), use_norm=False)
    return sums[..., :-1] / sums[..., -1:]


def fla_log_linear(mechanism: Any, query: Tensor, key: Tensor, value: Tensor, step: Tensor, level: Tensor) -> Tensor:
    module = in_float64("fla", "ops/log_linear_attn/naive.py")
    x = F.silu(value)
    written = F.softplus(step + mechanism.forget.offset.view(HEADS, 1, 1)) * F.silu(key)
    inputs = tokens_first(F.silu(query), written, x, log_decay(mechanism, step), F.softplus(level + ONE))
    out: Tensor = module.naive_log_linear_attn(*inputs[:3], inputs[3][..., 0], inputs[4])
    return out.transpose(1, 2) + mechanism.skip[:, None, None] * x


def fla_gated_slot(mechanism: Any, query: Tensor, key: Tensor, value: Tensor, gate: Tensor) -> Tensor:
    module = in_float64("fla", "ops/gsa/naive.py")
    logs = F.logsigmoid(gate) / mechanism.options.temperature
    inputs = tokens_first(F.silu(query), F.silu(key), F.silu(value), 1 - logs.exp(), logs)
    return module.naive_recurrent_gsa(*inputs, scale=1.0)[0].transpose(1, 2)


def fla_rwkv7(mechanism: Any, query: Tensor, key: Tensor, value: Tensor, decay: Tensor, strength: Tensor) -> Tensor:
    """The recurrence of the package, whose scale is cancelled, and the term with ρ."""
    recurrence = in_float64("fla", "ops/generalized_delta_rule/dplr/naive.py").dplr_recurrence
    offset, removal, replacement, bonus = (
        getattr(mechanism, name).view(HEADS, 1, D) for name in ("offset", "removal", "replacement", "bonus")
    )
    logs, a = -math.exp(-0.5) * (decay + offset).sigmoid(), strength.sigmoid()
    removed, written = unit_length(key * removal), torch.lerp(key, a * key, replacement.expand_as(key))
    out, _ = recurrence(query * D**0.5, written, value, -removed, a * removed, logs)
    return out + (query * bonus * written).sum(dim=-1, keepdim=True) * value


CASES: dict[str, tuple[str, dict[str, Any], Reference]] = {
    "gated_delta_rule, fla, token by token": (
        "gated_delta_rule",
        {"normalise": False},
        fla_gated_delta_rule("naive_recurrent_gated_delta_rule"),
    ),
    "gated_delta_rule, fla, chunks": (
        "gated_delta_rule",
        {"normalise": False},
        fla_gated_delta_rule("naive_chunk_gated_delta_rule"),
    ),
    "gated_delta_rule, transformers": ("gated_delta_rule", {"normalise": False}, transformers_gated_delta_rule),
    "kda, fla": ("kda", {"normalise": False}, fla_kda),
    "ssd, transformers": ("ssd", {"normalise": False}, transformers_ssd),
    "retention, fla": ("retention", {"normalise": False}, fla_retention),
    "delta_product, fla": ("delta_product", {"normalise": False}, fla_delta_product),
    "delta_product with three rules, fla": (
        "delta_product",
        {"normalise": False, "rules": 3, "negative_eigenvalues": False},
        fla_delta_product,
    ),
    "forgetting, fla": ("forgetting", {}, fla_forgetting),
    "log_linear, fla": ("log_linear", {"normalise": False}, fla_log_linear),
    "gated_slot, fla": ("gated_slot", {"normalise": False}, fla_gated_slot),
    "rwkv7, fla": ("rwkv7", {"normalise": False}, fla_rwkv7),
    "based, fla": ("based", {}, fla_based),
    "based with five channels, fla": ("based", {"channels": 5}, fla_based),
}


@pytest.mark.parametrize("n", LENGTHS)
@pytest.mark.parametrize("case", CASES)
def test_equals_the_public_reference(case, n):
    name, options, reference = CASES[case]
    mechanism = build_attention(name, Geometry(HEADS, D, n, n, causal=True), implementation="eager", **options).double()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in mechanism.parameters():  # some start at 0 or 1, which hides a term
            parameter.add_(0.3 * torch.randn(parameter.shape, dtype=torch.float64, generator=generator))
    extra = card(name).streams(mechanism.geometry, mechanism.options)
    names = [stream.name for stream in extra]
    widths = [D] * 3 + [1 if stream.per_head else D for stream in extra]
    tensors = [torch.randn(2, HEADS, n, width, dtype=torch.float64, generator=generator).requires_grad_() for width in widths]
    streams = dict(zip(names, tensors[3:], strict=True))
    ours = mechanism(*tensors[:3], streams=streams)
    theirs = reference(mechanism, *tensors[:3], **streams)
    require_close("outputs", ours, theirs)
    weights = torch.randn(ours.shape, dtype=torch.float64, generator=generator)
    trained = [*tensors, *mechanism.parameters()]
    grads = [torch.autograd.grad((out * weights).sum(), trained) for out in (ours, theirs)]
    for what, one, other in zip([*"qkv", *names, *dict(mechanism.named_parameters())], *grads, strict=True):
        require_close(f"gradient of {what}", one, other)
