"""Results of the kernels against float64, on memory that holds NaN before, twice; it lives in a worker's process.

An error is the norm of the difference over the norm of the reference, so that NaN anywhere is no number and never right.
Outputs must stay below ``TOLERANCE``, and in 16 bits also below twice the error that PyTorch's own kernels make of the same
computation in the same type. Layers, where roundings add up, must stay below the larger of the two for the eager layer.
"""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from attn_zoo.cost.bench import PRECISIONS, Subject, build_layer
from attn_zoo.cost.linformer_kernels.attempts import attempt
from attn_zoo.cost.linformer_kernels.cases import Case
from attn_zoo.kernels.linformer import linformer_attention, project_sequence

TOLERANCE = {"fp32": 5e-6, "fp16": 1e-3, "bf16": 8e-3}
"""On a GPU float32 goes through three tf32 products."""

Function = Callable[..., Tensor]


class Checks:
    """One case at a time.

    Args:
        device: ``cuda``, or ``cpu`` in a process that runs Triton's interpreter.
        sharing: of the layers.
    """

    def __init__(self, device: str, sharing: str) -> None:
        warnings.filterwarnings("ignore", message=".*deterministic")
        torch.use_deterministic_algorithms(True, warn_only=True)  # which fills new memory with NaN
        self.device, self.sharing = torch.device(device), sharing

    def check(self, case: Case) -> dict[str, Any]:
        """Errors and their bounds by result, whether two runs gave the same bits, and the verdict."""
        torch.manual_seed(case.length + case.rows)
        return attempt(lambda: self._check(case), self.device)

    def _check(self, case: Case) -> dict[str, Any]:
        found = {"core": self._core, "projection": self._projection, "layer": self._layer}[case.part](case)
        errors = {name: error if math.isfinite(error) else None for name, (error, _) in found[0].items()}
        bounds = {name: bound for name, (_, bound) in found[0].items()}
        right = all(error is not None and error <= bounds[name] for name, error in errors.items())
        return {"errors": errors, "bounds": bounds, "same": found[1], "verdict": "right" if right and found[1] else "wrong"}

    def _core(self, case: Case) -> tuple[dict[str, tuple[float, float]], bool]:
        shapes = [(case.batch, case.heads, n, case.width) for n in (case.length, case.rows, case.rows)]
        inputs = [self._laid_out(shape, case) for shape in shapes]
        grad = self._laid_out(shapes[0], case)
        options: dict[str, Any] = {}
        if case.dropout:
            options = {"dropout": case.dropout, "seed": torch.tensor(1234567890123, device=self.device)}

        def ours(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            return linformer_attention(query, key, value, **options)

        found, same = _twice(ours, inputs, grad)
        # Examples and heads do not meet, so the first and the last of each are enough.
        some = [(b, h) for b in {0, case.batch - 1} for h in {0, case.heads - 1}]
        kept = self._kept(inputs, case, options)
        errors: dict[str, tuple[float, float]] = {}
        for b, h in some:
            part = [x[b, h] for x in inputs]
            mask = None if kept is None else kept[b, h]
            here = {name: x[b, h] for name, x in zip(("out", "query", "key", "value"), found, strict=True)}
            judged = _judge(here, _attention(mask, case.dropout), part, grad[b, h], case.precision)
            errors = {name: max(errors.get(name, pair), pair, key=_worse) for name, pair in judged.items()}
        return errors, same

    def _kept(self, inputs: Sequence[Tensor], case: Case, options: dict[str, Any]) -> Tensor | None:
        """Weights that dropout keeps: with equal scores and one-hot values the output is the weights themselves.

        Raises:
            ArithmeticError: their share is not what was asked for.
        """
        if not case.dropout:
            return None
        query, key = torch.zeros_like(inputs[0]), torch.zeros_like(inputs[1])
        identity = torch.eye(case.rows, device=self.device, dtype=query.dtype)
        parts = []
        for columns in identity.split(case.width, dim=1):
            value = torch.zeros_like(inputs[2])
            value[..., : columns.shape[1]] = columns
            parts.append(linformer_attention(query, key, value, **options)[..., : columns.shape[1]])
        kept = torch.cat(parts, dim=-1) > 0
        share, expected = kept.double().mean().item(), 1 - case.dropout
        if abs(share - expected) > 6 * (case.dropout * expected / kept.numel()) ** 0.5:
            raise ArithmeticError(f"dropout={case.dropout} keeps a share of {share:.4f}")
        return kept

    def _projection(self, case: Case) -> tuple[dict[str, tuple[float, float]], bool]:
        heads = (case.heads,) if case.heads else ()
        shape = (case.batch, *heads, case.length, case.width)
        tokens = self._laid_out(shape, case)
        dtype, device = tokens.dtype, self.device
        matrix = torch.randn(*heads, case.rows, case.length, device=device, dtype=dtype) * case.length**-0.5
        grad = torch.randn(case.batch, *heads, case.rows, case.width, device=device, dtype=dtype)
        valid, real = self._valid(case), None
        if valid is not None:
            real = valid.view(case.batch, *(1 for _ in heads), case.length, 1)
            tokens.masked_fill_(~real, math.nan)
        found, same = _twice(lambda e, x: project_sequence(e, x, valid), [matrix, tokens], grad)
        clean = tokens if real is None else tokens.masked_fill(~real, 0)

        def reference(e: Tensor, x: Tensor) -> Tensor:
            return e @ (x if real is None else x.masked_fill(~real, 0))

        here = dict(zip(("out", "matrix", "tokens"), found, strict=True))
        return _judge(here, reference, [matrix, clean], grad, case.precision), same

    def _layer(self, case: Case) -> tuple[dict[str, tuple[float, float]], bool]:
        """The whole layer as users call it, padded, against the eager one in float64."""
        dtype = PRECISIONS[case.precision]
        options = {"projected_length": case.rows, "sharing": self.sharing}
        layers = {}
        for who in ("triton", "eager"):
            layers[who] = build_layer(Subject("linformer", options, who), case.width, case.heads, case.length)
        layers["eager"].load_state_dict(layers["triton"].state_dict())
        layers = {who: layer.to(self.device, dtype) for who, layer in layers.items()}
        tokens = torch.randn(case.batch, case.length, case.width, device=self.device, dtype=dtype)
        grad, valid = torch.randn_like(tokens), self._valid(case)
        if valid is not None:
            tokens.masked_fill_(~valid[..., None], math.nan)
            grad.masked_fill_(~valid[..., None], 0)  # what comes out at padding means nothing
        found, same = _run_layer_twice(layers["triton"], tokens, valid, grad)
        own = _run_layer(layers["eager"], tokens, valid, grad)
        wide = copy.deepcopy(layers["eager"]).double()
        exact = _run_layer(wide, tokens.double(), valid, grad.double())
        errors: dict[str, tuple[float, float]] = {}
        for name, expected in exact.items():
            short = name if name in ("out", "tokens") else "parameters"
            bound = max(TOLERANCE[case.precision], 2 * _error(own[name], expected))
            pair = (_error(found[name], expected), bound)
            errors[short] = max(errors.get(short, pair), pair, key=_worse)
        return errors, same

    def _valid(self, case: Case) -> Tensor | None:
        """Every other example ends in padding."""
        if not case.padded:
            return None
        lengths = torch.tensor([case.length - (1 + case.length // 3) * (b % 2) for b in range(case.batch)], device=self.device)
        if case.batch == 1:
            lengths -= case.length // 5
        return torch.arange(case.length, device=self.device) < lengths[:, None]

    def _laid_out(self, shape: tuple[int, ...], case: Case) -> Tensor:
        """Normal noise of one of the layouts."""
        dtype = PRECISIONS[case.precision]
        if case.layout == "gaps":
            larger = torch.full([size + 3 for size in shape], math.nan, device=self.device, dtype=dtype)
            view = larger[tuple(slice(1, size + 1) for size in shape)]
            return view.copy_(torch.randn(shape, device=self.device, dtype=dtype))
        if case.layout == "heads first" or len(shape) == 3:
            return torch.randn(shape, device=self.device, dtype=dtype)
        batch, heads, length, width = shape
        return torch.randn(batch, length, heads, width, device=self.device, dtype=dtype).transpose(1, 2)


def _attention(kept: Tensor | None, dropout: float) -> Function:
    def attention(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        weights = (query @ key.mT * query.shape[-1] ** -0.5).softmax(dim=-1)
        return (weights if kept is None else weights * kept / (1 - dropout)) @ value

    return attention


def _differentiate(function: Function, inputs: Sequence[Tensor], grad: Tensor) -> list[Tensor]:
    """Output and gradients."""
    inputs = [x.detach().requires_grad_() for x in inputs]
    out = function(*inputs)
    return [out.detach(), *torch.autograd.grad(out, inputs, grad)]


def _twice(function: Function, inputs: Sequence[Tensor], grad: Tensor) -> tuple[list[Tensor], bool]:
    """Output and gradients, and whether a second run gave the same bits."""
    first, second = (_differentiate(function, inputs, grad) for _ in range(2))
    return first, all(map(_identical, first, second))


def _identical(first: Tensor, second: Tensor) -> bool:
    """Whether two results agree in every bit; NaN, which is wrong anyway, counts as itself."""
    return torch.equal(first.nan_to_num(7.0), second.nan_to_num(7.0))


def _judge(
    found: dict[str, Tensor], reference: Function, inputs: Sequence[Tensor], grad: Tensor, precision: str
) -> dict[str, tuple[float, float]]:
    """Error and bound of each result."""
    exact = _differentiate(reference, [x.double() for x in inputs], grad.double())
    judged = {}
    own = _differentiate(reference, inputs, grad) if precision != "fp32" else exact
    for at, (name, result) in enumerate(found.items()):
        bound = TOLERANCE[precision]
        if precision != "fp32":  # not less than an eighth, in case PyTorch's own are exact
            bound = min(bound, max(2 * _error(own[at], exact[at]), bound / 8))
        judged[name] = (_error(result, exact[at]), bound)
    return judged


def _error(found: Tensor, expected: Tensor) -> float:
    expected = expected.double()
    return (found.double() - expected).norm().item() / (expected.norm().item() or 1.0)


def _worse(pair: tuple[float, float]) -> float:
    error, bound = pair
    return error / bound if math.isfinite(error) else math.inf


def _run_layer(layer: nn.Module, tokens: Tensor, valid: Tensor | None, grad: Tensor) -> dict[str, Tensor]:
    """Output, and gradients of the tokens and every parameter."""
    tokens = tokens.detach().requires_grad_()
    parameters = dict(layer.named_parameters())
    out = layer(tokens, key_valid=valid)
    if valid is not None:
        out = out.masked_fill(~valid[..., None], 0)
    gradients = torch.autograd.grad(out, [tokens, *parameters.values()], grad)
    return {"out": out.detach(), **dict(zip(["tokens", *parameters], gradients, strict=True))}


def _run_layer_twice(layer: nn.Module, tokens: Tensor, valid: Tensor | None, grad: Tensor) -> tuple[dict[str, Tensor], bool]:
    first, second = (_run_layer(layer, tokens, valid, grad) for _ in range(2))
    return first, all(_identical(first[name], second[name]) for name in first)
