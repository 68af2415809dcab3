"""Sound mechanisms of kinds that the zoo lacks pass the checks that doubted them."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from mutants.originals import ORIGINALS, PlainSoftmax
from torch import Tensor, nn

from attn_zoo.attention.dense.softmax import Options
from attn_zoo.conformance import attention_checks, run_cases
from attn_zoo.conformance.sizes import Size, Sizes
from attn_zoo.contract import Attention, Geometry, allowed_pairs, softmax_over_valid


class InBlocks(PlainSoftmax):
    """Attends within blocks of 8 positions, so the first position of a block sees itself only."""

    def attend(self, query: Tensor, key: Tensor, value: Tensor, key_valid: Tensor | None) -> Tensor:
        block = torch.arange(key.shape[2]) // 8
        same, allowed = block[:, None] == block, allowed_pairs(query, key, key_valid, causal=self.geometry.causal)
        return softmax_over_valid(query @ key.mT, same if allowed is None else same & allowed) @ value


class OfTheLongest(PlainSoftmax):
    """Attends to the 18 longest keys of all, whatever the query."""

    def attend(self, query: Tensor, key: Tensor, value: Tensor, key_valid: Tensor | None) -> Tensor:
        length = key.norm(dim=-1) if key_valid is None else key.norm(dim=-1).masked_fill(~key_valid[:, None], -1)
        least = length.topk(min(18, key.shape[2])).values[..., -1:].clamp(min=0)
        return softmax_over_valid(query @ key.mT, (length >= least)[:, :, None]) @ value


class HasAFrozenParameter(PlainSoftmax):
    """Holds a parameter that no training moves."""

    def __init__(self, geometry: Geometry, options: Options, implementation: str = "eager") -> None:
        super().__init__(geometry, options, implementation)
        self.scale = nn.Parameter(torch.ones(geometry.heads, 1, 1), requires_grad=False)

    def attend(self, query: Tensor, key: Tensor, value: Tensor, key_valid: Tensor | None) -> Tensor:
        return super().attend(query * self.scale.detach(), key, value, key_valid)


class MixesPairs(PlainSoftmax):
    """Subtracts from each head a part of its neighbour in a pair, so an odd last head is alone."""

    def attend(self, query: Tensor, key: Tensor, value: Tensor, key_valid: Tensor | None) -> Tensor:
        out = super().attend(query, key, value, key_valid)
        neighbour = (torch.arange(out.shape[1]) ^ 1).clamp(max=out.shape[1] - 1)
        return out - 0.3 * out[:, neighbour]


@pytest.mark.parametrize(
    ("kind", "check"),
    [
        (InBlocks, "causal_output_sees_the_past"),
        (InBlocks, "every_position_gets_a_gradient"),
        (OfTheLongest, "every_position_counts_at_every_size"),
        (HasAFrozenParameter, "resizing_keeps_what_was_trained"),
        (HasAFrozenParameter, "gradients_match_finite_differences"),
        (MixesPairs, "heads_keep_to_themselves"),
    ],
)
def test_a_sound_mechanism_passes(kind: type[Attention], check: str, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = Sizes("sound", "0", tuple(Size(length, 1, 8) for length in (9, 301, 63, 64, 65)))
    monkeypatch.setattr("attn_zoo.conformance.subject.drawn_sizes", lambda entry: sizes)
    claims = {"causal": kind is not OfTheLongest, "cross": kind is not InBlocks, "mixes_heads": kind is MixesPairs}
    can = replace(ORIGINALS["softmax"].can, exact=False, **claims)
    kind.card = replace(ORIGINALS["softmax"], build=kind, can=can, implementations=("eager",), variants={})
    (case,) = (case for case in attention_checks(kind.card) if case.check == check)
    assert run_cases("sound", [case]).results[0].status == "passed", str(run_cases("sound", [case]))
