"""Linformer over tokens of several processes: E X = Σ Eᵢ Xᵢ, where process i holds the tokens Xᵢ and their columns Eᵢ of E."""

from __future__ import annotations

import copy
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from attn_zoo.attention.low_rank._projections import LowRankAttention
from attn_zoo.attention.low_rank.kernelized_linformer import KernelizedLinformer
from attn_zoo.attention.low_rank.linformer import Linformer
from attn_zoo.attention.low_rank.sparse_linformer import SparseLinformer
from attn_zoo.contract import UnsupportedError
from attn_zoo.layer import MultiHeadAttention, Order, Remembered
from attn_zoo.parallel.collectives import all_reduce_sum, place
from attn_zoo.parallel.slices import cut_of, keep_columns
from attn_zoo.parallel.sums import Parts, Sums

OFFERED = (Linformer, KernelizedLinformer, SparseLinformer)
"""Mechanisms whose queries attend to projected keys only."""


class SequenceParallelLinformer(MultiHeadAttention):
    """Linformer layer whose tokens, and columns of E and F, are divided among the processes of a group.

    Queries stay on their process. One all-reduce sums the products Eᵢ Xᵢ, and another one their gradients; neither grows with the
    length (see ``communicated``). Everything else equals the computation in one process: biases, padding, rows that hold only
    padding, slices of different lengths, the gradient of every weight.

    E and F, learned or random, are cut between any two tokens; projections by windows (mean, max, convolution) between windows.
    All other weights are equal on all processes, and their gradients are those of this process's loss until ``reduce_gradients``
    sums them. Differs from the original layer: with dropout each process draws masks for its own queries, so that processes need
    different seeds; and without gradients, queries are not processed in blocks.

    Args:
        layer: self-attention layer of linformer, kernelized_linformer or sparse_linformer, equal on all processes. Its modules
            become those of the new layer, so that it must not be used any more; ``parallelise`` works on a copy.
        group: the processes that share a sequence; None means all.

    Raises:
        UnsupportedError: another mechanism, another type of layer, a context, a short convolution, or too few tokens for the
            number of processes.
        ValueError: there is no process group, or this process is not in ``group``.
    """

    def __init__(self, layer: MultiHeadAttention, group: dist.ProcessGroup | None = None) -> None:
        nn.Module.__init__(self)
        mechanism = _checked(layer)
        rank, ranks = place(group)
        cut = cut_of(mechanism, ranks)
        self.__dict__.update(layer.__dict__)
        self.group = group
        self.slices = cut
        """Positions of each process."""
        self.positions = cut[rank]
        """Positions of this process."""
        keep_columns(mechanism, self.positions)
        self.order = self._choose_order_by_slices()

    @property
    def low_rank(self) -> LowRankAttention:
        """Mechanism with this process's columns of E and F."""
        assert isinstance(self.mechanism, LowRankAttention)
        return self.mechanism

    @property
    def sums(self) -> Sums:
        """Layout of the sums over processes."""
        return Sums(self.low_rank, self.dim, self.positions.start, self.order is Order.compress_first)

    def communicated(self, batch: int, dtype: torch.dtype = torch.float32) -> int:
        """Number of bytes that a process contributes to the all-reduce of a forward pass; the backward pass takes as many.

        Each sequence contributes 2 · Σ over heads of k · head_dim numbers. If tokens are compressed before they are projected,
        it contributes roles · k · (dim + 1), with two roles (E and F), or one if E = F; the 1 is the factor of the bias. One more
        number states whether any token is real; projections by windows add such a number for each window.
        """
        return batch * self.sums.numbers() * dtype.itemsize

    def forward(
        self,
        tokens: Float[Tensor, "batch slice dim"],
        context: Tensor | None = None,
        *,
        key_valid: Bool[Tensor, "batch slice"] | None = None,
        remembered: Remembered | None = None,
    ) -> Float[Tensor, "batch slice dim"]:
        """Attend from this process's tokens to the tokens of all processes, which must all call it with equal batch sizes.

        Args:
            tokens: tokens at ``positions``. If there are fewer, or none, the rest of the slice counts as padding.
            context, remembered: refused.
            key_valid: True for a real token of the slice; None for no padding on this process.

        Raises:
            ValueError: a shape or dtype does not fit.
            UnsupportedError: more tokens than the slice holds, a context, or remembered keys.
        """
        if context is not None or remembered is not None:
            raise UnsupportedError("a sequence-parallel layer attends from tokens to themselves; leave context and remembered out")
        self._check_slice(tokens, key_valid)
        if key_valid is not None:
            tokens = tokens.masked_fill(~key_valid[..., None], 0)
        # A mask even without padding, and at least one token: all processes must pack the same shapes.
        sources, real = tokens, tokens.new_ones(tokens.shape[:2], dtype=torch.bool) if key_valid is None else key_valid
        if tokens.shape[1] == 0:
            sources, real = F.pad(tokens, (0, 0, 0, 1)), F.pad(real, (0, 1))
        if self.order is Order.compress_first:
            query, share = self._project("query", tokens), self.sums.of_tokens(sources, real)
        else:
            queries, key, value = self._project_all(sources, sources)
            assert queries is not None and key is not None
            query, share = queries[:, :, : tokens.shape[1]], self.sums.of_heads(key, value, real)
        sums = self.sums.unpacked(all_reduce_sum(share, self.group))
        return self._finish(self._attend(query, sums).masked_fill(sums["any"][..., None, None] == 0, 0))

    def remember(
        self, context: Float[Tensor, "batch keys context_dim"], *, key_valid: Bool[Tensor, "batch keys"] | None = None
    ) -> Remembered:
        """Refuse to cache keys, since the layer would cache the keys of this slice only.

        Raises:
            UnsupportedError: always.
        """
        raise UnsupportedError("a sequence-parallel layer does not remember keys; call it with the tokens")

    def check_remembers(self) -> None:
        """Refuse a cache of keys.

        Raises:
            UnsupportedError: always.
        """
        raise UnsupportedError("a sequence-parallel layer does not remember keys; build the model without reuse_keys")

    def resize_length(self, length: int) -> None:
        """Refuse to change the length, since positions would have to move to other processes.

        Raises:
            UnsupportedError: always.
        """
        raise UnsupportedError(
            "a slice cannot be resized; load gather_state(...) into the whole model, resize that and cut it again"
        )

    def __deepcopy__(self, memo: dict[int, Any]) -> SequenceParallelLinformer:
        """Copy the layer without its group, which cannot be copied and is shared."""
        new = self.__class__.__new__(self.__class__)
        memo[id(self)] = new
        memo[id(self.group)] = self.group
        new.__dict__.update(copy.deepcopy(self.__dict__, memo))
        return new

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, positions={self.positions.start}..{self.positions.stop}"

    def _check_slice(self, tokens: Tensor, key_valid: Tensor | None) -> None:
        self._check_tokens(tokens)
        name, at = self.mechanism.card.name, self.positions
        if tokens.shape[1] > at.stop - at.start:
            raise UnsupportedError(
                f"{name}: this process holds positions {at.start} to {at.stop}, {at.stop - at.start} tokens; "
                f"got {tokens.shape[1]}; give it tokens[:, layer.positions]"
            )
        if key_valid is not None and (key_valid.dtype != torch.bool or key_valid.shape != tokens.shape[:2]):
            raise ValueError(
                f"{name}: key_valid must be boolean of the shape of this process's slice, {tuple(tokens.shape[:2])}, True for a "
                f"real token; got {key_valid.dtype} {tuple(key_valid.shape)}"
            )

    def _choose_order_by_slices(self) -> Order:
        """Order with fewer FLOPs for the longest slice, equal on all processes; each process projects the compressed keys."""
        r = self.low_rank.compressed_length()
        if self._asked_order is not Order.auto or r is None:
            return self.order
        longest = max(at.stop - at.start for at in self.slices)
        project_first = 4 * longest * self.dim**2 + self.low_rank.compression_flops(longest, self.dim, inputs=2)
        compress_first = self.low_rank.compression_flops(longest, self.dim, inputs=1) + 4 * r * self.dim**2
        return Order.compress_first if compress_first < project_first else Order.project_first

    def _attend(self, query: Tensor, sums: Parts) -> Tensor:
        mechanism = self.low_rank
        windows = [sums[f"windows {at}"] > 0 if self.sums.windowed else None for at in range(len(mechanism.maps))]
        if self.order is Order.compress_first:
            return mechanism.attend_compressed(query, self._projected(sums, "key"), self._projected(sums, "value"), windows[0])
        parts = [
            mechanism.attend_compressed(query[:, map_.heads], sums[f"key {at}"], sums[f"value {at}"], windows[at])
            for at, map_ in enumerate(mechanism.maps)
        ]
        return torch.cat(parts, dim=1)[:, mechanism.order_of_heads(query.device)]

    def _projected(self, sums: Parts, name: str) -> Float[Tensor, "batch heads r head_dim"]:
        """Projection (E X) W + (E 1) bᵀ of the sums over all processes."""
        (weight, bias), role = self._parameters_of(name), name if name in sums else "key"
        projected = F.linear(sums[role], weight)
        if bias is not None:
            projected = projected + sums[f"mass of {role}"].to(projected.dtype) * bias.to(projected.dtype)
        return self._split(projected)


