"""Mechanisms with a random buffer, which is drawn when the mechanism is built. In training, it can be drawn again at intervals."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from attn_zoo.contract.attention import Attention, OptionsT
from attn_zoo.contract.claims import Geometry
from attn_zoo.contract.untraced import untraced


class RedrawnAttention(Attention[OptionsT]):
    """Mechanism with a random buffer. The class attribute ``drawn`` is the name of the buffer. In training, the buffer is drawn
    again at the first call and then after every ``options.redraw`` calls; 0 means never.

    The buffer ``training_calls`` counts the training calls. If a state dict without this buffer is loaded, the count starts at
    0.
    """

    drawn: str
    training_calls: Tensor

    def __init__(self, geometry: Geometry, options: OptionsT, implementation: str = "eager") -> None:
        super().__init__(geometry, options, implementation)
        self.register_buffer(self.drawn, self.draw())
        self.register_buffer("training_calls", torch.zeros((), dtype=torch.long))
        if options.redraw:
            self.written = (self.drawn, "training_calls")

    def draw(self) -> Tensor:
        """Return a new draw of the random buffer, from torch's global generator. Each mechanism overrides this method."""
        raise NotImplementedError(f"{type(self).__name__} must have a method draw, and has none. Define it")

    @torch.no_grad()
    def redraw(self) -> None:
        """Replace the random buffer by a new draw. The old tensor is not overwritten, because a backward pass may still need it."""
        before = self.get_buffer(self.drawn)
        with torch.inference_mode(False):
            drawn = self.draw().to(before)
        setattr(self, self.drawn, drawn)
        if getattr(self, "_is_replica", False):  # DataParallel drops the replica after the call, and keeps what its buffer shares
            before.copy_(drawn)

    def redraw_in_training(self) -> None:
        """Count a training call, and replace the random buffer by a new draw if one is due."""
        if self.training and self.options.redraw:
            self._count_and_redraw()

    @untraced
    def _count_and_redraw(self) -> None:
        calls = self.training_calls
        if calls.is_meta or calls.item() % self.options.redraw == 0:
            self.redraw()
        calls += 1

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        state_dict.setdefault(f"{prefix}training_calls", torch.zeros_like(self.training_calls))
        super()._load_from_state_dict(state_dict, prefix, *rest)
