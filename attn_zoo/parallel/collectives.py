"""The one collective of a forward pass, with its gradient, and what a process is within its group."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist
from jaxtyping import Float
from torch import Tensor
from torch.autograd import Function

from attn_zoo.contract import UnsupportedError


def place(group: dist.ProcessGroup | None) -> tuple[int, int]:
    """The rank of this process within the group, and how many processes it has. None is the group of all.

    Raises:
        UnsupportedError: torch was built without torch.distributed.
        ValueError: there is no process group yet, or this process is not in the one given.
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
    """The sum over the processes of a group, on each of them; the argument is left as it is.

    The gradient is that of the sum of the losses of all processes, so it is summed over them, too. Where each process computes
    the same loss from the result, every one counts: divide it by their number.

    Args:
        tensor: of one shape and dtype on all processes.
        group: the processes; None means all.
    """
    summed: Tensor = _SumOverGroup.apply(tensor, group)
    return summed


class _SumOverGroup(Function):
    """torch.distributed.nn.functional, which has this, is deprecated; what stands in for it is private and has no gradient in
    all versions that are supported."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, group: dist.ProcessGroup | None) -> Tensor:
        ctx.group = group
        summed = tensor.contiguous().clone()
        dist.all_reduce(summed, group=group)
        return summed

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return all_reduce_sum(gradients[0], ctx.group), None
