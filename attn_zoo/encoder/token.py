"""Encoder of sequences with pre-norm transformer blocks, and classifiers that use it."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from attn_zoo.contract.auxiliary import expect_calls
from attn_zoo.layer import MultiHeadAttention, Remembered, join_layers
from attn_zoo.rows import RowName

Sequences = Int[Tensor, "batch length"] | Float[Tensor, "batch length channels"]
"""Token ids, or frames."""


class Block(nn.Module):
    """Pre-norm transformer block: x + attention(norm x), then x + mlp(norm x) (Xiong et al. 2020, arXiv:2002.04745)."""

    def __init__(self, dim: int, mlp_ratio: float, dropout: float, attention: MultiHeadAttention) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(dim)
        self.attention = attention
        self.mlp_norm = nn.LayerNorm(dim)
        hidden = max(1, round(dim * mlp_ratio))
        self.mlp = nn.Sequential(nn.Linear(dim, hidden), nn.GELU(), nn.Linear(hidden, dim), nn.Dropout(dropout))

    def forward(
        self,
        tokens: Float[Tensor, "batch length dim"],
        key_valid: Bool[Tensor, "batch length"] | None = None,
        remembered: Remembered | None = None,
    ) -> Float[Tensor, "batch length dim"]:
        """Return the tokens after this block. ``key_valid`` is True for real tokens. If ``remembered`` (the result of ``remember``)
        is given, the block uses the keys and values in it, and ignores ``key_valid``.
        """
        normed = self.attention_norm(tokens)
        tokens = tokens + self.attention(normed, key_valid=None if remembered else key_valid, remembered=remembered)
        return tokens + self.mlp(self.mlp_norm(tokens))

    def remember(self, tokens: Float[Tensor, "batch length dim"], key_valid: Bool[Tensor, "batch length"] | None) -> Remembered:
        """Return the keys and values of these tokens, for the argument ``remembered`` of later calls."""
        return self.attention.remember(self.attention_norm(tokens), key_valid=key_valid)


class TokenEncoder(nn.Module):
    """Encoder that maps a sequence of tokens or frames to one vector per position.

    Position embeddings are learned and absolute, or left out (``positions="none"``; Haviv et al. 2022, arXiv:2203.16634; Kazemnejad
    et al. 2023, arXiv:2305.19466).

    With ``shared_weights`` one block is applied ``depth`` times (Universal Transformer; Dehghani et al. 2018, arXiv:1807.03819),
    without halting. Differs: position embeddings are added once, before the first application. No embedding marks the number of the
    application.

    Args:
        vocabulary: number of token ids, padding (0) included; 0 for frames.
        channels: number of channels of a frame, which a linear map embeds; 0 for tokens.
        length: number of positions of the longest sequence, without the class token.
        class_token: if True, a learned token is put in front of each sequence.
        causal: if True, position i attends to positions up to i only.
        shared_weights: if True, all layers are one block. An option that has one value per layer must then have a single value.
        reuse_keys: if True, all applications use the keys and values of the first application. The other applications then project
            queries only.
        short_convolution, output_gate, key_value_heads, latent_dim: arguments of ``MultiHeadAttention``, in every block.
        positions: ``learned`` or ``none``.
        attention: name of a mechanism, or a hybrid such as ``3*linformer+softmax``, whose mechanisms the layers use in turn.
            ``options`` are the mechanism's options by name, and ``implementation`` names its implementation. For the options of a
            hybrid, see ``attn_zoo.rows``.

    Raises:
        ValueError: ``reuse_keys`` is set without ``shared_weights``, ``positions`` is neither ``learned`` nor ``none``, or a hybrid
            names more mechanisms than there are layers with separate weights.
        UnsupportedError: ``reuse_keys`` is set, but queries and keys of the mechanism share one projection.
    """

    def __init__(
        self,
        *,
        vocabulary: int = 0,
        channels: int = 0,
        length: int,
        class_token: bool,
        causal: bool = False,
        dim: int,
        depth: int,
        heads: int,
        mlp_ratio: float,
        dropout: float,
        attention: str,
        implementation: str,
        options: dict[str, Any],
        shared_weights: bool = False,
        reuse_keys: bool = False,
        short_convolution: int = 0,
        output_gate: str = "none",
        key_value_heads: int = 0,
        latent_dim: int = 0,
        positions: str = "learned",
    ) -> None:
        super().__init__()
        if reuse_keys and not shared_weights:
            raise ValueError("reuse_keys=True must go with shared_weights=True, because all blocks use the keys of one block")
        if positions not in ("learned", "none"):
            raise ValueError(f"positions must be learned or none; got {positions!r}")
        self.length, self.depth, self.reuse_keys = length, depth, reuse_keys
        seen = length + class_token
        self.embedding = nn.Linear(channels, dim) if channels else nn.Embedding(vocabulary, dim)
        self.class_token = nn.Parameter(torch.zeros(dim)) if class_token else None
        self.positions = nn.Parameter(torch.zeros(seen, dim)) if positions == "learned" else None
        # Position embeddings start smaller than token embeddings: of equal size they drown the token, and the model takes many
        # times as long to learn recall.
        nn.init.normal_(self.embedding.weight, std=channels**-0.5 if channels else 1.0)
        if self.class_token is not None:
            nn.init.normal_(self.class_token, std=1.0)
        if self.positions is not None:
            nn.init.normal_(self.positions, std=0.1)
        self.dropout = nn.Dropout(dropout)
        layers = (
            MultiHeadAttention(
                dim,
                heads,
                row.attention,
                length=seen,
                causal=causal,
                implementation=row.implementation,
                output_dropout=dropout,
                short_convolution=short_convolution,
                output_gate=output_gate,
                key_value_heads=key_value_heads,
                latent_dim=latent_dim,
                **row.options,
            )
            for row in RowName(attention, options, implementation).layers(1 if shared_weights else depth)
        )
        self.blocks = nn.ModuleList(Block(dim, mlp_ratio, dropout, layer) for layer in layers)
        join_layers(self.blocks)
        expect_calls(self.blocks, depth // len(self.blocks))
        if reuse_keys:
            self._applications()[0].attention.check_remembers()
        self.norm = nn.LayerNorm(dim)

    def forward(self, tokens: Sequences, valid: Bool[Tensor, "batch length"] | None = None) -> Float[Tensor, "batch positions dim"]:
        """Return one vector per position, after the last block and before the final layer norm. If there is a class token, its
        vector is first.

        Args:
            tokens: ids or frames, at most ``length`` per sequence. Shorter sequences of a batch are padded with 0.
            valid: True for a real token or frame; None means that all are real.

        Raises:
            ValueError: the sequences are longer than the model was built for.
        """
        if tokens.shape[1] > self.length:
            raise ValueError(
                f"the model was built for at most {self.length} tokens; got {tokens.shape[1]}. Build it for the longest input"
            )
        x = self.embedding(tokens)
        if self.class_token is not None:
            x = torch.cat([self.class_token.to(x.dtype).expand(tokens.shape[0], 1, -1), x], dim=1)
            valid = None if valid is None else F.pad(valid, (1, 0), value=True)
        x = self.dropout(x if self.positions is None else x + self.positions[: x.shape[1]])
        blocks = self._applications()
        remembered = blocks[0].remember(x, valid) if self.reuse_keys else None
        for block in blocks:
            x = block(x, valid, remembered)
        return x

    def _applications(self) -> list[Block]:
        """Return the blocks in the order in which they are applied. A shared block is repeated ``depth`` times."""
        stored = [block for block in self.blocks if isinstance(block, Block)]
        return stored * (self.depth // len(stored))


class TokenClassifier(nn.Module):
    """Network that classifies sequences, or predicts numbers for them, from the class token alone.

    Its scores therefore depend on the tokens only if attention moves information between positions.
    """

    def __init__(self, *, classes: int, **rest: Any) -> None:
        super().__init__()
        self.encoder = TokenEncoder(class_token=True, **rest)
        self.head = nn.Linear(rest["dim"], classes)

    def forward(self, tokens: Sequences, valid: Bool[Tensor, "batch length"] | None = None) -> Float[Tensor, "batch classes"]:
        """Return the scores of the classes for each sequence. Arguments and errors are those of ``TokenEncoder``."""
        return self.head(self.encoder.norm(self.encoder(tokens, valid)[:, 0]))


class PairClassifier(nn.Module):
    """Network that classifies pairs of token sequences. One encoder encodes both sequences separately.

    The head has one hidden layer. It reads the class tokens u and v of both sequences as (u, v, u ∘ v, u − v), where ∘ is the
    elementwise product. This is the "NLI" interaction of Long Range Arena's retrieval task (Tay et al. 2020, arXiv:2011.04006).
    """

    def __init__(self, *, classes: int, **rest: Any) -> None:
        super().__init__()
        dim: int = rest["dim"]
        self.encoder = TokenEncoder(class_token=True, **rest)
        hidden = max(1, round(dim * rest["mlp_ratio"]))
        self.head = nn.Sequential(nn.Linear(4 * dim, hidden), nn.GELU(), nn.Linear(hidden, classes))

    def forward(
        self, tokens: Int[Tensor, "batch 2 length"], valid: Bool[Tensor, "batch 2 length"] | None = None
    ) -> Float[Tensor, "batch classes"]:
        """Return the scores of the classes for each pair. Arguments and errors are those of ``TokenEncoder``."""
        both = self.encoder(tokens.flatten(0, 1), None if valid is None else valid.flatten(0, 1))
        one, other = self.encoder.norm(both[:, 0]).unflatten(0, (-1, 2)).unbind(dim=1)
        return self.head(torch.cat([one, other, one * other, one - other], dim=-1))


class PositionClassifier(nn.Module):
    """Network that classifies the positions of a sequence, or predicts numbers at each position.

    Args:
        classes: number of classes.
        encoder: encoder of another classifier. Training either classifier then changes this encoder. The vector of the class token
            is ignored. If None, the remaining arguments define a new encoder without a class token.
    """

    def __init__(self, *, classes: int, encoder: TokenEncoder | None = None, **rest: Any) -> None:
        super().__init__()
        self.encoder = encoder or TokenEncoder(class_token=False, **rest)
        self.head = nn.Linear(self.encoder.norm.normalized_shape[0], classes)

    def forward(
        self,
        tokens: Sequences,
        valid: Bool[Tensor, "batch length"] | None = None,
        asked: Bool[Tensor, "batch length"] | None = None,
    ) -> Float[Tensor, "asked classes"] | Float[Tensor, "batch length classes"]:
        """Return the scores of the classes at the positions that ``asked`` marks, ordered by example, then by position. If
        ``asked`` is None, return the scores at all positions.

        Other arguments and errors are those of ``TokenEncoder``.
        """
        x = self.encoder(tokens, valid)
        x = x if self.encoder.class_token is None else x[:, 1:]
        return self.head(self.encoder.norm(x if asked is None else x[asked]))
