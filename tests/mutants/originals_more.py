"""More sound attentions for mutants: some of the zoo, and one with a plane that turns."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from attn_zoo import card as card_of
from attn_zoo.contract import Geometry
from mutants.originals import ORIGINALS, Hashed, NoOptions


class Turning(Hashed):
    """``Hashed`` with a plane that every third training call turns towards the mean query, after the call."""

    calls: Tensor

    def __init__(self, geometry: Geometry, options: NoOptions, implementation: str = "eager") -> None:
        super().__init__(geometry, options, implementation)
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))
        self.written = ("plane", "calls")

    def attend(self, query: Tensor, key: Tensor, value: Tensor, key_valid: Tensor | None) -> Tensor:
        out = super().attend(query, key, value, key_valid)
        if self.training and self.is_due():
            self.turn(query.detach())
        return out

    def is_due(self) -> bool:
        self.calls += 1
        return bool(self.calls % 3 == 0)

    def turn(self, query: Tensor) -> None:
        self.plane = self.plane + 3 * query.mean(dim=(0, 1, 2))[:, None]


ORIGINALS["compressed"] = card_of("length_compression")
ORIGINALS["window"] = replace(card_of("local"), implementations=("eager",), variants={"neighbours": {"block": 4, "neighbours": 2}})
ORIGINALS["gated"] = replace(card_of("retention"), implementations=("eager",), variants={"raw": {"normalise": False}})
ORIGINALS["gating"] = replace(card_of("gated_linear"), implementations=("eager",), variants={})
ORIGINALS["features"] = replace(card_of("performer"), implementations=("eager",))
ORIGINALS["indexed"] = card_of("indexer")
ORIGINALS["chosen"] = card_of("moba")

Turning.card = ORIGINALS["turning"] = replace(ORIGINALS["hashed"], name="turning", title="turning", build=Turning)
