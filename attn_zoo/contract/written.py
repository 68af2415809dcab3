"""State that training calls write, kept apart when gradient checkpointing repeats such a call in the backward pass.

A call draws a number from torch's generator of the CPU. A repeated call draws the same number, because checkpointing restores the
generator before it. So the number says which call is repeated: the module gets the state from before that call, computes and
writes as it did then, and afterwards has its present state again.

Limits: the caller must not set the generator back between two calls that one backward pass repeats, because they would draw the
same number. The first call on an input must not happen within a backward pass, because it counts as a repetition and is refused.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from attn_zoo.contract.errors import UnsupportedError
from attn_zoo.contract.untraced import untraced

if TYPE_CHECKING:
    from attn_zoo.contract.attention import Attention

KEPT_CALLS = 64
"""Latest training calls of a module that can be repeated."""


class EarlierStates(dict[int, dict[str, Tensor]]):
    """Buffers before each of the latest training calls, by the number that the call drew. Copies and pickles are empty."""

    def __reduce__(self) -> tuple[Any, ...]:
        return EarlierStates, ()


@untraced
@torch.no_grad()
def begin_training_call(module: Attention) -> dict[str, Tensor]:
    """Note the buffers that ``module.written`` names, or set them to what they were before the call that is repeated.

    Every call within a backward pass counts as a repetition.

    Returns:
        The buffers that ``end_training_call`` must put back; none unless the call is a repetition.

    Raises:
        UnsupportedError: the call is a repetition, and the state before it is not known.
    """
    present = {name: module.get_buffer(name) for name in module.written}
    if any(buffer.is_meta for buffer in present.values()):
        return {}
    number = int(torch.randint(2**62, (), device="cpu"))
    if torch._C._current_graph_task_id() == -1:
        earlier = module.earlier_states
        earlier.pop(number, None)  # there if the caller has set the generator back: the new call comes last
        with torch.inference_mode(False):
            earlier[number] = {name: buffer.clone() for name, buffer in present.items()}
        if len(earlier) > KEPT_CALLS:
            del earlier[next(iter(earlier))]
        return {}
    if number not in module.earlier_states:
        raise UnsupportedError(
            f"{module.card.name}: a training call is repeated in the backward pass, but the state before that call is not known. "
            "Gradient checkpointing must restore the random generator (preserve_rng_state=True), and at most "
            f"{KEPT_CALLS} training calls of one layer may lie between a call and its backward pass"
        )
    _set(module, {name: buffer.clone() for name, buffer in module.earlier_states[number].items()})
    return present


@untraced
def end_training_call(module: Attention, present: dict[str, Tensor]) -> None:
    """Put back what ``begin_training_call`` returned."""
    _set(module, present)


def _set(module: Attention, buffers: dict[str, Tensor]) -> None:
    for name, buffer in buffers.items():
        owner, _, own = name.rpartition(".")
        setattr(module.get_submodule(owner), own, buffer)
