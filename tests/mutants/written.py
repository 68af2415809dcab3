"""Mutants whose training calls write state that checkpoints lack, or that gradient checkpointing writes twice."""

from __future__ import annotations

import torch
from torch import Tensor

from attn_zoo.contract import Geometry
from mutants.entering import breaks
from mutants.originals import NoOptions, PlainSoftmax
from mutants.originals_more import Turning

CHECKPOINTING, GOES_ON = "checkpointing_changes_nothing", "training_goes_on_from_the_state_dict"


@breaks(CHECKPOINTING, "turning", "use_reentrant=False")
class TurnsTwice(Turning):
    """Does not say which buffers it writes, so a repeated call turns the plane again."""

    def __init__(self, geometry: Geometry, options: NoOptions, implementation: str = "eager") -> None:
        super().__init__(geometry, options, implementation)
        self.written = ()


@breaks(CHECKPOINTING, "turning", "use_reentrant=True")
class TurnsWithGradientsOnly(Turning):
    """Turns its plane only in calls that record gradients, which the first call under reentrant checkpointing does not."""

    def turn(self, query: Tensor) -> None:
        if torch.is_grad_enabled():
            super().turn(query)


@breaks(CHECKPOINTING, "turning", "use_reentrant=False")
class DoesNotCountRepeatedCalls(Turning):
    """Says that it writes its plane, but not its counter."""

    def __init__(self, geometry: Geometry, options: NoOptions, implementation: str = "eager") -> None:
        super().__init__(geometry, options, implementation)
        self.written = ("plane",)


@breaks(CHECKPOINTING, "softmax", "use_reentrant=False")
class DropsByItsOwnGenerator(PlainSoftmax):
    """Draws its dropout from a generator that gradient checkpointing does not restore."""

    generator = torch.Generator().manual_seed(5)

    def attend(self, query: Tensor, key: Tensor, value: Tensor, key_valid: Tensor | None) -> Tensor:
        if self.dropout_rate:
            value = value * (torch.rand(value.shape, generator=self.generator) >= self.dropout_rate).to(value)
        return super().attend(query, key, value, key_valid)


@breaks(GOES_ON, "turning", "after loading the state dict")
class CountsInPython(Turning):
    """Counts its training calls in an attribute, which the state dict lacks."""

    count = 0

    def is_due(self) -> bool:
        self.count += 1
        return self.count % 3 == 0


@breaks(GOES_ON, "turning", "after loading the state dict")
class ForgetsItsCounter(Turning):
    """Leaves its counter out of the state dict."""

    def __init__(self, geometry: Geometry, options: NoOptions, implementation: str = "eager") -> None:
        super().__init__(geometry, options, implementation)
        self.register_buffer("calls", torch.zeros((), dtype=torch.long), persistent=False)
