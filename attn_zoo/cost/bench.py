"""One module on one device, timed and weighed; it lives in a worker's process."""

from __future__ import annotations

import resource
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Protocol

import psutil
import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from attn_zoo.contract import UnsupportedError
from attn_zoo.cost.driven import Driven, Parts, bytes_of
from attn_zoo.cost.energy import NotMeasured, energy_meter, joules_of
from attn_zoo.cost.largest_batch import by_trying, line_through
from attn_zoo.cost.measured import high_water, peak_bytes, restart_high_water
from attn_zoo.cost.protocol import TimingProtocol
from attn_zoo.cost.timing import seconds_of, seconds_of_parts
from attn_zoo.cost.workers import out_of_memory
from attn_zoo.layer import MultiHeadAttention

PRECISIONS = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}

BACKENDS = {"flash": SDPBackend.FLASH_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION, "efficient": SDPBackend.EFFICIENT_ATTENTION}
"""Fused back ends of ``scaled_dot_product_attention`` by the name they have in tables."""


@dataclass(frozen=True, slots=True)
class Subject:
    """One layer to measure: a mechanism with its options and implementation."""

    attention: str
    options: Mapping[str, Any]
    implementation: str = "auto"
    backend: str | None = None
    """A key of ``BACKENDS`` to hold PyTorch's fused attention to; None leaves the choice to PyTorch."""


def build_layer(subject: Subject, dim: int, heads: int, length: int) -> nn.Module:
    """A layer of the zoo with its projections, (batch, length, dim) -> same."""
    return MultiHeadAttention(
        dim, heads, subject.attention, length=length, implementation=subject.implementation, **dict(subject.options)
    )


class Feed(Protocol):
    """What a module is given; called where tensors are made on the right device."""

    def inputs(self, batch: int, length: int, dtype: torch.dtype) -> tuple[Tensor, ...]:
        """The module's arguments; those of floating point have a gradient in training."""

    def gradient(self, batch: int, length: int, dtype: torch.dtype) -> Tensor:
        """That of the output, as from what comes after the module: no loss of its own is timed."""


@dataclass(frozen=True, slots=True)
class Tokens:
    """Tokens of normal noise, (batch, length, dim), into a module that gives as many back."""

    dim: int

    def inputs(self, batch: int, length: int, dtype: torch.dtype) -> tuple[Tensor, ...]:
        """The tokens."""
        return (torch.randn(batch, length, self.dim, dtype=dtype),)

    def gradient(self, batch: int, length: int, dtype: torch.dtype) -> Tensor:
        """Normal noise, too."""
        return torch.randn(batch, length, self.dim, dtype=dtype)


