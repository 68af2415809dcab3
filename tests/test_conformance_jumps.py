"""Mechanisms with a kink pass the comparison of float32 with float64, and errors of float32 fail it, with or without a kink."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from mutants.originals import ORIGINALS, PlainSoftmax
from torch import Tensor

from attn_zoo.conformance import Result, agreement, attention_checks, jumps, run_cases
from attn_zoo.conformance.requests import Request
from attn_zoo.conformance.sizes import Size, Sizes
from attn_zoo.conformance.subject import Subject

TYPES, SINGLE, TWIN = "every_size_runs_in_every_type", "single_precision_is_close", "implementation_agrees_with_eager"


class Kinked(PlainSoftmax):
    """Scores are max(cos(q, k), 0), divided by their sum plus 0.01."""

    def attend(self, query: Tensor, key: Tensor, value: Tensor, key_valid: Tensor | None) -> Tensor:
        query, key = (x / x.norm(dim=-1, keepdim=True).clamp(min=0.01) for x in (query, key))
        weights = (query @ key.mT).relu()
        if self.geometry.causal:
            weights = weights.tril()
        if key_valid is not None:
            weights = weights * key_valid[:, None, None, :]
        return weights @ value / (weights.sum(dim=-1, keepdim=True) + 0.01)

    def attend_sdpa(self, query: Tensor, key: Tensor, value: Tensor, key_valid: Tensor | None) -> Tensor:
        """Multiply in another order, so that other scores change their sign."""
        length = query.norm(dim=-1, keepdim=True).clamp(min=0.01)
        return self.attend(query.flip(-1) / length, key.flip(-1), value, key_valid)


def shifted(share: float, places: int) -> type[Kinked]:
    """Return a mechanism whose gradient of the queries in float32 is wrong at some numbers by a share of about the largest."""

    class Shifted(Kinked):
        def attend(self, query: Tensor, key: Tensor, value: Tensor, key_valid: Tensor | None) -> Tensor:
            out = super().attend(query, key, value, key_valid)
            if query.dtype is torch.float32:
                added = torch.zeros_like(out)
                added[:, :, -2:-1, :places] = share * (query - query.detach())[:, :, -2:-1, :places]
                out = out + added
            return out

    return Shifted


class Cancels(Kinked):
    """Adds and subtracts a large number, which float32 rounds and float64 does not."""

    def attend(self, query: Tensor, key: Tensor, value: Tensor, key_valid: Tensor | None) -> Tensor:
        return super().attend(query, key, (value + 1e4) - 1e4, key_valid)


class Amplifies(Kinked):
    """Multiplies each rounding of a query by 10,000: float64 moves as much as float32, but smoothly."""

    def attend(self, query: Tensor, key: Tensor, value: Tensor, key_valid: Tensor | None) -> Tensor:
        return super().attend(query + (1e4 * (query * key[:, :, :1]).sum(dim=-1, keepdim=True)).sin(), key, value, key_valid)


def result(build: type[Kinked], check: str, name: str = "kinked3", implementation: str = "eager") -> Result:
    build.card = replace(ORIGINALS["softmax"], name=name, build=build, can=replace(ORIGINALS["softmax"].can, exact=False))
    build.card = replace(build.card, implementations=("eager", "sdpa")) if implementation != "eager" else build.card
    cases = [case for case in attention_checks(build.card) if case.check == check and case.variant == "default"]
    (case,) = (case for case in cases if case.implementation == implementation)
    return run_cases(name, [case]).results[0]


def put_kinks(monkeypatch: pytest.MonkeyPatch, rows: int) -> None:
    """Make the last queries of one head orthogonal to the keys at their positions, so that roundings decide the signs of scores."""
    drawn = Subject.draw

    def draw(self: Subject, *given: Any, **settings: Any) -> Request:
        request = drawn(self, *given, **settings)
        assert request.query is not None and request.key is not None
        if request.query.shape != request.key.shape or request.query.shape[2] == 1:
            return request
        along = (request.query * request.key).sum(dim=-1, keepdim=True) / request.key.square().sum(dim=-1, keepdim=True)
        along[:-2], along[:, 1:], along[:, :, :-rows] = 0, 0, 0
        return replace(request, query=request.query - along * request.key)

    few = Sizes("kinked", "0", tuple(Size(length, 2, 16) for length in (2, 9, 64, 129, 301, 301, 301)))
    monkeypatch.setattr(Subject, "draw", draw)
    monkeypatch.setattr("attn_zoo.conformance.subject.drawn_sizes", lambda entry: few)


@pytest.mark.parametrize(("check", "implementation", "rows"), [(TYPES, "eager", 2), (SINGLE, "eager", 9), (TWIN, "sdpa", 1)])
def test_a_score_that_changes_its_sign_by_a_rounding_passes(check: str, implementation: str, rows: int, monkeypatch) -> None:
    put_kinks(monkeypatch, rows)
    monkeypatch.setattr(agreement, "NEARBY", 1)  # more copies meet the kink by chance, on some processors
    found = result(Kinked, check, implementation=implementation)
    assert found.status == "passed", found
    monkeypatch.setattr(jumps, "COPIES", 0)
    assert result(Kinked, check, implementation=implementation).status == "failed"


@pytest.mark.parametrize("name", ["kinked3", "kinked8", "kinked15"])
def test_names_whose_draws_have_a_kink_pass(name: str) -> None:
    """With version 0.1.0, the draws of these names have a score that changes its sign."""
    found = result(Kinked, TYPES, name)
    assert found.status == "passed", found


@pytest.mark.parametrize("check", [TYPES, SINGLE])
@pytest.mark.parametrize("build", [shifted(0.01, 1), shifted(0.01, 3), Cancels, Amplifies])
def test_an_error_of_float32_fails_beside_kinks(build: type[Kinked], check: str, monkeypatch) -> None:
    put_kinks(monkeypatch, 1)
    found = result(build, check)
    assert found.status == "failed" and "These numbers do not jump in float64" in found.detail, found
    assert "Compute every step in the dtype of the inputs" in found.detail


class Selective(Kinked):
    """Divides by the sum of the weights. Where no cosine is positive, the output is zero."""

    def attend(self, query: Tensor, key: Tensor, value: Tensor, key_valid: Tensor | None) -> Tensor:
        ones = torch.ones_like(value[..., :1])
        both = super().attend(query, key, torch.cat([value, ones], dim=-1), key_valid)
        return both[..., :-1] / both[..., -1:].clamp(min=1e-12)


class SelectiveInItsNormaliser(Selective):
    """Leaves padded keys in the normaliser, each with the weight 0.1."""

    def attend(self, query: Tensor, key: Tensor, value: Tensor, key_valid: Tensor | None) -> Tensor:
        weight = torch.zeros_like(value[:, :1, :1, :1])
        if key_valid is not None:
            weight = weight + 0.1 * (~key_valid).sum(dim=-1)[:, None, None, None]
        return super().attend(query, key, value, key_valid) / (1 + weight)


class ForgetsAQuery(Selective):
    """Gives zeros for the first query if there is a mask."""

    def attend(self, query: Tensor, key: Tensor, value: Tensor, key_valid: Tensor | None) -> Tensor:
        out = super().attend(query, key, value, key_valid)
        return out if key_valid is None else torch.cat([torch.zeros_like(out[:, :, :1]), out[:, :, 1:]], dim=2)


@pytest.mark.parametrize("name", ["kinked3", "kinked8", "kinked15", "relu"])
def test_a_query_without_any_weight_is_no_padding_in_the_normaliser(name: str) -> None:
    found = result(Selective, "padding_gets_no_weight", name)
    assert found.status == "passed" and not found.detail, found
    for wrong in (SelectiveInItsNormaliser, ForgetsAQuery):
        found = result(wrong, "padding_gets_no_weight", name)
        assert found.status == "failed" and "stay in the normaliser" in found.detail
