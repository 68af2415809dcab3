"""One layer on one device, timed and weighed; it lives in a worker's process."""

from __future__ import annotations

import resource
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from attn_zoo.cost.largest_batch import by_trying, line_through
from attn_zoo.cost.measured import peak_bytes
from attn_zoo.cost.timing import seconds_of, seconds_of_halves
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
    implementation: str = "eager"
    backend: str | None = None
    """A key of ``BACKENDS`` to hold PyTorch's fused attention to; None leaves the choice to PyTorch."""


def build_layer(subject: Subject, dim: int, heads: int, length: int) -> nn.Module:
    """A layer of the zoo with its projections, (batch, length, dim) -> same."""
    return MultiHeadAttention(
        dim, heads, subject.attention, length=length, implementation=subject.implementation, **dict(subject.options)
    )


@dataclass
class Bench:
    """Time and memory of one layer, for tokens of normal noise.

    ``kind`` is ``forward`` (evaluation, inference mode) or ``training`` (forward with its graph, then from a gradient of the
    output those of the tokens and all parameters).

    Args:
        build: makes the layer for a length; picklable.
        dim: width of the tokens.
    """

    build: Callable[[int], nn.Module]
    dim: int
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    precision: str = "fp32"
    backend: str | None = None
    _length: int = field(default=0, init=False)
    _layers: dict[str, nn.Module] = field(default_factory=dict, init=False)
    """Of the last length, by kind: a layer stays, as it does in use, but one that was used for inference is not trained."""

    def seconds(self, kind: str, batch: int, length: int, at_least: float) -> tuple[float, float | None]:
        """Seconds of one step and, in training, those of its backward half."""
        with self._kernels():
            layer, tokens = self._layer(kind, length), self._tokens(kind, batch, length)
            if kind == "forward":
                return seconds_of(_forward(layer, tokens), self.device, at_least), None
            return seconds_of_halves(lambda: layer(tokens), _backward(layer, tokens), self.device, at_least)

    def peak(self, kind: str, batch: int, length: int) -> int:
        """Largest number of bytes held at once during a step, above what was held before it (see ``peak_bytes``)."""
        with self._kernels():
            step = self._step(kind, batch, length)
            step()
            return peak_bytes(step, self.device)

    def held(self, kind: str, batch: int, length: int) -> int:
        """Bytes of the parameters, the buffers, the tokens and in training the output's gradient, there before a step."""
        layer = self._layer(kind, length)
        kept = sum(t.numel() * t.element_size() for t in [*layer.parameters(), *layer.buffers()])
        inputs = 2 if kind == "training" else 1
        return kept + inputs * batch * length * self.dim * PRECISIONS[self.precision].itemsize

    def largest_batch(self, kind: str, length: int, budget: int) -> int:
        """Largest batch whose step fits into ``budget`` bytes of PyTorch's CUDA memory, by trying: exact."""
        self._layers = {}  # that of another kind would take part of the budget
        total = torch.cuda.get_device_properties(self.device).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, budget / total), self.device)
        try:
            with self._kernels():
                return by_trying(lambda batch: self._fits(kind, batch, length), self._guess(kind, length, budget))
        finally:
            torch.cuda.set_per_process_memory_fraction(1.0, self.device)

    def resident_peak(self, kind: str, batch: int, length: int, small: int) -> int:
        """Bytes by which a step raises the process' resident memory at its highest, on a process that did nothing before.

        A step at length ``small`` comes first, so that starting threads and libraries is not counted.
        """
        self._step(kind, 1, small)()
        step = self._step(kind, batch, length)
        before, restarted = psutil.Process().memory_info().rss, _restart_high_water()
        step()
        peak = _high_water() if restarted else 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return max(0, peak - before)

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
        layer, tokens = self._layer(kind, length), self._tokens(kind, batch, length)
        if kind == "forward":
            return _forward(layer, tokens)
        backward = _backward(layer, tokens)
        return lambda: backward(layer(tokens))

    def _layer(self, kind: str, length: int) -> nn.Module:
        if self._length != length:
            self._length, self._layers = length, {}
        if kind not in self._layers:
            torch.manual_seed(0)
            with self.device:
                layer = self.build(length)
            self._layers[kind] = layer.to(PRECISIONS[self.precision]).train(kind == "training")
        return self._layers[kind]

    def _tokens(self, kind: str, batch: int, length: int) -> Tensor:
        dtype = PRECISIONS[self.precision]
        return torch.randn(batch, length, self.dim, device=self.device, dtype=dtype, requires_grad=kind == "training")

    def _kernels(self) -> AbstractContextManager[object]:
        return nullcontext() if self.backend is None else sdpa_kernel(BACKENDS[self.backend])


class MatrixProducts:
    """The rate of the CPU; it lives in a worker's process, too."""

    def seconds(self, size: int) -> tuple[float]:
        """Seconds of one fp32 product of two ``size`` × ``size`` matrices, into a result that is there already."""
        left, right, out = (torch.randn(size, size) for _ in range(3))
        with torch.inference_mode():
            return (seconds_of(lambda: torch.mm(left, right, out=out), torch.device("cpu"), 0.2),)


def _forward(layer: nn.Module, tokens: Tensor) -> Callable[[], object]:
    def forward() -> object:
        with torch.inference_mode():
            return layer(tokens)

    return forward


def _backward(layer: nn.Module, tokens: Tensor) -> Callable[[Tensor], object]:
    """Backward of a gradient that is there already, as from the layer above: no loss of its own is timed."""
    gradient = torch.randn_like(tokens, requires_grad=False)

    def backward(output: Tensor) -> None:
        output.backward(gradient)
        layer.zero_grad(set_to_none=True)
        tokens.grad = None

    return backward


def _restart_high_water() -> bool:
    """Ask Linux to forget the highest resident size so far."""
    try:
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    except OSError:
        return False
    return True


def _high_water() -> int:
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith("VmHWM:"):
            return 1024 * int(line.split()[1])
    raise RuntimeError("/proc/self/status has no VmHWM")
