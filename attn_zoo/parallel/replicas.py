"""Sums of the gradients of replicated weights over processes, and the state of the whole model from sliced weights."""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import Tensor, nn

from attn_zoo.contract import UnsupportedError
from attn_zoo.parallel.linformer import SequenceParallelLinformer
from attn_zoo.parallel.slices import matrices


def reduce_gradients(model: nn.Module) -> None:
    """Sum the gradients of all replicated weights over the processes; call it before the optimiser's step.

    The results are the gradients of the sum of the processes' losses. E and F are not changed: the gradients of their slices are
    complete. A weight that has no gradient on any process keeps none; a gradient that some processes lack counts as zero there.
    Each dtype takes one all-reduce.

    Raises:
        UnsupportedError: the model has no sequence-parallel layer, or layers of several groups.
    """
    group = _group_of(model)
    sliced = {id(map_.weight) for layer in _layers(model) for map_ in matrices(layer.low_rank.maps)}
    shared = [p for p in model.parameters() if p.requires_grad and id(p) not in sliced]
    for dtype in dict.fromkeys(p.dtype for p in shared):
        alike = [p for p in shared if p.dtype == dtype]
        present = torch.tensor([p.grad is not None for p in alike], dtype=dtype, device=alike[0].device)
        flat = torch.cat([present, *(torch.zeros_like(p).flatten() if p.grad is None else p.grad.flatten() for p in alike)])
        dist.all_reduce(flat, group=group)
        counts, *sums = flat.split([len(alike), *(p.numel() for p in alike)])
        for p, some, summed in zip(alike, counts.tolist(), sums, strict=True):
            p.grad = summed.view_as(p).clone() if some else None


def gather_state(model: nn.Module) -> dict[str, Tensor]:
    """State of the whole model on every process, with E and F in full length, for ``load_state_dict`` of the original.

    Replicated weights are taken from this process. To resume from a state, load it into the whole model and call ``parallelise``
    again.

    Raises:
        UnsupportedError: the model has no sequence-parallel layer, or layers of several groups.
    """
    group, state = _group_of(model), dict(model.state_dict())
    for name, layer in model.named_modules(remove_duplicate=False):
        if isinstance(layer, SequenceParallelLinformer):
            for at, map_ in enumerate(layer.low_rank.own_maps):
                key = ".".join(part for part in (name, f"mechanism.own_maps.{at}.weight") if part)
                if matrices([map_]):  # type: ignore[list-item]  # a ModuleList loses the type of its modules
                    state[key] = _joined(state[key], layer.slices, group)
    return state


def _joined(columns: Tensor, slices: Iterable[slice], group: dist.ProcessGroup | None) -> Tensor:
    """Concatenated columns of all processes; shorter slices are padded, since back ends gather equal shapes only."""
    lengths = [at.stop - at.start for at in slices]
    filled = nn.functional.pad(columns, (0, max(lengths) - columns.shape[-1])).contiguous()
    gathered = [torch.empty_like(filled) for _ in lengths]
    dist.all_gather(gathered, filled, group=group)
    return torch.cat([part[..., :length] for part, length in zip(gathered, lengths, strict=True)], dim=-1)


def _layers(model: nn.Module) -> list[SequenceParallelLinformer]:
    return [module for module in model.modules() if isinstance(module, SequenceParallelLinformer)]


def _group_of(model: nn.Module) -> dist.ProcessGroup | None:
    groups = {id(layer.group): layer.group for layer in _layers(model)}
    if len(groups) != 1:
        counted = "no sequence-parallel layer" if not groups else f"sequence-parallel layers of {len(groups)} groups"
        raise UnsupportedError(f"{type(model).__name__} has {counted}; give a model that parallelise made")
    return next(iter(groups.values()))
