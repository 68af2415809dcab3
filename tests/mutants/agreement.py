"""Mutants that disagree with softmax attention, their definition, ``eager`` or the other order of products."""

from __future__ import annotations

import torch
from torch import Tensor

from attn_zoo.attention.low_rank.linformer import Linformer
from attn_zoo.contract import CompressingAttention
from mutants.entering import breaks
from mutants.originals import identity


@breaks("eager_agrees_with_the_definition", "differential", "layer 2 of 2, no_grad: ")
def computes_the_first_layer_everywhere(attend, self, query, key, value, key_valid):
    """Ignores the number of the layer, which its definition takes into account."""
    own, self.initial = self.initial, type(self).initial
    out = attend(query, key, value, key_valid)
    self.initial = own
    return out


@breaks("limit_is_softmax", "softmax", "against softmax attention")
def wrong_scale(attend, self, query, key, value, key_valid):
    """Divides by d instead of √d."""
    return attend(query / query.shape[-1] ** 0.5, key, value, key_valid)


class DoublesItsQueries(Linformer):
    """Doubles its queries, so that its limit is no softmax attention."""

    def attend_compressed(self, query: Tensor, key: Tensor, value: Tensor, valid: Tensor | None = None) -> Tensor:
        return super().attend_compressed(2 * query, key, value)


breaks("limit_is_softmax", "linformer", "against softmax attention", softmax_limit=identity(DoublesItsQueries))(DoublesItsQueries)


@breaks("implementation_agrees_with_eager", "softmax", "the error is", method="attend_sdpa")
def rough_kernel(attend_sdpa, self, query, key, value, key_valid):
    """Has a kernel that multiplies with ten-bit mantissas, as tensor cores do unless that is switched off."""
    rough = query + (query.half().to(query.dtype) - query).detach()
    return attend_sdpa(rough, key, value, key_valid)


@breaks("implementation_agrees_with_eager", "softmax", "gradient of value", method="attend_sdpa")
def kernel_without_gradient(attend_sdpa, self, query, key, value, key_valid):
    """Has a kernel whose backward pass gives the values no gradient."""
    return attend_sdpa(query, key, value.detach(), key_valid)


@breaks("compressing_first_agrees", "linformer", "compressing first against projecting first")
class CompressesAlike(Linformer):
    """Uses the map of the keys for the values as well when it compresses first."""

    def compress(self, tokens: Tensor, key_valid: Tensor | None) -> tuple[Tensor, Tensor]:
        keys, _ = super().compress(tokens, key_valid)
        return keys, keys.clone()

    compress_and_weigh = CompressingAttention.compress_and_weigh


@breaks("compressing_first_agrees", "linformer", "masses against the compressed mask", method="compress_and_weigh")
def weighs_padding_too(compress_and_weigh, self, tokens, key_valid):
    """Takes padded tokens for real ones when it weighs the bias."""
    return self.compress(tokens, key_valid), self.compress(torch.ones_like(tokens[..., :1]), None)


@breaks(
    "compressing_first_agrees", "linformer", "tokens of compress_and_weigh against those of compress", method="compress_and_weigh"
)
def weighs_alike(compress_and_weigh, self, tokens, key_valid):
    """Uses the map of the keys for the values as well when it weighs."""
    keys, _ = self.compress(tokens, key_valid)
    return (keys, keys), compress_and_weigh(tokens, key_valid)[1]


@breaks("compressing_first_agrees", "linformer", "compression_flops states", method="compression_flops")
def compresses_for_free(compression_flops, self, length, width, inputs):
    """Counts one of its two products."""
    return compression_flops(length, width, inputs) // 2
