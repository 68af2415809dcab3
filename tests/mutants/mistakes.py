"""Mutants with a mistake in one step of a mechanism. Those of the gated delta rule stand in public issues on implementations."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from attn_zoo.attention.dense import differential
from attn_zoo.attention.linear import _chunked as chunked
from attn_zoo.attention.linear import log_linear
from attn_zoo.attention.linear._forget_gate import ForgetGate
from attn_zoo.attention.low_rank import agent
from mutants.entering import breaks, plant

DEFINITION, CAUSAL = "eager_agrees_with_the_definition", "causal_output_ignores_the_future"
SHORTER, PLACE, QUERIES = (
    "padding_amounts_to_shorter_inputs",
    "padding_position_does_not_matter",
    "padded_queries_have_no_influence",
)
OFF, PADDED = "from the definition", "positions padded to"


def during(where: Any, name: str, wrong: Callable[[Any], Any]) -> Any:
    """Return a function for ``plant`` that replaces ``name`` by ``wrong`` (a function of what is right) during a call."""

    def around(attend: Any, self: Any, *given: Any, **streams: Any) -> Tensor:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(where, name, wrong(getattr(where, name)))
            return attend(*given, **streams)

    return around


def one_map_only(right: Any) -> Any:
    """Mask the first of two maps alone."""
    masked = itertools.cycle([True, False])
    return lambda scores, allowed: right(scores, allowed if next(masked) else None)


def from_the_query(right: Any) -> Any:
    """Parts by distance, so a token changes its part at every step; no memory of fixed parts has such weights."""

    def wrong(place: Tensor, most: int) -> Tensor:
        return (place[..., :, None] - place[..., None, :]).abs().float().add(1).log2().ceil().long().clamp(max=most - 1)

    return lambda place, most: right(place, most) if place.dim() == 2 else wrong(place, most)


POOLED = during(agent, "landmarks", lambda right: lambda most, valid, query: right(most, None, query))
plant("PoolsPaddedQueries", "agent", "padded_queries_have_no_influence", "padded queries hold", POOLED)
plant("PoolsPadding", "agent", SHORTER, PADDED, POOLED)
ONE_MAP = during(differential, "softmax_over_valid", one_map_only)
plant("MasksOneMapOnly", "differential", CAUSAL, "outputs before position", ONE_MAP)
plant("MasksOneMapOfPadding", "differential", SHORTER, PADDED, ONE_MAP)
plant("LeavesOutTheNorm", "differential", DEFINITION, OFF, during(F, "rms_norm", lambda _: lambda out, shape, eps: out))
plant("ReadsTheWholeChunk", "gated_slot", CAUSAL, "outputs before position", during(Tensor, "tril", lambda _: lambda self: self))
plant("CutsPartsFromTheQuery", "log_linear", DEFINITION, OFF, during(log_linear, "_parts", from_the_query))
IN_PLACE = during(log_linear, "_real_first", lambda _: lambda read, valid, *tensors: read(*tensors))
plant("CountsPaddingInParts", "log_linear", SHORTER, PADDED, IN_PLACE)
WITHOUT_DECAY = during(chunked, "_weights", lambda _: lambda rows, key, sums: [(x @ key.mT).tril() for x in rows])
plant("WeighsAChunkWithoutDecay", "gated_delta_rule", DEFINITION, OFF, WITHOUT_DECAY)
OVER_PADDING = during(ForgetGate, "forward", lambda right: lambda self, logits, key_valid: right(self, logits, None))
plant("ForgetsOverPadding", "gated_delta_rule", PLACE, "the real tokens beside padding", OVER_PADDING)


@breaks(SHORTER, "agent", PADDED, method="mixed")
def shows_agents_padding(mixed, self, softmax, *given):
    return mixed(lambda q, k, v, _: softmax(q, k, v, None), *given)


@breaks("padding_gets_no_weight", "based", "stay in the normaliser", method="phi")
def lets_padding_keep_its_constant(phi, self, x, valid=None, start=0):
    """Keeps the feature 1 of a padded key, so padding counts in the sum of weights."""
    return phi(x)


@breaks(DEFINITION, "based", OFF, method="phi")
def forgets_the_half(phi, self, x, valid=None, start=0):
    features, f = phi(x, valid, start), min(self.options.channels, x.shape[-1])
    return torch.cat([features[..., : 1 + f], 2**0.5 * features[..., 1 + f :]], dim=-1)


@breaks(DEFINITION, "differential", OFF, method="weight")
def leaves_out_the_initial_weight(weight, self):
    return weight() - self.initial


@breaks(DEFINITION, "gated_slot", OFF, method="by_chunks")
def forgets_one_token_late(by_chunks, self, rows, state):
    return by_chunks([*rows[:3], F.pad(rows[3][:, :, :-1], (0, 0, 1, 0))], state)


@breaks(DEFINITION, "log_linear", OFF, method="_by_chunks")
def weighs_by_the_key(by_chunks, self, *tensors):
    """Weighs parts by the key's time, not the query's."""
    return by_chunks(*tensors[:4], tensors[4].roll(1, dims=2))


@breaks(DEFINITION, "rwkv7", OFF, method="updates")
def removes_after_the_decay(updates, self, *given, **streams):
    """Removes what the memory holds after the decay, as Kimi delta attention does."""
    found = updates(*given, **streams)
    return found._replace(probe=found.probe * found.log_decay.exp())


@breaks(DEFINITION, "gated_delta_rule", OFF, method="updates")
def decays_after_the_correction(updates, self, *given, **streams):
    found = updates(*given, **streams)
    return found._replace(log_decay=F.pad(found.log_decay[:, :, :-1], (0, 0, 1, 0)))


@breaks(DEFINITION, "gated_delta_rule", OFF, method="updates")
def clips_the_strength_at_one(updates, self, *given, **streams):
    found = updates(*given, **streams)
    return found._replace(strength=found.strength.clamp(max=1))
