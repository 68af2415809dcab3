"""Base class of softmax attention over fixed pairs of positions, which do not depend on the inputs."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import torch
from torch import nn

from attn_zoo.contract import Attention, Geometry, OptionsT, SinkOptions, softmax_over_valid
from attn_zoo.kernels.flex import MaskMod, PairTables, cached_tables, flex_attention_over
from attn_zoo.shapes import Keys, KeyValid, Queries


class PairwiseAttention(Attention[OptionsT]):
    """Attention yᵢ = Σⱼ softmaxⱼ(qᵢ·kⱼ / √d) vⱼ over the pairs (i, j) for which ``mask_mod`` is True.

    Mechanisms whose options are ``SinkOptions`` may have sinks, which are learned scores in the softmax that belong to no key.
    """

    def __init__(self, geometry: Geometry, options: OptionsT, implementation: str = "eager") -> None:
        super().__init__(geometry, options, implementation)
        has_sinks = isinstance(options, SinkOptions) and options.sinks
        self.sinks = nn.Parameter(torch.zeros(geometry.heads)) if has_sinks else None

    @abstractmethod
    def mask_mod(self, n: int, device: torch.device) -> MaskMod:
        """Return a function of (head, query index, key index) that returns True if the query sees the key at length ``n``. The
        function is cached, so it must not hold a reference to the module.
        """

    def by_head(self) -> bool:
        """Return True if heads have different masks."""
        return False

    @classmethod
    def refuses(cls, implementation: str, geometry: Geometry, options: Any) -> str | None:
        """Return a reason if ``flex`` is requested with dropout or sinks, which FlexAttention does not support; else None."""
        if implementation == "flex" and options.dropout > 0:
            return f"{cls.card.name}.dropout needs implementation=eager: flex has no dropout of weights"
        if implementation == "flex" and isinstance(options, SinkOptions) and options.sinks:
            return f"{cls.card.name}.sinks needs implementation=eager: flex has no sinks"
        return None

    def definition(self, query: Queries, key: Keys, value: Keys, key_valid: KeyValid) -> Queries:
        """Return the outputs from all n × n scores, masked to the visible pairs."""
        n, device = query.shape[2], query.device
        heads, positions = torch.arange(query.shape[1], device=device)[:, None, None], torch.arange(n, device=device)
        allowed = self.mask_mod(n, device)(heads, positions[:, None], positions)
        allowed = allowed if key_valid is None else allowed & key_valid[:, None, None, :]
        return softmax_over_valid(query @ key.mT / query.shape[-1] ** 0.5, allowed, self.sinks) @ value

    def attend_flex(self, query: Queries, key: Keys, value: Keys, key_valid: KeyValid) -> Queries:
        """Return the outputs of PyTorch's FlexAttention over the visible pairs."""
        return flex_attention_over(self.tables(query), query, key, value, key_valid)

    def tables(self, query: Queries) -> PairTables:
        """Return FlexAttention's block tables. They are cached by length, device, geometry, options and buffers such as seeds."""
        n, device = query.shape[2], query.device
        drawn = tuple((buffer, 0 if buffer.is_inference() else buffer._version) for buffer in self.buffers())
        fixed_by = (type(self), self.geometry, tuple(vars(self.options).items()), drawn)
        heads = self.geometry.heads if self.by_head() else 1
        return cached_tables(fixed_by, lambda: self.mask_mod(n, device), n, heads, device)
