"""What PyTorch counts of a call: FLOPs of matrix products, and the bytes that autograd keeps."""

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
    """By shapes."""
    return 2 * math.prod(left) * right[-1]


def _convolution_backward_flops(
    grad_out: Sequence[int],
    tokens: Sequence[int],
    weight: Sequence[int],
    *rest: object,
    **named: object,
) -> int:
    """By shapes: as many for each gradient as the forward pass takes."""
    transposed, wanted = rest[4], rest[7]
    assert isinstance(wanted, Sequence)
    return 2 * math.prod(tokens if transposed else grad_out) * math.prod(weight[1:]) * sum(map(bool, wanted[:2]))


COUNTED_HERE = {
    torch.ops.aten.addmm_: _product_flops,
    torch.ops.aten.baddbmm_: _product_flops,
    torch.ops.aten.convolution_backward: _convolution_backward_flops,
}
"""Products added to what is there, of which PyTorch's counter knows only the forms that make a new result; and the gradients of
convolutions, where it takes a depthwise one for a dense one."""


@dataclass(frozen=True, slots=True)
class Tally:
    """What was counted of a forward pass and the backward pass after it."""

    flops: int
    backward_flops: int
    kept_bytes: int
    """Bytes that the graph held between the two, whole storages, each once."""


def tally(call: Callable[[], Tensor], there_anyway: Iterable[Tensor]) -> Tally:
    """Count a call and the backward pass from its output, on any device, ``meta`` included, where nothing is computed.

    Args:
        call: makes an output. Gradients reach whatever requires one.
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
    """Let a module on ``meta`` pass for one on the CPU, where operators are chosen as there and still no number is computed.

    On ``meta`` itself PyTorch materialises what it would fuse on a CPU. The module is of no use afterwards.
    """
    with FakeTensorMode(allow_non_fake_inputs=True), torch.device("cpu"):
        module.to_empty(device="cpu")
        yield


def kept_bytes(call: Callable[[], Tensor], there_anyway: Iterable[Tensor]) -> tuple[Tensor, int]:
    """What a call makes, and the bytes that its graph keeps for the backward pass; arguments as of ``tally``."""
    with keeping() as kept:
        out = call()
    return out, bytes_of_storages(kept(), there_anyway)


class _Held:
    """A tensor that a graph keeps; it lives as long as the graph needs it."""

    __slots__ = ("__weakref__", "tensor")

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor


@contextmanager
def keeping() -> Iterator[Callable[[], list[Tensor]]]:
    """Watch what autograd saves meanwhile; the function that it yields lists what is still saved."""
    saved: weakref.WeakSet[_Held] = weakref.WeakSet()

    def pack(tensor: Tensor) -> _Held:
        held = _Held(tensor.detach())  # a result that is saved leads to its graph, and would keep itself alive
        saved.add(held)
        return held

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda held: held.tensor):
        yield lambda: [held.tensor for held in saved]


def bytes_of_storages(tensors: Iterable[Tensor], there_anyway: Iterable[Tensor] = ()) -> int:
    """Bytes of the storages behind ``tensors``, each once and whole, without those behind ``there_anyway``."""
    sizes = {t.untyped_storage()._cdata: t.untyped_storage().nbytes() for t in tensors}
    for tensor in there_anyway:
        sizes.pop(tensor.untyped_storage()._cdata, None)
    return sum(sizes.values())
