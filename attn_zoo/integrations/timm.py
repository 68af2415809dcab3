"""Any mechanism inside a timm VisionTransformer, through its ``attn_layer`` argument."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from attn_zoo.contract import UnsupportedError
from attn_zoo.layer import MultiHeadAttention
from attn_zoo.registry import card


def attention_layer(name: str, *, length: int, implementation: str = "eager", **options: Any) -> type[MultiHeadAttention]:
    """A class to pass as ``attn_layer=``, with the mechanism, its options and the length bound in.

    timm asks for a class, tells it the width and the heads, and never the length: ``length`` counts
    patches and prefix tokens, such as the class token.

    Args:
        name: a registered attention.
        length: positions per image that the blocks see.
        implementation: a name on the card, or ``auto``.
        **options: the mechanism's own.

    Raises:
        UnknownNameError: no such attention.
    """
    entry = card(name)

    class TimmAttention(MultiHeadAttention):
        """timm's calling convention around ``MultiHeadAttention``; what cannot be honoured is refused."""

        def __init__(
            self,
            dim: int,
            num_heads: int = 8,
            qkv_bias: bool = False,
            qk_norm: bool = False,
            scale_norm: bool = False,
            proj_bias: bool = True,
            attn_drop: float = 0.0,
            proj_drop: float = 0.0,
            norm_layer: object = None,
            device: torch.device | str | None = None,
            dtype: torch.dtype | None = None,
        ) -> None:
            if qk_norm or scale_norm:
                raise UnsupportedError(f"{name} in timm: qk_norm and scale_norm are not offered; leave them False")
            if qkv_bias != proj_bias:
                raise UnsupportedError(f"{name} in timm: qkv_bias and proj_bias must agree, got {qkv_bias} and {proj_bias}")
            chosen = dict(options)
            if attn_drop > 0:
                if not hasattr(entry.options, "dropout"):
                    raise UnsupportedError(f"{name} has no attention weights to drop; use attn_drop_rate=0")
                chosen.setdefault("dropout", attn_drop)
            super().__init__(
                dim,
                num_heads,
                name,
                length=length,
                implementation=implementation,
                bias=qkv_bias,
                output_dropout=proj_drop,
                **chosen,
            )
            self.to(device=device, dtype=dtype)

        def forward(  # type: ignore[override]  # timm's own signature: masks by keyword, no context
            self,
            tokens: Float[Tensor, "batch length dim"],
            attn_mask: Tensor | None = None,
            is_causal: bool = False,
        ) -> Float[Tensor, "batch length dim"]:
            if attn_mask is not None or is_causal:
                raise UnsupportedError(f"{name} in timm: attn_mask and is_causal cannot be honoured; call the model without them")
            return super().forward(tokens)

    TimmAttention.__name__ = TimmAttention.__qualname__ = f"Timm_{entry.build.__name__}"
    return TimmAttention
