"""Mutants that fail when a sequence is read in steps."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from attn_zoo.attention.linear.linear import Linear
from attn_zoo.contract import Cost, Geometry, MemoryState
from mutants.entering import breaks, plant
from mutants.originals import ORIGINALS


@breaks("stepwise_matches_full", "linear", "output of 33 tokens, in pieces of random lengths, against one call", method="advance")
def forgets_the_last_token(advance, self, query, key, value, state, **streams):
    """Carries a state that lacks the last token of each piece."""
    out, after = advance(query, key, value, state)
    if value.shape[2] == 1:
        return out, replace(state, position=after.position)
    return out, replace(advance(query[:, :, 1:], key[:, :, :-1], value[:, :, :-1], state)[1], position=after.position)


@breaks("stepwise_matches_full", "linear", "token by token", method="advance")
def forgets_single_tokens(advance, self, query, key, value, state, **streams):
    """Has a path for single tokens that does not add the eighth token to the state."""
    out, after = advance(query, key, value, state)
    return out, replace(state, position=after.position) if value.shape[2] == 1 and state.position == 7 else after


@breaks("stepwise_matches_full", "linear", "a step with torch.float16 inputs returns torch.float32", method="advance")
def answers_in_the_dtype_of_its_state(advance, self, query, key, value, state, **streams):
    """Returns the outputs of steps in the dtype in which it computes them."""
    out, after = advance(query, key, value, state)
    return out.to(state.summed.dtype), after


@breaks("stepwise_matches_full", "linear", "float16 outputs in steps against one call", method="advance")
def forgets_in_sixteen_bits(advance, self, query, key, value, state, **streams):
    """Starts every piece of 16 bits from an empty state."""
    kept = 0.0 if value.dtype.itemsize == 2 else 1.0
    return advance(query, key, value, replace(state, summed=state.summed * kept))


@breaks("stepwise_matches_full", "linear", "gradient of key of 33 tokens", method="advance")
def detaches_its_state(advance, self, query, key, value, state, **streams):
    """Passes no gradient through the carried state."""
    return advance(query, key, value, replace(state, summed=state.summed.detach()))


@breaks(
    "stepwise_matches_full",
    "softmax",
    "cannot be called step by step, because it has no recurrent state",
    can={"stepwise": True},
    method="initial_state",
)
def stepwise_in_name(initial_state, self, batch, *, dtype=torch.float32, device=None):
    """Claims to read in steps and carries no state."""
    return MemoryState(torch.zeros(batch))


@breaks("request_checking_is_inherited", "linear", "overrides step; write advance instead", method="step")
def steps_unchecked(step, self, query, key, value, state, **streams):
    """Skips the check of the requests of its steps."""
    return self.advance(query, key, value, state)


@breaks("steps_leave_their_state_alone", "linear", "after 33 tokens, state.position must be 33; got 1", method="advance")
def counts_calls(advance, self, query, key, value, state, **streams):
    """Counts pieces instead of tokens in its position."""
    out, after = advance(query, key, value, state)
    return out, replace(after, position=state.position + 1)


@dataclass
class Soft:
    """State whose fields can be assigned, as it is not frozen."""

    summed: Tensor
    position: int
    nbytes: int


@breaks("steps_leave_their_state_alone", "linear", "Soft, the class of the state, is not frozen")
class HandsOutItsInside(Linear):
    """Carries a state that is not frozen."""

    def initial_state(self, batch: int, *, dtype: torch.dtype = torch.float32, device: Any = None) -> Any:
        first = super().initial_state(batch, dtype=dtype, device=device)
        return Soft(first.summed, first.position, first.nbytes)

    def advance(self, query: Any, key: Any, value: Tensor, state: Any, **streams: Tensor) -> tuple[Tensor, MemoryState]:
        return super().advance(query, key, value, MemoryState(state.summed, state.position))


@dataclass(frozen=True)
class Cached(MemoryState):
    """State of sums and of keys that they were made of."""

    keys: tuple[Tensor, ...] = ()

    @property
    def nbytes(self) -> int:
        return self.summed.nbytes + sum(key.nbytes for key in self.keys)


@breaks("carried_states_stay_as_small_as_stated", "linear", "after 165 tokens of 1 examples the state has", method="advance")
def keeps_keys_as_well(advance, self, query, key, value, state, **streams):
    """States a memory of fixed size and keeps the keys of late tokens as well."""
    out, after = advance(query, key, value, state)
    kept = (*getattr(state, "keys", ()), *((key.clone(),) if after.position > 160 else ()))
    return out, Cached(after.summed, after.position, kept)


@breaks(
    "carried_states_stay_as_small_as_stated",
    "linear",
    "has 576 bytes, but it keeps tensors of 1152 bytes in memory",
    method="advance",
)
def keeps_the_old_sums(advance, self, query, key, value, state, **streams):
    """Keeps a view of a tensor that also holds the sums before the step."""
    out, after = advance(query, key, value, state)
    return out, replace(after, summed=torch.stack([state.summed, after.summed])[1])


@dataclass(frozen=True)
class Modest(MemoryState):
    """Sums that report half of their bytes."""

    @property
    def nbytes(self) -> int:
        return self.summed.nbytes // 2


@breaks(
    "carried_states_stay_as_small_as_stated",
    "linear",
    "state.nbytes must be 576, the bytes of its tensors; got 288",
    method="advance",
)
def halves_its_bytes(advance, self, query, key, value, state, **streams):
    """Reports half of the bytes of its state."""
    out, after = advance(query, key, value, state)
    return out, Modest(after.summed, after.position)


@breaks("steps_keep_examples_apart", "linear", "in steps, batch mates 30 times as large", method="advance")
def starts_anew(advance, self, query, key, value, state, **streams):
    """Guards against overflow by dropping all sums once any in the batch is large."""
    out, after = advance(query, key, value, state)
    return out, replace(after, summed=after.summed * (after.summed.detach().abs().amax() < 2000))


@breaks("steps_keep_examples_apart", "linear", "an example in a batch against it alone, in steps", method="advance")
def carries_one_state(advance, self, query, key, value, state, **streams):
    """Carries the mean of the states over the batch."""
    out, after = advance(query, key, value, state)
    return out, replace(after, summed=after.summed.mean(dim=0, keepdim=True).expand_as(after.summed))


@breaks("unfit_steps_are_refused", "linear", "a state of fewer examples must raise ValueError, but it ran", method="advance")
def broadcasts_its_state(advance, self, query, key, value, state, **streams):
    """Accepts a state of one example for a whole batch."""
    whole = state.summed[:1].expand(len(value), -1, -1, -1)
    return advance(query, key, value, replace(state, summed=whole))


@breaks("empty_batches_step_or_are_refused", "linear", "IndexError", method="advance")
def looks_at_the_first_state(advance, self, query, key, value, state, **streams):
    """Reads the state of the first example, which an empty batch lacks."""
    state.summed[0].any()
    return advance(query, key, value, state)


@breaks(
    "empty_batches_step_or_are_refused",
    "linear",
    "a step of no examples that ends at token 16: state.position must be 16; got 0",
    method="advance",
)
def reads_nothing_of_nobody(advance, self, query, key, value, state, **streams):
    """Returns the given state unchanged for an empty batch."""
    out, after = advance(query, key, value, state)
    return out, after if len(value) else state


@breaks("empty_batches_step_or_are_refused", "linear", "no gradient reaches any input", method="advance")
def answers_nobody_anew(advance, self, query, key, value, state, **streams):
    """Returns a new tensor, without gradient, for an empty batch."""
    out, after = advance(query, key, value, state)
    return out if len(value) else torch.zeros_like(out), after


def stateless(geometry: Geometry, options: Any) -> Cost:
    return replace(ORIGINALS["linear"].cost(geometry, options), state_bytes=None)


STATED = "carried_states_stay_as_small_as_stated"
plant("StepsInSecret", "linear", "stepwise_matches_full", "stepwise (initial_state) is not declared", can={"stepwise": False})
plant("StepsWithoutOrder", "linear", "card_is_complete", "declares stepwise without causal", can={"causal": False})
plant("HidesItsState", "linear", STATED, "its cost must state state_bytes", cost=stateless)
