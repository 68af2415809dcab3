"""Mutants whose training calls write state that checkpoints lack, or that gradient checkpointing writes twice."""

from __future__ import annotations

import torch
from torch import Tensor

from attn_zoo.contract import AuxiliaryLoss
from mutants.entering import breaks
from mutants.originals import PlainSoftmax

CHECKPOINTING, GOES_ON = "checkpointing_changes_nothing", "training_goes_on_from_the_state_dict"


@breaks(CHECKPOINTING, "redrawn", "use_reentrant=True", method="redraw_in_training")
def draws_with_gradients_only(redraw_in_training, self):
    """Draws its features only in calls that record gradients, which the first call under reentrant checkpointing does not."""
    if torch.is_grad_enabled():
        redraw_in_training()


@breaks(CHECKPOINTING, "redrawn", "use_reentrant=False", method="__init__")
def does_not_count_repeated_calls(init, self, *given):
    """Says that it writes its features, but not its counter."""
    init(*given)
    self.written = ("directions",)


@breaks(CHECKPOINTING, "softmax", "use_reentrant=False")
class DropsByItsOwnGenerator(PlainSoftmax):
    """Draws its dropout from a generator that gradient checkpointing does not restore."""

    generator = torch.Generator().manual_seed(5)

    def attend(self, query: Tensor, key: Tensor, value: Tensor, key_valid: Tensor | None) -> Tensor:
        if self.dropout_rate:
            value = value * (torch.rand(value.shape, generator=self.generator) >= self.dropout_rate).to(value)
        return super().attend(query, key, value, key_valid)


class Unguarded(AuxiliaryLoss):
    """Holds the auxiliary loss of every call, also of those that gradient checkpointing repeats."""

    term = None


@breaks(
    CHECKPOINTING, "indexer", "auxiliary loss after the backward pass with checkpointing, use_reentrant=False", method="__init__"
)
def leaves_a_second_auxiliary_loss(init, self, *given):
    """Stores the auxiliary loss of a repeated call, which the next training step would add."""
    init(*given)
    self.auxiliary = Unguarded()


class Forgetful(AuxiliaryLoss):
    """Does not hold whether the call recorded gradients."""

    recorded = property(lambda _: True, lambda *_: None)


@breaks(CHECKPOINTING, "indexer", "gradient of index_query with checkpointing, use_reentrant=True", method="__init__")
def trains_nothing_if_reentrant(init, self, *given):
    """Has an auxiliary loss without gradients if the first call is made under reentrant checkpointing."""
    init(*given)
    self.auxiliary = Forgetful()


@breaks(GOES_ON, "redrawn", "after loading the state dict", method="_load_from_state_dict")
def forgets_its_counter(load_from_state_dict, self, state_dict, prefix, *rest):
    """Counts from 0 after loading a state dict."""
    state_dict[f"{prefix}training_calls"] = torch.zeros_like(self.training_calls)
    load_from_state_dict(state_dict, prefix, *rest)
