"""Mutants that disagree with softmax attention, their definition, ``eager`` or the other order of products."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from attn_zoo.attention.dense.differential import Differential
from attn_zoo.attention.low_rank.linformer import Linformer
from attn_zoo.contract import CompressingAttention
from mutants.entering import breaks
from mutants.originals import PlainSoftmax, identity


@breaks("eager_agrees_with_the_definition", "differential", "layer 2 of 2, no_grad: output differs")
class ComputesTheFirstLayerEverywhere(Differential):
    """Ignores the number of the layer, which its definition takes into account."""

    def attend(self, query: Tensor, key: Tensor, value: Tensor, key_valid: Tensor | None) -> Tensor:
        own, self.initial = self.initial, type(self).initial
        out = super().attend(query, key, value, key_valid)
        self.initial = own
        return out


@breaks("limit_is_softmax", "softmax", "against softmax attention")
class WrongScale(PlainSoftmax):
    """Divides by d instead of √d."""

    def attend(self, query: Tensor, key: Tensor, value: Tensor, key_valid: Tensor | None) -> Tensor:
        return super().attend(query / query.shape[-1] ** 0.5, key, value, key_valid)


class DoublesItsQueries(Linformer):
    """Doubles its queries, so that its limit is no softmax attention."""

    def attend_compressed(self, query: Tensor, key: Tensor, value: Tensor, valid: Tensor | None = None) -> Tensor:
        return super().attend_compressed(2 * query, key, value)


breaks("limit_is_softmax", "linformer", "against softmax attention", softmax_limit=identity(DoublesItsQueries))(DoublesItsQueries)


@breaks("implementation_agrees_with_eager", "softmax", "the error is")
class RoughKernel(PlainSoftmax):
    """Has a kernel that multiplies with ten-bit mantissas, as tensor cores do unless that is switched off."""

    def attend_sdpa(self, query: Tensor, key: Tensor, value: Tensor, key_valid: Tensor | None) -> Tensor:
        rough = query + (query.half().to(query.dtype) - query).detach()
        return super().attend_sdpa(rough, key, value, key_valid)


@breaks("implementation_agrees_with_eager", "softmax", "gradient of value")
class KernelWithoutGradient(PlainSoftmax):
    """Has a kernel whose backward pass gives the values no gradient."""

    def attend_sdpa(self, query: Tensor, key: Tensor, value: Tensor, key_valid: Tensor | None) -> Tensor:
        return super().attend_sdpa(query, key, value.detach(), key_valid)


@breaks("compressing_first_agrees", "linformer", "compressing first against projecting first")
class CompressesAlike(Linformer):
    """Uses the map of the keys for the values as well when it compresses first."""

    def compress(self, tokens: Tensor, key_valid: Tensor | None) -> tuple[Tensor, Tensor]:
        keys, _ = super().compress(tokens, key_valid)
        return keys, keys.clone()

    compress_and_weigh = CompressingAttention.compress_and_weigh


@breaks("compressing_first_agrees", "linformer", "masses against the compressed mask")
class WeighsPaddingToo(Linformer):
    """Takes padded tokens for real ones when it weighs the bias."""

    def compress_and_weigh(self, tokens: Tensor, key_valid: Tensor | None) -> Any:
        return self.compress(tokens, key_valid), self.compress(torch.ones_like(tokens[..., :1]), None)


@breaks("compressing_first_agrees", "linformer", "tokens of compress_and_weigh against those of compress")
class WeighsAlike(Linformer):
    """Uses the map of the keys for the values as well when it weighs."""

    def compress_and_weigh(self, tokens: Tensor, key_valid: Tensor | None) -> Any:
        keys, _ = self.compress(tokens, key_valid)
        return (keys, keys), super().compress_and_weigh(tokens, key_valid)[1]


@breaks("compressing_first_agrees", "linformer", "compression_flops states")
class CompressesForFree(Linformer):
    """Counts one of its two products."""

    def compression_flops(self, length: int, width: int, inputs: int) -> int:
        return super().compression_flops(length, width, inputs) // 2
