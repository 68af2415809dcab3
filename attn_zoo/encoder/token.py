"""Token classifier: embedding, pre-norm transformer blocks, a class token, a linear head."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from attn_zoo.layer import MultiHeadAttention, join_layers


class Block(nn.Module):
    """x + attention(norm x), then x + mlp(norm x) (pre-norm; Xiong et al. 2020, arXiv:2002.04745)."""

    def __init__(self, dim: int, mlp_ratio: float, dropout: float, attention: MultiHeadAttention) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(dim)
        self.attention = attention
        self.mlp_norm = nn.LayerNorm(dim)
        hidden = max(1, round(dim * mlp_ratio))
        self.mlp = nn.Sequential(nn.Linear(dim, hidden), nn.GELU(), nn.Linear(hidden, dim), nn.Dropout(dropout))

    def forward(
        self, tokens: Float[Tensor, "batch length dim"], key_valid: Bool[Tensor, "batch length"] | None
    ) -> Float[Tensor, "batch length dim"]:
        """One block."""
        tokens = tokens + self.attention(self.attention_norm(tokens), key_valid=key_valid)
        return tokens + self.mlp(self.mlp_norm(tokens))


class TokenClassifier(nn.Module):
    """Class scores of a token sequence.

    A learned class token stands first and is what the head reads, so that without attention
    between positions nothing can be known. Positions are learned and absolute.

    Args:
        vocabulary: number of token ids, padding (0) included.
        length: longest sequence, class token not counted.
        classes: number of classes.
        attention: name of a registered attention; ``options`` and ``implementation`` are its own.
    """

    def __init__(
        self,
        *,
        vocabulary: int,
        length: int,
        classes: int,
        dim: int,
        depth: int,
        heads: int,
        mlp_ratio: float,
        dropout: float,
        attention: str,
        implementation: str,
        options: dict[str, Any],
    ) -> None:
        super().__init__()
        self.length = length
        self.embedding = nn.Embedding(vocabulary, dim)
        self.class_token = nn.Parameter(torch.zeros(dim))
        self.positions = nn.Parameter(torch.zeros(length + 1, dim))
        nn.init.normal_(self.embedding.weight, std=0.5)
        nn.init.normal_(self.class_token, std=0.5)
        nn.init.normal_(self.positions, std=0.5)
        self.dropout = nn.Dropout(dropout)
        layers = (
            MultiHeadAttention(
                dim, heads, attention, length=length + 1, implementation=implementation, output_dropout=dropout, **options
            )
            for _ in range(depth)
        )
        self.blocks = nn.ModuleList(Block(dim, mlp_ratio, dropout, layer) for layer in layers)
        join_layers(self.blocks)
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, classes)

    def forward(
        self, tokens: Int[Tensor, "batch length"], valid: Bool[Tensor, "batch length"] | None = None
    ) -> Float[Tensor, "batch classes"]:
        """Class scores.

        Args:
            tokens: ids, padded with 0 to the length the model was built for.
            valid: True for a real token; None means all are.

        Raises:
            ValueError: the sequences are longer than the model was built for.
        """
        if tokens.shape[1] > self.length:
            raise ValueError(f"the model was built for {self.length} tokens, got {tokens.shape[1]}; build it for the longest")
        words = self.embedding(tokens)
        front = self.class_token.to(words.dtype).expand(tokens.shape[0], 1, -1)
        x = torch.cat([front, words], dim=1)
        x = self.dropout(x + self.positions[: x.shape[1]])
        key_valid = None if valid is None else F.pad(valid, (1, 0), value=True)
        for block in self.blocks:
            x = block(x, key_valid)
        return self.head(self.norm(x[:, 0]))