def parallelise(model: nn.Module, group: dist.ProcessGroup | None = None) -> nn.Module:
    """Copy of a model whose Linformer layers hold the columns of E and F for this process's slice of the tokens.

    Layers that share E still share it. Everything else is equal on all processes: modules that depend on the position, such as a
    position embedding, must be sliced by the layers' ``positions``.

    Args:
        model: model or single layer, equal on all processes, after ``join_layers`` if its options require that.
        group: the processes that share a sequence; None means all.

    Raises:
        UnsupportedError: a layer cannot be cut, or there is none.
        ValueError: there is no process group, or this process is not in ``group``.
    """
    copied = copy.deepcopy(model)
    layers = [(name, part) for name, part in copied.named_modules(remove_duplicate=False) if isinstance(part, MultiHeadAttention)]
    if not layers:
        raise UnsupportedError(f"{type(model).__name__} holds no MultiHeadAttention; sequence parallelism is for models of the zoo")
    for _, layer in layers:
        _checked(layer)
    parallel: dict[int, SequenceParallelLinformer] = {}
    for name, layer in layers:
        if id(layer) not in parallel:
            parallel[id(layer)] = SequenceParallelLinformer(layer, group)
        if not name:
            return parallel[id(layer)]
        parent, _, own = name.rpartition(".")
        setattr(copied.get_submodule(parent), own, parallel[id(layer)])
    return copied


def _checked(layer: MultiHeadAttention) -> LowRankAttention[Any]:
    mechanism: Any = layer.mechanism
    name = mechanism.card.name
    if not isinstance(mechanism, OFFERED):
        known = ", ".join(kind.card.name for kind in OFFERED)
        raise UnsupportedError(f"{name} cannot be cut along the sequence; this is offered for {known}")
    if type(layer).forward is not MultiHeadAttention.forward:
        raise UnsupportedError(f"a {type(layer).__name__} cannot be cut along the sequence; only a plain MultiHeadAttention can")
    if layer.crosses:
        raise UnsupportedError(f"{name}: sequence parallelism is for self-attention; this layer was built with a context")
    if layer.short_convolution is not None:
        raise UnsupportedError(
            f"{name}: a short convolution reads tokens of the neighbouring process, which are not exchanged; build the model with "
            "short_convolution=0"
        )
    if len(mechanism.options.layers()) > 1:
        raise UnsupportedError(
            f"{name}.projected_lengths={mechanism.options.projected_lengths!r} has one value for each layer, and this layer does "
            "not know "
            "its number; call attn_zoo.join_layers(model) first"
        )
    return mechanism
