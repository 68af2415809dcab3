"""Counts of FLOPs of matrix products, of bytes that autograd saves for the backward pass, and of the peak memory of a step."""

from __future__ import annotations

import math
import os
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.profiler import ProfilerActivity, profile
from torch.utils.flop_counter import FlopCounterMode

from attn_zoo.contract.auxiliary import auxiliary_loss, has_auxiliary_loss


def _product_flops(into: Sequence[int], left: Sequence[int], right: Sequence[int], **rest: object) -> int:
    """Return the FLOPs of a matrix product from the shapes of its factors."""
    return 2 * math.prod(left) * right[-1]


def _convolution_backward_flops(
    grad_out: Sequence[int], tokens: Sequence[int], weight: Sequence[int], *rest: object, **named: object
) -> int:
    """Return the FLOPs of a convolution's backward pass, from shapes. Each requested gradient costs as much as the forward pass."""
    transposed, wanted = rest[4], rest[7]
    assert isinstance(wanted, Sequence)
    return 2 * math.prod(tokens if transposed else grad_out) * math.prod(weight[1:]) * sum(map(bool, wanted[:2]))


def _fused_attention_flops(query: Sequence[int], key: Sequence[int], value: Sequence[int], *rest: object, **named: object) -> int:
    """Return the FLOPs of softmax(q kᵀ) v, from shapes (batch, heads, length, head_dim). Causal attention counts in full."""
    return 2 * math.prod(query[:-1]) * key[-2] * (query[-1] + value[-1])


COUNTED_HERE = {
    torch.ops.aten.addmm_: _product_flops,
    torch.ops.aten.baddbmm_: _product_flops,
    torch.ops.aten.convolution_backward: _convolution_backward_flops,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: _fused_attention_flops,
}
"""FLOP formulas of operators for which PyTorch's counter is wrong. It omits matrix products that are added to a tensor in place
and, in PyTorch 2.14, fused attention on a CPU. It counts gradients of depthwise convolutions wrongly."""


def flops_of(call: Callable[[], object]) -> int:
    """Return the FLOPs of a call. Each multiplication and each addition in a matrix product counts as one."""
    with FlopCounterMode(display=False, custom_mapping=COUNTED_HERE) as counter:
        call()
    return int(counter.get_total_flops())


@dataclass(frozen=True, slots=True)
class Counts:
    """Costs of one example in float32. A cost is None if it is unknown or was not counted."""

    flops: int | None = None
    backward_flops: int | None = None
    parameters: int | None = None
    activation_bytes: int | None = None
    """Bytes that autograd saves for the backward pass. The storage of a tensor counts once and in full."""
    state_bytes: int | None = None
    """Bytes of the recurrent state. None if there is no recurrent state."""


def tally(call: Callable[[], Tensor], excluded: Iterable[Tensor], module: nn.Module | None = None) -> Counts:
    """Return the FLOPs of a call and of the backward pass from its output, and the bytes of activations that are saved between the
    two. On the ``meta`` device, nothing is computed.

    An auxiliary loss is computed in training only. Its FLOPs count as part of the backward pass.

    Args:
        call: function that returns an output.
        excluded: inputs, parameters and buffers, whose bytes do not count as saved.
        module: module that ``call`` calls, if mechanisms in it may have an auxiliary loss. With such a loss, ``call`` is made again
            in training mode.
    """
    with FlopCounterMode(display=False, custom_mapping=COUNTED_HERE) as forward:
        out, held = kept_bytes(call, excluded)
    backward = 0
    if module is not None and has_auxiliary_loss(module):
        was_training = module.training
        module.train()
        with FlopCounterMode(display=False, custom_mapping=COUNTED_HERE) as training:
            out, held = kept_bytes(call, excluded)
            (out.sum() + auxiliary_loss(module)).backward()
        module.train(was_training)
        backward = int(training.get_total_flops() - forward.get_total_flops())
    elif out.requires_grad:
        gradient = torch.ones_like(out)
        backward = flops_of(lambda: out.backward(gradient))
    return Counts(int(forward.get_total_flops()), backward, activation_bytes=held)


@contextmanager
def as_on_a_cpu(module: nn.Module) -> Iterator[None]:
    """Return a context in which a module on the ``meta`` device runs the same operators as on a CPU. Only shapes are computed.

    Outside this context, PyTorch does not fuse attention on ``meta``, and allocates the whole matrix of attention weights. After
    the context, the module must not be used.
    """
    with FakeTensorMode(allow_non_fake_inputs=True), torch.device("cpu"):
        module.to_empty(device="cpu")
        yield


def kept_bytes(call: Callable[[], Tensor], excluded: Iterable[Tensor]) -> tuple[Tensor, int]:
    """Return the result of ``call``, and the bytes that autograd saves for the backward pass. Storages of tensors in
    ``excluded`` are not counted."""
    with keeping() as kept:
        out = call()
    return out, bytes_of_storages(kept(), excluded)


class _Held:
    """Tensor that an autograd graph saves. The object lives as long as the graph."""

    __slots__ = ("__weakref__", "tensor")

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor


@contextmanager
def keeping() -> Iterator[Callable[[], list[Tensor]]]:
    """Return a context that records the tensors that autograd saves for the backward pass. In ``with keeping() as kept``, the
    call ``kept()`` returns the recorded tensors that autograd has not yet released."""
    saved: weakref.WeakSet[_Held] = weakref.WeakSet()

    def pack(tensor: Tensor) -> _Held:
        held = _Held(tensor.detach())  # undetached, a saved result refers to its graph and would keep itself alive
        saved.add(held)
        return held

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda held: held.tensor):
        yield lambda: [held.tensor for held in saved]


def bytes_of_storages(tensors: Iterable[Tensor], excluded: Iterable[Tensor] = ()) -> int:
    """Return the number of bytes in the storages of ``tensors``. Every storage is counted in full, and only once. Storages of
    tensors in ``excluded`` are not counted."""
    sizes = {t.untyped_storage()._cdata: t.untyped_storage().nbytes() for t in tensors}
    for tensor in excluded:
        sizes.pop(tensor.untyped_storage()._cdata, None)
    return sum(sizes.values())


def peak_bytes(step: Callable[[], object], device: torch.device) -> int:
    """Return the peak memory of ``step``: the most bytes that PyTorch's allocator held at once, minus those that it held before.

    On CUDA, the caching allocator reports this number. On a CPU, PyTorch's profiler records all allocations, also inside
    operators. The profiler slows the step down, so do not time the same step.
    """
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        step()
        torch.cuda.synchronize(device)
        return int(torch.cuda.max_memory_allocated(device) - before)
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # read when the profiler first starts; it otherwise reports each start and stop
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        step()
    results = profiler.profiler.kineto_results  # the only place that keeps single allocations in order
    changes = sorted((event.start_ns(), event.nbytes()) for event in results.events() if event.name() == "[memory]")
    held = peak = 0
    for _, change in changes:
        held += change
        peak = max(peak, held)
    return peak
