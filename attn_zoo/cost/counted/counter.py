"""PyTorch's counts of a call: FLOPs of matrix products, and the bytes that autograd keeps."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode


def _product_flops(into: Sequence[int], left: Sequence[int], right: Sequence[int], **rest: object) -> int:
    """FLOPs of a product by shapes."""
    return 2 * math.prod(left) * right[-1]


def _convolution_backward_flops(
    grad_out: Sequence[int], tokens: Sequence[int], weight: Sequence[int], *rest: object, **named: object
) -> int:
    """FLOPs by shapes: for each gradient those of the forward pass."""
    transposed, wanted = rest[4], rest[7]
    assert isinstance(wanted, Sequence)
    return 2 * math.prod(tokens if transposed else grad_out) * math.prod(weight[1:]) * sum(map(bool, wanted[:2]))


COUNTED_HERE = {
    torch.ops.aten.addmm_: _product_flops,
    torch.ops.aten.baddbmm_: _product_flops,
    torch.ops.aten.convolution_backward: _convolution_backward_flops,
}
"""FLOPs of operators that PyTorch's counter leaves out, products that are added in place, or gets wrong, gradients of depthwise
convolutions."""


@dataclass(frozen=True, slots=True)
class Tally:
    """Counts of a forward pass and the backward pass after it."""

    flops: int
    backward_flops: int
    kept_bytes: int
    """Bytes of the graph between the two, whole storages, each once."""


def tally(call: Callable[[], Tensor], there_anyway: Iterable[Tensor]) -> Tally:
    """Count a call and the backward pass from its output, on any device; on ``meta`` nothing is computed.

    Args:
        call: makes an output; gradients reach all tensors that require one.
        there_anyway: inputs, parameters and buffers, whose storages are not counted as kept.
    """
    with FlopCounterMode(display=False, custom_mapping=COUNTED_HERE) as forward:
        out, held = kept_bytes(call, there_anyway)
    backward = 0
    if out.requires_grad:
        with FlopCounterMode(display=False, custom_mapping=COUNTED_HERE) as counter:
            out.backward(torch.ones_like(out))
        backward = int(counter.get_total_flops())
    return Tally(int(forward.get_total_flops()), backward, held)


@contextmanager
def as_on_a_cpu(module: nn.Module) -> Iterator[None]:
    """Dispatch a module on ``meta`` as one on the CPU, still without computing a number.

    On ``meta`` itself PyTorch materialises attention that it fuses on a CPU. The module cannot be used afterwards.
    """
    with FakeTensorMode(allow_non_fake_inputs=True), torch.device("cpu"):
        module.to_empty(device="cpu")
        yield


def kept_bytes(call: Callable[[], Tensor], there_anyway: Iterable[Tensor]) -> tuple[Tensor, int]:
    """Result of a call, and the bytes that its graph keeps for the backward pass; arguments as for ``tally``."""
    with keeping() as kept:
        out = call()
    return out, bytes_of_storages(kept(), there_anyway)


class _Held:
    """Tensor that a graph keeps, for the life of the graph."""

    __slots__ = ("__weakref__", "tensor")

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor


@contextmanager
def keeping() -> Iterator[Callable[[], list[Tensor]]]:
    """Record the tensors that autograd saves; the yielded function lists those that are still saved."""
    saved: weakref.WeakSet[_Held] = weakref.WeakSet()

    def pack(tensor: Tensor) -> _Held:
        held = _Held(tensor.detach())  # a result that is saved leads to its graph, and would keep itself alive
        saved.add(held)
        return held

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda held: held.tensor):
        yield lambda: [held.tensor for held in saved]


def bytes_of_storages(tensors: Iterable[Tensor], there_anyway: Iterable[Tensor] = ()) -> int:
    """Bytes of the storages of ``tensors``, each once and whole, without those of ``there_anyway``."""
    sizes = {t.untyped_storage()._cdata: t.untyped_storage().nbytes() for t in tensors}
    for tensor in there_anyway:
        sizes.pop(tensor.untyped_storage()._cdata, None)
    return sum(sizes.values())
