"""Base class of mechanisms that compress keys and values along the length."""

from __future__ import annotations

from jaxtyping import Bool, Float
from torch import Tensor

from attn_zoo.contract.attention import Attention, OptionsT


class CompressingAttention(Attention[OptionsT]):
    """Mechanism that compresses keys and values along the length before it compares them with queries.

    A layer may compress its tokens X first and then project the compressed tokens, because E (X W) = (E X) W for a compression
    E and a projection W. In both orders, ``attend_compressed`` computes the outputs.
    """

    def compressed_length(self) -> int | None:
        """Return the number of compressed keys. Return None if heads compress differently, because tokens then cannot be compressed
        once for all heads.
        """
        raise NotImplementedError

    def compression_flops(self, length: int, width: int, inputs: int) -> int:
        """Return the FLOPs to compress one example of ``length`` tokens with ``width`` channels.

        ``inputs`` is 1 if keys and values come from the same tokens, else 2.
        """
        raise NotImplementedError

    def compress(
        self, tokens: Float[Tensor, "batch keys dim"], key_valid: Bool[Tensor, "batch keys"] | None
    ) -> tuple[Float[Tensor, "batch r dim"], Float[Tensor, "batch r dim"]]:
        """Return two tensors: the tokens compressed for keys, and the tokens compressed for values. Padded tokens must already hold
        zeros.
        """
        raise NotImplementedError

    def compress_and_weigh(
        self, tokens: Float[Tensor, "batch keys dim"], key_valid: Bool[Tensor, "batch keys"] | None
    ) -> tuple[
        tuple[Float[Tensor, "batch r dim"], Float[Tensor, "batch r dim"]],
        tuple[Float[Tensor, "*batch r 1"], Float[Tensor, "*batch r 1"]],
    ]:
        """Return two pairs, each (for keys, for values). The first pair holds the compressed tokens. The second pair holds the
        mask of real tokens, compressed in the same way. The layer multiplies its bias by these numbers.
        """
        return self.compress(tokens, key_valid), self.compress(real_tokens(tokens, key_valid), key_valid)

    def compressed_valid(self, key_valid: Bool[Tensor, "batch keys"] | None) -> Bool[Tensor, "batch r"] | None:
        """Return a mask that is True for each compressed key that contains a real token, or None if all do. A mechanism overrides
        this if a compressed key can hold padding alone.
        """
        return None

    def attend_compressed(
        self,
        query: Float[Tensor, "batch heads queries head_dim"],
        key: Float[Tensor, "batch heads r head_dim"],
        value: Float[Tensor, "batch heads r head_dim"],
        valid: Bool[Tensor, "batch r"] | None = None,
    ) -> Float[Tensor, "batch heads queries head_dim"]:
        """Return the outputs of attention to the compressed keys that are ``valid``. If no key is valid, outputs must be finite,
        but may have any value.
        """
        raise NotImplementedError


def real_tokens(
    tokens: Float[Tensor, "batch keys dim"], key_valid: Bool[Tensor, "batch keys"] | None
) -> Float[Tensor, "batch keys 1"]:
    """Return the mask of real tokens in the dtype of ``tokens``: 1 for a real token, 0 for padding."""
    return tokens.new_ones(*tokens.shape[:2], 1) if key_valid is None else key_valid[..., None].to(tokens.dtype)
