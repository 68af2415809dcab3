"""Measurement of one module on one device, in a worker process."""

from __future__ import annotations

import bisect
import itertools
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from attn_zoo.bench.protocol import TimingProtocol
from attn_zoo.bench.workers import out_of_memory
from attn_zoo.contract.auxiliary import auxiliary_loss, has_auxiliary_loss
from attn_zoo.count import peak_bytes

PRECISIONS = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}

BACKENDS = {"flash": SDPBackend.FLASH_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION, "efficient": SDPBackend.EFFICIENT_ATTENTION}
"""Fused back ends of PyTorch's ``scaled_dot_product_attention``. The keys are their names in tables."""

Parts = tuple[Callable[[Any], Any], ...]
"""Parts of a step, as functions. The first is called with None, and each of the others with the result of the one before it."""


def seconds_of_parts(parts: Parts, device: torch.device, protocol: TimingProtocol) -> tuple[float, ...]:
    """Return the mean seconds of each part of a step. After ``protocol.warmup`` untimed steps, the step is repeated for about
    ``protocol.seconds``, and at least once. The time is read before and after each part."""
    once = 0.0
    for _ in range(protocol.warmup):
        _wait(device)
        started = time.perf_counter()
        _run(parts, device)
        _wait(device)
        once = time.perf_counter() - started
    repeats = max(1, min(protocol.most_repeats, round(protocol.seconds / max(once, 1e-9))))
    steps = [_run(parts, device) for _ in range(repeats)]
    _wait(device)
    return tuple(sum(_seconds_between(*marks[at : at + 2]) for marks in steps) / repeats for at in range(len(parts)))


def _run(parts: Parts, device: torch.device) -> list[Any]:
    """Run a step, and return the points in time before and after each part."""
    result, marks = None, [_mark(device)]
    for part in parts:
        result = part(result)
        marks.append(_mark(device))
    return marks


def _mark(device: torch.device) -> Any:
    """Return a point in time: a reading of the clock or, on CUDA, an event on the stream."""
    if device.type != "cuda":
        return time.perf_counter()
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def _seconds_between(start: Any, end: Any) -> float:
    """Return the seconds between two points in time. On CUDA, both events must have happened."""
    return end - start if isinstance(start, float) else start.elapsed_time(end) * 1e-3


