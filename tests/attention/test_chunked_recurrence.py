"""Mechanisms on the chunked recurrence: rules that they reduce to, steps, extreme gates."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from attn_zoo import Geometry, build_attention, card
from attn_zoo.attention.linear import _chunked as chunked
from attn_zoo.attention.linear.delta_rule import unit_length

NAMES = ["delta_product", "gated_delta_rule", "kda", "retention", "rwkv7", "ssd"]
HEADS, D = 2, 8
CLOSED = -1e4
"""Logit of a gate: softplus of it is 0, so nothing decays."""


def build(name: str, n: int, *, causal: bool = True, **options: Any) -> Any:
    return build_attention(name, Geometry(HEADS, D, n, n, causal), **options).double()


def draw(mechanism: Any, n: int, *, seed: int = 1) -> tuple[list[Tensor], dict[str, Tensor]]:
    """Return queries, keys and values, and the streams by name."""
    generator = torch.Generator().manual_seed(seed)
    streams = mechanism.card.streams(mechanism.geometry, mechanism.options)
    tensors = [torch.randn(2, HEADS, n, D, dtype=torch.float64, generator=generator) for _ in range(3 + len(streams))]
    return tensors[:3], {stream.name: stream.of_channels(x) for stream, x in zip(streams, tensors[3:], strict=True)}


@pytest.mark.parametrize("normalise", [True, False])
@pytest.mark.parametrize("causal", [True, False])
def test_kda_with_equal_decays_is_the_gated_delta_rule(causal, normalise):
    gated, kda = (build(name, 70, causal=causal, normalise=normalise) for name in ("gated_delta_rule", "kda"))
    inputs, streams = draw(gated, 70)
    with torch.no_grad():
        kda.forget.log_rate.copy_(gated.forget.log_rate)
        kda.forget.offset.copy_(gated.forget.offset.repeat_interleave(D))
    same = streams["decay"].expand_as(inputs[1])
    torch.testing.assert_close(kda(*inputs, streams={**streams, "decay": same}), gated(*inputs, streams=streams))


@pytest.mark.parametrize("negative", [True, False])
def test_the_gated_delta_rule_without_decay_is_the_delta_rule(negative):
    options = {"negative_eigenvalues": negative, "normalise": False}
    gated, plain = (build(name, 70, **options) for name in ("gated_delta_rule", "delta_rule"))
    inputs, streams = draw(gated, 70)
    out = gated(*inputs, streams={**streams, "decay": torch.full_like(streams["decay"], CLOSED)})
    torch.testing.assert_close(D**0.5 * out, plain(*inputs, streams={"strength": streams["strength"]}))


def test_the_delta_product_of_one_rule_is_the_gated_delta_rule():
    product = build("delta_product", 70, rules=1, negative_eigenvalues=False)
    gated = build("gated_delta_rule", 70)
    inputs, streams = draw(gated, 70)
    renamed = {"decay": streams["decay"], "strength_1": streams["strength"]}
    torch.testing.assert_close(product(*inputs, streams=renamed), gated(*inputs, streams=streams))


@pytest.mark.parametrize("causal", [True, False])
def test_rwkv7_with_one_strength_per_head_and_no_decay_is_the_delta_rule(causal):
    """With α = 1 and unit keys, the key that is written is β times the key that is removed."""
    seven, plain = (build(name, 70, causal=causal, normalise=False) for name in ("rwkv7", "delta_rule"))
    inputs, streams = draw(plain, 70)
    query, key = (unit_length(F.silu(x)) for x in inputs[:2])
    given = {"decay": torch.full_like(key, CLOSED), "strength": streams["strength"].expand_as(key)}
    torch.testing.assert_close(seven(query, key, inputs[2], streams=given), plain(*inputs, streams=streams), rtol=1e-4, atol=1e-4)


def test_two_reflections_rotate_the_memory_which_one_rule_cannot():
    """With β = 2 and unit keys at an angle of 45°, a product of two rules turns a stored value by 90°."""
    product = build("delta_product", 2, normalise=False)
    inputs, streams = draw(product, 2)
    zero, logit = torch.zeros_like(inputs[0]), torch.zeros_like(streams["decay"])
    first, second = zero.clone(), zero.clone()
    first[..., 0] = 30.0
    second[..., :2] = 30.0
    open_ = {"decay": logit + CLOSED, "strength_1": logit + 50, "strength_2": logit + 50}
    given = {**streams, **open_, "key_2": second, "value_2": zero}
    state = product.initial_state(2, dtype=torch.float64)
    state.summed[..., 0, 0] = 1.0
    _, after = product.step(zero[:, :, :1], first[:, :, :1], zero[:, :, :1], state, **{k: v[:, :, :1] for k, v in given.items()})
    torch.testing.assert_close(after.summed[..., 0, 0], torch.zeros(2, HEADS).double(), rtol=0, atol=1e-6)
    torch.testing.assert_close(after.summed[..., 1, 0].abs(), torch.ones(2, HEADS).double(), rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", [*NAMES, "based", "gated_slot", "log_linear"])
def test_after_ten_thousand_tokens_steps_equal_one_call(name):
    n, pieces = 10_000, [1, 31, 4_000, 33, 5_000, 935]
    mechanism = build(name, n)
    inputs, streams = draw(mechanism, n)
    with torch.no_grad():
        whole = mechanism(*inputs, streams=streams)
        state, parts = mechanism.initial_state(2, dtype=torch.float64), []
        for tensors in zip(*(x.split(pieces, dim=2) for x in (*inputs, *streams.values())), strict=True):
            out, state = mechanism.step(*tensors[:3], state, **dict(zip(streams, tensors[3:], strict=True)))
            parts.append(out)
    torch.testing.assert_close(torch.cat(parts, dim=2), whole, rtol=1e-9, atol=1e-9)
    assert state.position == n
    stated = card(name).cost(mechanism.geometry, mechanism.options).state_bytes
    assert stated is not None and state.nbytes == 2 * 2 * stated  # two examples, eight bytes per number in place of four


@pytest.mark.parametrize("logit", [-1e30, -30.0, 30.0, 1e30])
@pytest.mark.parametrize("name", ["delta_product", "gated_delta_rule", "gated_slot", "kda", "rwkv7", "ssd"])
def test_extreme_gates_leave_outputs_and_gradients_finite(name, logit):
    mechanism = build_attention(name, Geometry(HEADS, D, 70, 70, causal=True))
    inputs, streams = draw(mechanism, 70)
    gate = {"gated_slot": "gate", "ssd": "step"}.get(name, "decay")
    streams[gate] = torch.where(streams[gate] > 0, streams[gate], torch.full_like(streams[gate], logit))
    leaves = [x.float().requires_grad_() for x in (*inputs, *streams.values())]
    out = mechanism(*leaves[:3], streams=dict(zip(streams, leaves[3:], strict=True)))
    grads = torch.autograd.grad(out.sum(), [*leaves, *mechanism.parameters()])
    assert out.isfinite().all() and all(grad.isfinite().all() for grad in grads)


@pytest.mark.parametrize("name", NAMES)
def test_chunks_of_another_size_change_nothing(name, monkeypatch):
    mechanism = build(name, 70)
    inputs, streams = draw(mechanism, 70)
    expected = mechanism(*inputs, streams=streams)
    monkeypatch.setattr(chunked, "CHUNK", 12)
    torch.testing.assert_close(mechanism(*inputs, streams=streams), expected, rtol=1e-10, atol=1e-10)


def test_the_rates_of_retention_are_those_of_the_papers():
    retnet, lightning = (build("retention", 4, rates=rates) for rates in ("retention", "lightning"))
    like = torch.zeros(1, dtype=torch.float64)
    torch.testing.assert_close(retnet.log_decays(like).exp(), torch.tensor([1 - 2.0**-5, 1 - 2.0**-6], dtype=torch.float64))
    slopes = torch.tensor([2.0**-4, 2.0**-8], dtype=torch.float64)
    torch.testing.assert_close(lightning.log_decays(like), -slopes * (1 + 1e-5))
    stack = [build("retention", 4, rates="lightning") for _ in range(3)]
    stack[1].join(1, stack)
    torch.testing.assert_close(stack[1].log_decays(like), -slopes * (0.5 + 1e-5))
