"""Random buffers that are drawn when a mechanism is built, and redrawn in training on request."""

from __future__ import annotations

import torch
from torch import Tensor

from attn_zoo.contract.attention import Attention, OptionsT
from attn_zoo.contract.claims import Geometry


class RedrawnAttention(Attention[OptionsT]):
    """A mechanism whose buffer ``drawn`` is drawn when it is built, and redrawn every ``options.redraw`` training calls."""

    drawn: str

    def __init__(self, geometry: Geometry, options: OptionsT, implementation: str = "eager") -> None:
        super().__init__(geometry, options, implementation)
        self.register_buffer(self.drawn, self.draw())
        self._training_calls = 0

    def draw(self) -> Tensor:
        """Draw the buffer from torch's global generator. Overridden by each mechanism."""
        raise NotImplementedError(f"{type(self).__name__} has no method draw")

    @torch.no_grad()
    def redraw(self) -> None:
        """Replace the buffer by a new draw, in a tensor of its own: a backward pass may still need the old one."""
        setattr(self, self.drawn, self.draw().to(self.get_buffer(self.drawn)))

    def redraw_in_training(self) -> None:
        """Count a training call; redraw at the first, and again every ``options.redraw`` calls."""
        if self.training and self.options.redraw:
            if self._training_calls % self.options.redraw == 0:
                self.redraw()
            self._training_calls += 1
