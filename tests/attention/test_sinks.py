"""Sinks: one more logit in the denominator, in every implementation, equal to public references; mistakes are caught."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from attn_zoo import Attention, Geometry, UnsupportedError, build_attention
from attn_zoo.conformance.attention_suite import attention_checks
from attn_zoo.conformance.harness import Violation
from attn_zoo.contract import masks

N, HEADS, D = 37, 3, 8
CASES: list[tuple[str, str, dict[str, Any]]] = [
    ("softmax", "eager", {}),
    ("softmax", "sdpa", {}),
    ("local", "eager", {"block": 7, "neighbours": 1}),
    ("longformer", "eager", {"window": 5, "global_tokens": 2}),
    ("longformer", "tiled", {"window": 5, "global_tokens": 2}),
    ("longformer", "tiled", {"window": 5, "global_tokens": 0, "dilation": 3}),
]


def build(name: str, implementation: str, causal: bool, *, sinks: bool = True, n: int = N, **options: Any) -> Attention:
    """Return a mechanism in float64 whose sinks differ from head to head."""
    built = build_attention(name, Geometry(HEADS, D, n, n, causal), implementation=implementation, sinks=sinks, **options).double()
    if sinks:
        assert isinstance(built.sinks, nn.Parameter) and bool((built.sinks == 0).all())
        with torch.no_grad():
            built.sinks.copy_(torch.tensor([-1.0, 0.5, 3.0]))
    return built


def draw(built: Attention, n: int = N) -> dict[str, Any]:
    """Return the arguments of a call, with gradients; extra projections of global tokens are those of the tokens."""
    generator = torch.Generator().manual_seed(1)
    q, k, v = (torch.randn(2, HEADS, n, D, dtype=torch.float64, generator=generator).requires_grad_() for _ in range(3))
    first = built.card.streams(built.geometry, built.options)
    streams = {s.name: {"query": q, "key": k, "value": v}[s.starts_as][:, :, : s.first] for s in first}
    return {"query": q, "key": k, "value": v, "streams": streams}


def written_out(built: Attention, given: dict[str, Any], seen: Tensor) -> Tensor:
    """Return exp(score) over the sum of those that are seen and of exp(sink), times the values."""
    weights = (given["query"] @ given["key"].mT / D**0.5).exp() * seen
    assert isinstance(built.sinks, nn.Parameter)
    return weights @ given["value"] / (weights.sum(-1, keepdim=True) + built.sinks.exp()[:, None, None])


def seen_by(built: Attention, valid: Tensor | None) -> Tensor:
    """Return the visible pairs: where the weights of the mechanism without sinks are above zero."""
    options = {**vars(built.options), "sinks": False}
    plain = build_attention(built.card.name, built.geometry, implementation="definition", **options).double()
    given = draw(plain)
    eye = torch.eye(N, dtype=torch.float64).expand(1, 1, -1, -1)
    columns = [torch.zeros(2, HEADS, N, D, dtype=torch.float64) for _ in range(-(-N // D))]
    for at, column in enumerate(columns):
        part = eye[..., at * D : (at + 1) * D]
        column[..., : part.shape[-1]] = part
    streams = [{**given["streams"], **({"global_value": c} if given["streams"] else {})} for c in columns]
    outs = [plain(given["query"], given["key"], c, key_valid=valid, streams=s) for c, s in zip(columns, streams, strict=True)]
    return (torch.cat(outs, dim=-1)[..., :N] > 0).double()


def padding() -> Tensor:
    valid = torch.ones(2, N, dtype=torch.bool)
    valid[0, 30:], valid[0, 3:6], valid[1, :4] = False, False, False
    return valid


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("name", "implementation", "options"), CASES, ids=str)
def test_a_sink_is_one_more_term_of_the_denominator(name, implementation, options, causal, padded):
    built, valid = build(name, implementation, causal, **options), padding() if padded else None
    given = draw(built)
    expected = written_out(built, given, seen_by(built, valid))
    out = built(**given, key_valid=valid)
    torch.testing.assert_close(out, expected, rtol=1e-9, atol=1e-11)
    into = [given["query"], given["key"], given["value"], built.sinks]
    weights = torch.linspace(-1, 1, out.numel(), dtype=out.dtype).reshape(out.shape)
    slopes = [torch.autograd.grad((of * weights).sum(), into) for of in (out, expected)]
    for mine, theirs in zip(*slopes, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-9, atol=1e-11)


def test_cross_attention_has_sinks():
    built = build_attention("softmax", Geometry(HEADS, D, 5, N), implementation="sdpa", sinks=True).double()
    q, k, v = (torch.randn(2, HEADS, n, D, dtype=torch.float64) for n in (5, N, N))
    expected = written_out(built, {"query": q, "key": k, "value": v}, torch.ones(()))
    torch.testing.assert_close(built(q, k, v), expected, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize(
    ("name", "implementation", "words"),
    [
        ("softmax", "xformers", "softmax.sinks needs implementation=eager or sdpa: xformers has no sinks"),
        ("local", "flex", "local.sinks needs implementation=eager: flex has no sinks"),
        ("longformer", "flex", "longformer.sinks needs implementation=eager: flex has no sinks"),
    ],
)
def test_an_implementation_without_sinks_is_refused_by_name(name, implementation, words):
    with pytest.raises(UnsupportedError, match=words):
        build(name, implementation, causal=True)


Tokens = tuple[Tensor, Tensor, Tensor, Tensor | None]


def twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Count each sink twice."""
    right = masks.with_sink_token
    monkeypatch.setattr(
        "attn_zoo.attention.dense.softmax.with_sink_token", lambda q, k, v, valid, sinks: right(q, k, v, valid, sinks + 2**0.5)
    )


def seen_by_padding(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each padded key count as one more sink."""
    right = masks.with_sink_token

    def wrong(q: Tensor, k: Tensor, v: Tensor, valid: Tensor | None, sinks: Tensor) -> Tokens:
        q, k, v, valid = right(q, k, v, valid, sinks)
        return q, k, v, None if valid is None else valid | True

    monkeypatch.setattr("attn_zoo.attention.dense.softmax.with_sink_token", wrong)


@pytest.mark.parametrize("mistake", [twice, seen_by_padding])
def test_the_kit_catches_them_where_an_implementation_differs_from_eager(mistake, monkeypatch):
    mistake(monkeypatch)
    with pytest.raises(Violation):
        kit("sinks-sdpa-implementation_agrees_with_eager")()


def test_the_kit_catches_a_scaled_sink_in_eager_and_definition_alike(monkeypatch):
    """Sinks start at 0, so it takes parameters that have moved, and softmax attention with those sinks to compare with."""
    right = masks.softmax_over_valid
    monkeypatch.setattr(
        "attn_zoo.attention.dense.softmax.softmax_over_valid",
        lambda scores, allowed, sinks: right(scores, allowed, None if sinks is None else sinks / D**0.5),
    )
    with pytest.raises(Violation, match="against softmax attention"):
        kit("sinks-eager-promises_hold_once_trained")()


def kit(setting: str) -> Callable[[], object]:
    return next(case for case in attention_checks("softmax") if case.setting == setting)
