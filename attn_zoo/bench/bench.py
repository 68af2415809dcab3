"""Measurement of one module on one device."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from attn_zoo.bench.protocol import TimingProtocol
from attn_zoo.bench.timing import Parts, seconds_of, seconds_of_parts, step_of
from attn_zoo.bench.workers import out_of_memory
from attn_zoo.bench.workload import bytes_of, forward_parts, training_parts
from attn_zoo.count.memory import by_trying, peak_bytes

PRECISIONS = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}

BACKENDS = {"flash": SDPBackend.FLASH_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION, "efficient": SDPBackend.EFFICIENT_ATTENTION}
"""Fused back ends of PyTorch's ``scaled_dot_product_attention``. The keys are their names in tables."""


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
        protocol, parts = self.protocol, self._parts(kind, batch, length, self.protocol)
        how = (self.device, protocol.seconds, protocol.warmup, protocol.most_repeats)
        with self._kernels():
            return seconds_of_parts(parts, *how) if kind == "training" else (seconds_of(step_of(parts), *how),)

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
        return bytes_of([*module.parameters(), *module.buffers(), *inputs, *gradient])

    def largest_batch(self, kind: str, length: int, budget: int) -> int:
        """Return the largest batch whose step fits into ``budget`` bytes of PyTorch's CUDA memory. It is found by trying
        batches."""
        self._modules = {}  # a module of another kind would take part of the budget
        total = torch.cuda.get_device_properties(self.device).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, budget / total), self.device)
        try:
            with self._kernels():
                return by_trying(lambda batch: self._fits(kind, batch, length))
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
        return step_of(self._parts(kind, batch, length, replace(self.protocol, rotate_bytes=0)))

    def _parts(self, kind: str, batch: int, length: int, protocol: TimingProtocol) -> Parts:
        module, inputs = self._module(kind, length), self._inputs(batch, length)
        copies = [inputs, *(tuple(t.clone() for t in inputs) for _ in range(protocol.copies(bytes_of(inputs)) - 1))]
        return training_parts(module, copies) if kind == "training" else forward_parts(module, copies)

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

    def parts(self, kind: str, batch: int, length: int) -> tuple[float]:
        """Return the seconds of one float32 matrix product, without the allocation of its result. The arguments are not used."""
        left, right, out = (torch.randn(self.size, self.size, device=self.device) for _ in range(3))
        with torch.inference_mode():
            return (seconds_of(lambda: torch.mm(left, right, out=out), self.device, 0.2),)
