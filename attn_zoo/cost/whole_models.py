"""Whole models of other libraries before and after their attention is replaced by one of the zoo, and their inputs."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from attn_zoo.rows import RowName

GPT2 = {"n_layer": 2, "n_embd": 256, "n_head": 4, "attn_pdrop": 0.0, "vocab_size": 1000, "bos_token_id": None, "eos_token_id": None}
"""Config of the decoder, except its number of positions."""
PROMPT = 16
"""Number of tokens in the prompt."""


def random_images(size: int, batch: int, length: int, dtype: torch.dtype) -> tuple[Tensor, ...]:
    """Random images (batch, 3, size, size)."""
    return (torch.randn(batch, 3, size, size, dtype=dtype),)


def random_ids(tokens: int, batch: int, length: int, dtype: torch.dtype) -> tuple[Tensor, ...]:
    """Random ids (batch, tokens) below 1,000."""
    return (torch.randint(1, 1000, (batch, tokens)),)


class Generating(nn.Module):
    """Greedy generation up to a number of tokens, from the state of the mechanism or by recomputing the whole sequence."""

    def __init__(self, model: Any, tokens: int, cached: bool) -> None:
        super().__init__()
        self.model, self.tokens, self.cached = model, tokens, cached

    def forward(self, ids: Tensor) -> Tensor:
        """Ids (batch, prompt) -> (batch, tokens)."""
        new = self.tokens - ids.shape[1]
        how = {"max_new_tokens": new, "min_new_tokens": new, "do_sample": False, "use_cache": self.cached}
        return self.model.generate(ids, attention_mask=torch.ones_like(ids), eos_token_id=None, pad_token_id=0, **how)


def build_model(name: str, role: str, row: RowName, depth: int, size: int, length: int) -> nn.Module:
    """Build a model ``before`` or ``after`` its softmax is replaced by ``row``; generation uses the row in both roles."""
    options = {"implementation": row.implementation, **row.options}
    if name == "vit":
        from timm import create_model

        from attn_zoo.integrations.timm import replace_attention as replace_in_timm

        vit = create_model("vit_tiny_patch16_224", img_size=size)
        return vit if role == "before" else replace_in_timm(vit, row.attention, **options)
    from attn_zoo.integrations.transformers.library import require_transformers
    from attn_zoo.integrations.transformers.replace import replace_attention

    library = require_transformers()
    if name == "bert":
        config = library.BertConfig(num_hidden_layers=depth, max_position_embeddings=length)
        bert = library.BertModel(config, add_pooling_layer=False)
        return bert if role == "before" else replace_attention(bert, row.attention, **options)
    config = library.GPT2Config(n_positions=length, **GPT2)
    return Generating(replace_attention(library.GPT2LMHeadModel(config), row.attention, **options), length, role == "after")
