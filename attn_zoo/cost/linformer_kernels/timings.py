"""Steps of the cells: their inputs, and how each of those who can do it does it; it lives in a worker's process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import sdpa_kernel

from attn_zoo.cost.bench import BACKENDS, PRECISIONS, Subject, build_layer
from attn_zoo.cost.linformer_kernels.attempts import attempt
from attn_zoo.cost.linformer_kernels.clock import Clock, Step
from attn_zoo.cost.linformer_kernels.setting import Cell, Setting
from attn_zoo.cost.measured import peak_bytes
from attn_zoo.kernels.linformer import linformer_attention, project_sequence

SETS = 4
"""Inputs that take turns, so that none is still in the cache."""


class Timings:
    """One cell at a time, on inputs of normal noise."""

    def __init__(self, setting: Setting, device: torch.device) -> None:
        self.setting, self.device = setting, device
        self.clock = Clock(device)

    def measure(self, cell: Cell) -> dict[str, Any]:
        """Times (see ``Clock.time``); of a layer also the most bytes that a step holds above what was held before."""
        torch.manual_seed(0)
        return attempt(lambda: self._measure(cell), self.device)

    def _measure(self, cell: Cell) -> dict[str, Any]:
        with sdpa_kernel(BACKENDS[cell.who]) if cell.who in BACKENDS else nullcontext():
            steps = self.steps(cell)
            found = self.clock.time(steps, self.setting.rounds, self.setting.repeat_seconds)
            if cell.part == "layer":
                found["peak_bytes"] = peak_bytes(steps[0], self.device)
            return found

    def steps(self, cell: Cell) -> list[Step]:
        """The cell's work on different inputs."""
        make = {"core": self._core, "projection": self._projection}
        if cell.part == "layer":
            return self._layer(cell)
        function, shapes = make[cell.part](cell)
        return [_step(function, [self._noise(cell, *shape) for shape in shapes], cell.kind) for _ in range(SETS)]

    def _core(self, cell: Cell) -> tuple[Callable[..., Tensor], list[tuple[int, ...]]]:
        """Queries, keys and values are views of (batch, length, heads · head_dim), as in a layer."""
        s = self.setting
        batch, width = s.batch(cell.length), s.dim // s.heads
        kernel = linformer_attention if cell.who == "triton" else F.scaled_dot_product_attention

        def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            return kernel(query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2))

        short = (batch, cell.rows, s.heads, width)
        return attend, [(batch, cell.length, s.heads, width), short, short]

    def _projection(self, cell: Cell) -> tuple[Callable[..., Tensor], list[tuple[int, ...]]]:
        s = self.setting
        kernel = project_sequence if cell.who == "triton" else torch.matmul

        def project(matrix: Tensor, tokens: Tensor) -> Tensor:
            return kernel(matrix, tokens)

        return project, [(cell.rows, cell.length), (s.batch(cell.length), cell.length, s.dim)]

    def _layer(self, cell: Cell) -> list[Step]:
        s = self.setting
        subject = Subject("softmax", {}, "sdpa", cell.who)
        if cell.rows:
            subject = Subject("linformer", {"projected_length": cell.rows, "sharing": s.sharing}, cell.who)
        with self.device:
            layer = build_layer(subject, s.dim, s.heads, cell.length)
        layer = layer.to(PRECISIONS[cell.precision]).train(cell.kind == "training")
        shape = (s.batch(cell.length), cell.length, s.dim)
        return [_layer_step(layer, self._noise(cell, *shape), cell.kind) for _ in range(SETS)]

    def _noise(self, cell: Cell, *shape: int) -> Tensor:
        return torch.randn(shape, device=self.device, dtype=PRECISIONS[cell.precision])


def _step(function: Callable[..., Tensor], inputs: Sequence[Tensor], kind: str) -> Step:
    """``forward`` without a graph, or ``backward`` alone, on a graph that is made once."""
    if kind == "forward":

        def forward() -> Tensor:
            with torch.no_grad():
                return function(*inputs)

        return forward
    wanted = [x.requires_grad_() for x in inputs]
    out = function(*wanted)
    grad = torch.randn_like(out)
    return lambda: torch.autograd.grad(out, wanted, grad, retain_graph=True)


def _layer_step(layer: nn.Module, tokens: Tensor, kind: str) -> Step:
    """``forward`` in inference mode, or ``training``: forward with its graph, then all gradients."""
    if kind == "forward":

        def forward() -> Tensor:
            with torch.inference_mode():
                out: Tensor = layer(tokens)
                return out

        return forward
    grad = torch.randn_like(tokens)
    wanted = [tokens.requires_grad_(), *layer.parameters()]
    return lambda: torch.autograd.grad(layer(tokens), wanted, grad)