@dataclass
class Bench:
    """Time, memory and energy of one module.

    ``kind`` is ``forward`` (evaluation, inference mode) or ``training`` (forward with its graph, then from a gradient of the
    output those of the inputs and all parameters, then the optimiser's step where there is one).

    Args:
        build: makes the module for a length; picklable.
        dim: width of the tokens; unread where there is a ``feed``.
        feed: what the module is given, if not tokens.
        optimiser: training ends with a step of AdamW, its gradient clipped as in the runner's. Its learning rate is 0, so that
            every step does the same work on the same weights.
        protocol: how timings and energy are taken; for CUDA ``TimingProtocol.on("cuda")``.
    """

    build: Callable[[int], nn.Module]
    dim: int = 0
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    precision: str = "fp32"
    backend: str | None = None
    feed: Feed | None = None
    optimiser: bool = False
    protocol: TimingProtocol = field(default_factory=TimingProtocol)
    _length: int = field(default=0, init=False)
    _driven: dict[str, Driven] = field(default_factory=dict, init=False)
    """Of the last length, by kind: a module stays, as it does in use, but one that was used for inference is not trained."""

    def parts(self, kind: str, batch: int, length: int) -> tuple[float, ...]:
        """Seconds by the protocol: of the forward pass; in training of forward, backward and, where there is one, optimiser."""
        protocol, parts = self.protocol, self._parts(kind, batch, length, self.protocol)
        how = (self.device, protocol.seconds, protocol.warmup, protocol.most_repeats)
        with self._kernels():
            return seconds_of_parts(parts.parts, *how) if kind == "training" else (seconds_of(parts.step, *how),)

    def joules(self, kind: str, batch: int, length: int) -> float:
        """Energy of one step by the protocol.

        Raises:
            ValueError: this machine has no meter, or the window was too long for it.
        """
        meter = energy_meter(self.device)
        if isinstance(meter, NotMeasured):
            raise ValueError(meter.reason)
        parts = self._parts(kind, batch, length, self.protocol)
        with self._kernels():
            return joules_of(parts.step, self.device, meter, self.protocol.energy_seconds, self.protocol.warmup)

    def peak(self, kind: str, batch: int, length: int) -> int:
        """Largest number of bytes held at once during a step, above what was held before it (see ``peak_bytes``)."""
        with self._kernels():
            step = self._step(kind, batch, length)
            step()
            return peak_bytes(step, self.device)

    def held(self, kind: str, batch: int, length: int) -> int:
        """Bytes there before a step: parameters, buffers, inputs, in training the output's gradient and the optimiser's state."""
        driven = self._drive(kind, length)
        with torch.device("meta"):
            given = list(self._feed().inputs(batch, length, self._dtype()))
            given += [self._feed().gradient(batch, length, self._dtype())] if kind == "training" else []
        return bytes_of([*driven.module.parameters(), *driven.module.buffers(), *driven.state(), *given])

    def largest_batch(self, kind: str, length: int, budget: int) -> int:
        """Largest batch whose step fits into ``budget`` bytes of PyTorch's CUDA memory, by trying: exact."""
        self._driven = {}  # that of another kind would take part of the budget
        total = torch.cuda.get_device_properties(self.device).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, budget / total), self.device)
        try:
            with self._kernels():
                return by_trying(lambda batch: self._fits(kind, batch, length), self._guess(kind, length, budget))
        finally:
            torch.cuda.set_per_process_memory_fraction(1.0, self.device)

    def resident_peak(self, kind: str, batch: int, length: int, small: int | None = None) -> int:
        """Bytes by which a step raises the process' resident memory at its highest, on a process that did nothing before.

        A step at length ``small`` comes first, so that starting threads and libraries is not counted; None is the smallest
        power of two from 16 on, below ``length``, at which the module can be built and run.
        """
        self._start_libraries(kind, [small] if small else [2**power for power in range(4, 32) if 2**power < length])
        step = self._step(kind, batch, length)
        before, restarted = psutil.Process().memory_info().rss, restart_high_water()
        step()
        peak = high_water() if restarted else 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return max(0, peak - before)

    def _start_libraries(self, kind: str, lengths: Sequence[int]) -> None:
        for length in lengths:
            try:
                self._step(kind, 1, length)()
                return
            except (ValueError, UnsupportedError):  # too short for this mechanism
                if length == lengths[-1]:
                    raise

    def _guess(self, kind: str, length: int, budget: int) -> int:
        """Largest batch by the line through the first two, where it has one: a start that saves trials."""
        if not (self._fits(kind, 1, length) and self._fits(kind, 2, length)):
            return 1
        peaks = [self.held(kind, batch, length) + self.peak(kind, batch, length) for batch in (1, 2)]
        return line_through((1, 2), (peaks[0], peaks[1])).largest_batch(budget) if peaks[1] > peaks[0] else 1

    def _fits(self, kind: str, batch: int, length: int) -> bool:
        torch.cuda.empty_cache()  # what the batch before left, failed or not
        try:
            self._step(kind, batch, length)()
            torch.cuda.synchronize(self.device)
        except Exception as error:
            if not out_of_memory(error):
                raise
            return False
        return True

    def _step(self, kind: str, batch: int, length: int) -> Callable[[], object]:
        return self._parts(kind, batch, length, replace(self.protocol, rotate_bytes=0)).step

    def _parts(self, kind: str, batch: int, length: int, protocol: TimingProtocol) -> Parts:
        driven = self._drive(kind, length)
        with self.device:
            inputs = self._feed().inputs(batch, length, self._dtype())
            gradient = self._feed().gradient(batch, length, self._dtype()) if kind == "training" else None
        copies = [inputs, *(tuple(t.clone() for t in inputs) for _ in range(protocol.copies(bytes_of(inputs)) - 1))]
        return driven.forward(copies) if gradient is None else driven.training(copies, gradient)

    def _drive(self, kind: str, length: int) -> Driven:
        if self._length != length:
            self._length, self._driven = length, {}
        if kind not in self._driven:
            torch.manual_seed(0)
            with self.device:
                module = self.build(length)
            module = module.to(self._dtype()).train(kind == "training")
            self._driven[kind] = Driven(module, self.optimiser and kind == "training")
        return self._driven[kind]

    def _feed(self) -> Feed:
        return Tokens(self.dim) if self.feed is None else self.feed

    def _dtype(self) -> torch.dtype:
        return PRECISIONS[self.precision]

    def _kernels(self) -> AbstractContextManager[object]:
        return nullcontext() if self.backend is None else sdpa_kernel(BACKENDS[self.backend])


class MatrixProducts:
    """The rate of the device; it lives in a worker's process, too."""

    size: ClassVar[int] = 2048
    """Rows and columns of both factors."""
    flops: ClassVar[int] = 2 * size**3

    def parts(self, kind: str, batch: int, length: int) -> tuple[float]:
        """Seconds of one fp32 product, into a result that is there already."""
        left, right, out = (torch.randn(self.size, self.size) for _ in range(3))
        with torch.inference_mode():
            return (seconds_of(lambda: torch.mm(left, right, out=out), torch.device("cpu"), 0.2),)
