"""Buffers that training calls write, and which stay correct when gradient checkpointing repeats a call in the backward pass.

Each call draws a number from torch's random generator of the CPU. Checkpointing restores the generator before it repeats a
call, so the repetition draws the same number as the first call. This number identifies the first call. During the repetition,
the module has the buffers that it had before the first call. Afterwards it gets its present buffers back.

Two cases raise ``UnsupportedError``. In the first case, the generator is reset between two calls with different buffers, so both
draw the same number, and one backward pass repeats both. In the second case, the first call on an input is made within a backward
pass, so it counts as a repetition.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from attn_zoo.contract.errors import UnsupportedError
from attn_zoo.contract.untraced import untraced

if TYPE_CHECKING:
    from attn_zoo.contract.attention import Attention

KEPT_CALLS = 64
"""Maximum number of training calls per module that gradient checkpointing can repeat. Older calls are forgotten."""


@dataclass
class EarlierState:
    """Buffers of a module before a training call, and whether the call was repeated. A random number identifies the call.
    ``doubtful`` is True if an earlier call with other buffers has the same number, so a repetition could belong to either call.
    """

    buffers: dict[str, Tensor]
    repeated: bool = False
    doubtful: bool = False

    def follows(self, before: EarlierState) -> None:
        """Set ``doubtful``. The argument ``before`` is the state of an earlier call with the same random number.

        If the earlier call was already repeated, ``doubtful`` becomes False. Otherwise it becomes True if the buffers of the
        two calls differ, or if ``before`` is doubtful.
        """
        same = all(torch.equal(buffer, before.buffers[name]) for name, buffer in self.buffers.items())
        self.doubtful = not before.repeated and (before.doubtful or not same)


class EarlierStates(dict[int, EarlierState]):
    """Dictionary of the states of a module before its latest training calls, by the random numbers that identify the calls. Copies
    and pickles of the dictionary are empty.
    """

    def __reduce__(self) -> tuple[Any, ...]:
        return EarlierStates, ()


@untraced
@torch.no_grad()
def begin_training_call(module: Attention) -> dict[str, Tensor]:
    """Prepare a training call that changes the buffers that ``module.written`` names. A first call saves the values of these
    buffers. If gradient checkpointing repeats the call, the buffers get the values that they had before the first call.

    Every call within a backward pass counts as a repetition.

    Returns:
        For a repetition, the buffers by name as they were before this function changed them; ``end_training_call`` must restore
        them. Otherwise an empty dictionary.

    Raises:
        UnsupportedError: the call is a repetition, and the values before the first call are not known.
    """
    present = {name: module.get_buffer(name) for name in module.written}
    if any(buffer.is_meta for buffer in present.values()):
        return {}
    number = int(torch.randint(2**62, (), device="cpu"))
    if torch._C._current_graph_task_id() == -1:
        earlier = module.earlier_states
        with torch.inference_mode(False):
            now = EarlierState({name: buffer.clone() for name, buffer in present.items()})
        if before := earlier.pop(number, None):  # the caller has set the generator back
            now.follows(before)
        earlier[number] = now
        if len(earlier) > KEPT_CALLS:
            del earlier[next(iter(earlier))]
        return {}
    found = module.earlier_states.get(number)
    if found is None or found.doubtful:
        raise UnsupportedError(
            f"{module.card.name}: gradient checkpointing repeats a training call, but the state before this call is unknown. "
            "Use preserve_rng_state=True, set no seed between calls (torch.manual_seed, fork_rng), and make at most "
            f"{KEPT_CALLS} training calls of a layer before its backward pass"
        )
    found.repeated = True
    _set(module, {name: buffer.clone() for name, buffer in found.buffers.items()})
    return present


@untraced
def end_training_call(module: Attention, present: dict[str, Tensor]) -> None:
    """Set the buffers of the module back to ``present``, which ``begin_training_call`` returned."""
    _set(module, present)


def _set(module: Attention, buffers: dict[str, Tensor]) -> None:
    for name, buffer in buffers.items():
        owner, _, own = name.rpartition(".")
        setattr(module.get_submodule(owner), own, buffer)