def _wait(device: torch.device) -> None:
    """Wait until a CUDA device has finished its work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def parts_of(module: nn.Module, kind: str, copies: Sequence[tuple[Tensor, ...]]) -> Parts:
    """Return the parts of a step of a module: for inference one function, for training the forward pass and the backward pass.
    Repeated steps use the copies of the inputs in turn.

    The backward pass starts from random gradients of the output, drawn in the first step, and from the auxiliary loss, if there is
    one. After a step, no gradients are kept.
    """
    turns = itertools.cycle(copies)
    gradients: list[Tensor] = []
    auxiliary = has_auxiliary_loss(module)

    def infer(_: object) -> None:
        with torch.inference_mode():
            module(*next(turns))

    def forward(_: object) -> tuple[Tensor, Tensor | float, tuple[Tensor, ...]]:
        inputs = next(turns)
        return module(*inputs), auxiliary_loss(module) if auxiliary else 0.0, inputs

    def backward(done: tuple[Tensor, Tensor | float, tuple[Tensor, ...]]) -> None:
        output, loss, inputs = done
        if not gradients:
            gradients.append(torch.randn_like(output))
        losses = [loss] if isinstance(loss, Tensor) else []
        torch.autograd.backward([output, *losses], [gradients[0], *(None for _ in losses)])
        for tensor in inputs:
            tensor.grad = None
        module.zero_grad(set_to_none=True)

    if kind == "forward":
        return (infer,)
    for tensor in itertools.chain.from_iterable(copies):
        tensor.requires_grad_(tensor.is_floating_point())
    return forward, backward


def _bytes_of(tensors: Iterable[Tensor]) -> int:
    return sum(t.numel() * t.element_size() for t in tensors)


def largest_that_fits(fits: Callable[[int], bool], limit: int = 2**20) -> int:
    """Return the largest batch up to ``limit`` for which ``fits`` returns True, found by doubling and bisection. Return 0 if a
    batch of one does not fit. If a batch fits, every smaller batch must fit too."""
    held, refused = 0, 1
    while refused <= limit and fits(refused):
        held, refused = refused, 2 * refused
    return held + bisect.bisect_left(range(held + 1, min(refused, limit + 1)), True, key=lambda batch: not fits(batch))


@dataclass
class Bench:
    """Measurement of the time and memory of one module.

    In every method, ``kind`` is the kind of step, ``forward`` or ``training``. A forward step is a call in evaluation and
    inference mode. A training step is a forward pass, and a backward pass to the inputs and all parameters. ``batch`` is a number
    of examples, and ``length`` is a number of tokens.

    Args:
        build: picklable function from a length to the module.
        inputs: picklable function from batch, length and dtype to the arguments of the module, on the default device.
            Floating-point arguments require a gradient in training.
        protocol: rules of the timings. For CUDA, use ``TimingProtocol.on("cuda")``.
    """

    build: Callable[[int], nn.Module]
    inputs: Callable[[int, int, torch.dtype], tuple[Tensor, ...]]
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    precision: str = "fp32"
    backend: str | None = None
    protocol: TimingProtocol = field(default_factory=TimingProtocol)
    _length: int = field(default=0, init=False)
    _modules: dict[str, nn.Module] = field(default_factory=dict, init=False)
    """Modules of the length measured last: one for each kind of step."""

    def parts(self, kind: str, batch: int, length: int) -> tuple[float, ...]:
        """Return how many seconds each part of a step takes. A forward step has one part. A training step has a forward pass
        and a backward pass."""
        with self._kernels():
            return seconds_of_parts(self._parts(kind, batch, length, self.protocol), self.device, self.protocol)

    def peak(self, kind: str, batch: int, length: int) -> int:
        """Return the peak memory of a step in bytes: the most that was allocated at any time, minus what was allocated before."""
        with self._kernels():
            step = self._step(kind, batch, length)
            step()
            return peak_bytes(step, self.device)

    def held(self, kind: str, batch: int, length: int) -> int:
        """Return the number of bytes that are allocated before a step: parameters, buffers and inputs. For ``training``, the
        gradient of the output is included."""
        module, inputs = self._module(kind, length), self._inputs(batch, length)
        with torch.no_grad(), self._kernels():
            gradient = [module(*inputs)] if kind == "training" else []
        return _bytes_of([*module.parameters(), *module.buffers(), *inputs, *gradient])

    def largest_batch(self, kind: str, length: int, budget: int) -> int:
        """Return the largest batch whose step fits into ``budget`` bytes of PyTorch's CUDA memory. It is found by trying
        batches."""
        self._modules = {}  # a module of another kind would take part of the budget
        total = torch.cuda.get_device_properties(self.device).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, budget / total), self.device)
        try:
            with self._kernels():
                return largest_that_fits(lambda batch: self._fits(kind, batch, length))
        finally:
            torch.cuda.set_per_process_memory_fraction(1.0, self.device)

    def _fits(self, kind: str, batch: int, length: int) -> bool:
        torch.cuda.empty_cache()  # memory that the previous batch left in the cache, whether it failed or not
        try:
            self._step(kind, batch, length)()
            torch.cuda.synchronize(self.device)
        except Exception as error:
            if not out_of_memory(error):
                raise
            return False
        return True

    def _step(self, kind: str, batch: int, length: int) -> Callable[[], object]:
        return partial(_run, self._parts(kind, batch, length, replace(self.protocol, rotate_bytes=0)), self.device)

    def _parts(self, kind: str, batch: int, length: int, protocol: TimingProtocol) -> Parts:
        module, inputs = self._module(kind, length), self._inputs(batch, length)
        copies = [inputs, *(tuple(t.clone() for t in inputs) for _ in range(protocol.copies(_bytes_of(inputs)) - 1))]
        return parts_of(module, kind, copies)

    def _inputs(self, batch: int, length: int) -> tuple[Tensor, ...]:
        with self.device:
            return self.inputs(batch, length, PRECISIONS[self.precision])

    def _module(self, kind: str, length: int) -> nn.Module:
        if self._length != length:
            self._length, self._modules = length, {}
        if kind not in self._modules:
            torch.manual_seed(0)
            with self.device:
                module = self.build(length)
            self._modules[kind] = module.to(PRECISIONS[self.precision]).train(kind == "training")
        return self._modules[kind]

    def _kernels(self) -> AbstractContextManager[object]:
        return nullcontext() if self.backend is None else sdpa_kernel(BACKENDS[self.backend])


@dataclass
class MatrixProducts:
    """Matrix products that are timed to measure the speed of a device."""

    device: torch.device
    size: ClassVar[int] = 2048
    """Number of rows, and of columns, of each matrix."""
    flops: ClassVar[int] = 2 * size**3

    def parts(self, kind: str, batch: int, length: int) -> tuple[float, ...]:
        """Return the seconds of one float32 matrix product, without the allocation of its result. The arguments are not used."""
        left, right, out = (torch.randn(self.size, self.size, device=self.device) for _ in range(3))
        with torch.inference_mode():
            return seconds_of_parts((lambda _: torch.mm(left, right, out=out),), self.device, TimingProtocol(warmup=2))
