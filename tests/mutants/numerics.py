"""Mutants that lose precision or apply dropout wrongly."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from attn_zoo.attention.linear.linear import Linear
from mutants.entering import breaks
from mutants.originals import PlainSoftmax


@breaks("single_precision_is_close", "softmax", "float32 against float64")
class HalvesInSecret(PlainSoftmax):
    """Rounds float32 queries to half precision."""

    def attend(self, query: Tensor, key: Tensor, value: Tensor, key_valid: Tensor | None) -> Tensor:
        rounded = query.half().to(query.dtype) if query.dtype == torch.float32 else query
        return super().attend(rounded, key, value, key_valid)


@breaks("every_size_runs_in_every_type", "softmax", "of the largest number, at 1 of", can={"exact": False})
class ShiftsOneSlopeInSingle(PlainSoftmax):
    """Adds a little to the gradient of one number of the queries in float32, and nothing to the output."""

    def attend(self, query: Tensor, key: Tensor, value: Tensor, key_valid: Tensor | None) -> Tensor:
        out = super().attend(query, key, value, key_valid)
        if query.dtype is not torch.float32:
            return out
        shifted = torch.zeros_like(out)
        shifted[-1, -1, -1, -1] = 0.01 * (query - query.detach())[-1, -1, -1, -1]
        return out + shifted


@breaks("large_inputs_stay_finite", "softmax", "inputs 30 times as large")
class Overflows(PlainSoftmax):
    """Takes exponentials of scores without subtracting the largest, as a public Performer does."""

    def attend(self, query: Tensor, key: Tensor, value: Tensor, key_valid: Tensor | None) -> Tensor:
        weights = (query @ key.mT / query.shape[-1] ** 0.5).exp()
        return weights @ value / weights.sum(dim=-1, keepdim=True)


@breaks("bfloat16_is_close", "linear", "BFloat16")
class KnowsNoBfloat(Linear):
    """Uses an operation that bfloat16 lacks, as public Nyström attentions do."""

    def attend(self, query: Tensor, key: Tensor, value: Tensor, key_valid: Tensor | None, **streams: Tensor) -> Tensor:
        rotation = torch.linalg.qr(torch.eye(query.shape[-1], dtype=query.dtype))[0]
        return super().attend(query @ rotation, key @ rotation, value, key_valid)


@breaks("bfloat16_is_close", "linear", "not implemented for 'BFloat16'")
class DrawsInTheDefaultType(Linear):
    """Draws a rotation when it is built, by an operation that bfloat16 lacks."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.register_buffer("rotation", torch.linalg.qr(torch.randn(4, 4))[0])


@breaks("bfloat16_is_close", "linear", "the median error of the outputs is")
class CountsInBfloat(Linear):
    """Adds and subtracts a large number, which bfloat16 rounds."""

    def attend(self, query: Tensor, key: Tensor, value: Tensor, key_valid: Tensor | None, **streams: Tensor) -> Tensor:
        return super().attend(query, key, (value + 300) - 300, key_valid)


@breaks("bfloat16_is_close", "linear", "gradient of key: the median error is 0.7")
class QuartersASlopeInBfloat(Linear):
    """Gives keys in bfloat16 a quarter of their gradient."""

    def attend(self, query: Tensor, key: Tensor, value: Tensor, key_valid: Tensor | None, **streams: Tensor) -> Tensor:
        if key.dtype is torch.bfloat16:
            key = key.detach() + 0.25 * (key - key.detach())
        return super().attend(query, key, value, key_valid)


@breaks("bfloat16_is_close", "linear", "there is no gradient of key, but there is one in float64")
class DropsASlopeInBfloat(Linear):
    """Gives keys in bfloat16 no gradient."""

    def attend(self, query: Tensor, key: Tensor, value: Tensor, key_valid: Tensor | None, **streams: Tensor) -> Tensor:
        return super().attend(query, key.detach() if key.dtype is torch.bfloat16 else key, value, key_valid)


@breaks("compiled_agrees", "softmax", "compiled by eager")
class CompilesOtherwise(PlainSoftmax):
    """Takes another path when it is compiled, with scores twice as large."""

    def attend(self, query: Tensor, key: Tensor, value: Tensor, key_valid: Tensor | None) -> Tensor:
        return super().attend(2 * query if torch.compiler.is_compiling() else query, key, value, key_valid)


@breaks("dropout_acts_in_training_only", "softmax", "scale what is not dropped")
class DropsWithoutScaling(PlainSoftmax):
    """Drops outputs without scaling up the survivors."""

    def attend(self, query: Tensor, key: Tensor, value: Tensor, key_valid: Tensor | None) -> Tensor:
        kept = 1 - self.options.dropout * self.training
        return super().attend(query, key, value, key_valid) * kept


@breaks("dropout_acts_in_training_only", "softmax", "causal=True gives the same output twice: nothing is dropped")
class NeverDropsCausally(PlainSoftmax):
    """Drops in the bidirectional form alone."""

    def attend(self, query: Tensor, key: Tensor, value: Tensor, key_valid: Tensor | None) -> Tensor:
        was, self.training = self.training, self.training and not self.geometry.causal
        out = super().attend(query, key, value, key_valid)
        self.training = was
        return out
