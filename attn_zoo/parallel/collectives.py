"""All-reduce with a gradient, and rank and size of a process group."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist
from jaxtyping import Float
from torch import Tensor
from torch.autograd import Function

from attn_zoo.contract import UnsupportedError

if dist.is_available():
    import torch.distributed.nn.functional  # noqa: F401  before there is a process group, which its default arguments would keep alive


def place(group: dist.ProcessGroup | None) -> tuple[int, int]:
    """Rank of this process in the group, and number of processes; None is the group of all processes.

    Raises:
        UnsupportedError: torch was built without torch.distributed.
        ValueError: there is no process group yet, or this process is not in ``group``.
    """
    if not dist.is_available():
        raise UnsupportedError("sequence parallelism needs torch.distributed, which this build of torch lacks")
    if not dist.is_initialized():
        raise ValueError(
            "sequence parallelism runs in a process group and there is none; start the script by torchrun and call "
            "torch.distributed.init_process_group first"
        )
    rank = dist.get_rank(group)
    if rank < 0:
        raise ValueError(f"process {dist.get_rank()} is not in the group it was given; give each process a group that it is in")
    return rank, dist.get_world_size(group)


def all_reduce_sum(tensor: Float[Tensor, "*shape"], group: dist.ProcessGroup | None = None) -> Float[Tensor, "*shape"]:
    """Sum a tensor over the processes of a group; each process gets the sum, and the argument is not changed.

    The gradient is that of the sum of the losses of all processes, so it is summed over processes, too. If every process computes
    the same loss from the result, each of these losses counts: divide the loss by the number of processes.

    Args:
        tensor: tensor of equal shape and dtype on all processes.
        group: process group; None means all processes.
    """
    summed: Tensor = _SumOverGroup.apply(tensor, group)
    return summed


class _SumOverGroup(Function):
    """All-reduce as an autograd function: torch.distributed.nn.functional is deprecated, and its private successor lacks gradients
    in some supported versions."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, group: dist.ProcessGroup | None) -> Tensor:
        ctx.group = group
        summed = tensor.contiguous().clone()
        dist.all_reduce(summed, group=group)
        return summed

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return all_reduce_sum(gradients[0], ctx.group), None
