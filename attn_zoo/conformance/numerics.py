"""Checks of numerical precision and of dropout."""

from __future__ import annotations

import copy
import math
from dataclasses import replace
from itertools import product

import torch
from torch import Tensor

from attn_zoo.conformance.harness import NotApplicable, require, require_finite, seed_generators
from attn_zoo.conformance.jumps import MOVED, errors_apart_from_jumps, perturbed
from attn_zoo.conformance.requests import Change, Request, answers, require_like_queries
from attn_zoo.conformance.sizes import BORDERS
from attn_zoo.conformance.subject import ENDS_AND_HOLES, Subject, attention_check
from attn_zoo.contract import Attention, UnsupportedError

SINGLE = 1e-4
"""Largest permitted difference between float32 and float64, relative to the largest output: about a thousand roundings."""
# The second limit is lenient, because a rounded hash may send a position into another bucket.
HALF_MEDIAN, HALF_MEAN = 0.05, 0.5
"""Largest permitted errors of outputs in 16 bits: the median error, and the root mean square error. Both are relative to the root
mean square of the outputs in float64."""
GRADIENT_MEDIAN = 0.25
"""Largest permitted median error of a gradient in 16 bits, relative to the median absolute gradient in float64."""
SHORT_MEDIAN, LONG_MEDIAN = 0.1, 0.25
"""Limits that replace ``HALF_MEDIAN`` at sizes that are drawn at random: the first up to 129 positions, the second at longer
lengths."""
ROUNDINGS = 4.0
"""Largest permitted quotient of two median errors: the error in 16 bits, divided by the error in float64 after inputs and
parameters are rounded to 16 bits."""
ADVICE = (
    f"These numbers do not jump in float64 if the inputs move by {MOVED} roundings of float32, so no kink or hard choice explains "
    "the difference. Compute every step in the dtype of the inputs, and do not subtract large numbers that are nearly equal"
)
"""End of the message if float32 differs from float64."""
COPIES, FEW_COPIES = 512, 8
EXTREMES: dict[str, Change] = {
    "inputs 30 times as large": lambda _, tensor: 30 * tensor,
    "inputs of zeros": lambda _, tensor: torch.zeros_like(tensor),
    "every third token of zeros": lambda _, tensor: tensor * (torch.arange(tensor.shape[2], device=tensor.device) % 3 > 0)[:, None],
    "tokens all alike": lambda _, tensor: tensor[:, :, :1].expand_as(tensor),
}
"""Functions that make inputs extreme, by a description of the changed inputs."""
DEVIATIONS = 6.0


@attention_check("implementation")
def single_precision_is_close(subject: Subject) -> str:
    """Outputs and gradients in float32 are close to those in float64. Numbers may differ in float32 if they jump in float64 when
    inputs move by a few roundings of float32."""
    if subject.dtype is not torch.float64:
        raise NotApplicable("the check implementation_agrees_with_eager already compares this implementation with eager in float64")
    largest = 0.0
    for module in subject.modules():
        request = subject.draw_padded(module)
        want, got = answers(request, module), answers(request.cast(torch.float32), copy.deepcopy(module).float())
        where = f"float32 against float64, causal={module.geometry.causal}"
        _require_all_finite(got, where)
        scales = {name: _largest({name: answer}) for name, answer in want.items()}
        largest = max(largest, _require_near(got, want, scales, request, module, where))
    return f"float32 differs from float64 by {largest:.1e} of the largest output"


@attention_check("implementation")
def large_inputs_stay_finite(subject: Subject) -> None:
    """Outputs and gradients are finite at extreme inputs: 30 times as large as usual, all zeros, zeros in some tokens, or equal
    tokens. The inputs are in float32 or, if the kernels multiply matrices in one dtype only, in that dtype."""
    for module in subject.modules(dtype=subject.single):
        request = subject.draw_padded(module).cast(subject.single)
        for what, change in EXTREMES.items():
            _require_all_finite(answers(request.changed(change), module), f"{what}, causal={module.geometry.causal}")


@attention_check("implementation")
def every_size_runs_in_every_type(subject: Subject) -> str | None:
    """At every tested size, outputs and gradients in float32 are close to those in float64, and those in 16-bit dtypes are finite.
    Numbers may differ in float32 if they jump in float64 when inputs move by a few roundings of float32. The error of 16-bit
    outputs is at most a few times the error of float64 outputs for which inputs and parameters were rounded to 16 bits."""
    largest = 0.0
    for module in subject.modules(subject.sized(longest=min(BORDERS) if subject.interpreted else None)):
        geometry, request = module.geometry, subject.draw_padded(module, ENDS_AND_HOLES, fewest=3)
        want = answers(request, module)
        _require_all_finite(want, f"{geometry}, {subject.dtype}")
        for dtype in _types(subject):
            got = answers(request.cast(dtype), copy.deepcopy(module).to(dtype))
            where = f"{geometry}, {dtype}"
            _require_all_finite(got, where)
            if dtype is torch.float32:
                # Relative to the largest of all, because a gradient may cancel to zero.
                scales = dict.fromkeys(want, _largest(want))
                largest = max(largest, _require_near(got, want, scales, request, module, where))
            else:
                median = SHORT_MEDIAN if geometry.keys <= max(BORDERS) else LONG_MEDIAN
                off = _near(got["output"].double(), want["output"].double(), where, median)
                least = ROUNDINGS * torch.finfo(dtype).eps / 4
                if subject.dtype is torch.float64 and off > least:
                    with torch.no_grad():
                        moved = perturbed(request, dtype)(copy.deepcopy(module).to(dtype).double())
                    own = _near(moved, want["output"], f"{where}, inputs moved by a rounding", math.inf, math.inf)
                    message = f"{where}: the median error of the outputs is {off:.2g}, and {own:.2g} in float64 with inputs and"
                    require(
                        off <= ROUNDINGS * own + least,
                        f"{message} parameters rounded to {dtype}; at most {ROUNDINGS * own + least:.2g} is allowed",
                    )
    return f"float32 differs from float64 by {largest:.1e} of the largest number" if largest else None


def _types(subject: Subject) -> list[torch.dtype]:
    """Return the dtypes that are narrower than the check's and in which the implementation multiplies. Float32 is included for
    ``eager`` only, because other implementations have a stricter check in float32."""
    own = [torch.float32, torch.bfloat16, torch.float16] if subject.single is torch.float32 else []
    return own if subject.dtype is torch.float64 and subject.implementation == "eager" else own[1:]


def _require_near(
    got: dict[str, Tensor], want: dict[str, Tensor], scales: dict[str, float], request: Request, exact: Attention, where: str
) -> float:
    """Compare float32 with float64, relative to ``scales``. Return the largest relative error, apart from jumps."""
    allowed = {name: SINGLE * scale for name, scale in scales.items()}
    errors = errors_apart_from_jumps(got, want, allowed, request, exact)
    gaps = {name: error.max().item() / scales[name] for name, error in errors.items() if error.numel()}
    for name, gap in gaps.items():
        beyond = int((~(errors[name] <= allowed[name])).sum())
        found = f"{name} differs from float64 by {gap:.2g} of the largest number, at {beyond} of {errors[name].numel()} numbers"
        require(gap <= SINGLE, f"{where}: {found}; rounding allows {SINGLE:.0e}. {ADVICE}")
    return max(gaps.values())


def _largest(found: dict[str, Tensor]) -> float:
    return max(answer.abs().max().item() if answer.numel() else 0.0 for answer in found.values()) or 1.0


def _require_all_finite(found: dict[str, Tensor], where: str) -> None:
    for name, answer in found.items():
        require_finite(answer, f"{where}: {name}")


@attention_check("implementation")
def bfloat16_is_close(subject: Subject) -> str:
    """Outputs and gradients under bfloat16 autocast, and with bfloat16 inputs, are close to those of ``eager`` in float64. A module
    can be built and trained while bfloat16 is the default dtype."""
    return _half_is_close(subject, torch.bfloat16)


@attention_check("implementation")
def float16_is_close(subject: Subject) -> str:
    """Outputs and gradients under float16 autocast, and with float16 inputs, are close to those of ``eager`` in float64. A module
    can be built and trained while float16 is the default dtype."""
    if subject.single is not torch.float32:
        raise NotApplicable(f"the kernels of this implementation compute in {subject.single} only")
    return _half_is_close(subject, torch.float16)


def _half_is_close(subject: Subject, narrow: torch.dtype) -> str:
    _require_built_in(subject, narrow)
    worst, short = 0.0, str(narrow).removeprefix("torch.")
    for module in subject.modules():
        geometry, request = module.geometry, subject.draw_padded(module)
        exact = subject.as_eager().build(geometry, dtype=torch.float64)
        exact.load_state_dict(module.state_dict())
        want = answers(request.cast(torch.float64), exact, along=_signs)
        single, half = copy.deepcopy(module).float(), copy.deepcopy(module).to(narrow)
        settings = {
            "autocast of float32": (single, torch.float32, True),
            f"autocast of {short}": (single, narrow, True),
            f"module and inputs in {short}": (half, narrow, False),
        }
        for what, (cast, dtype, enabled) in settings.items():
            call = torch.autocast(subject.device.type, dtype=narrow, enabled=enabled)(cast.__call__)
            found = answers(request.cast(dtype), cast, call, along=_signs)
            where = f"{what}, causal={geometry.causal}"
            worst = max(worst, _near(found["output"].double(), want["output"], where))
            for name in (f"gradient of {name}" for name in request.tensors):
                require(found[name].any() or not want[name].any(), f"{where}: there is no {name}, but there is one in float64")
                _require_half_near(found[name].double(), want[name], f"{where}: {name}")
    return f"half of the outputs are within {worst:.1e} of their root mean square"


def _require_built_in(subject: Subject, narrow: torch.dtype) -> None:
    """Require that a module can be built, and called in training mode, while ``narrow`` is the default dtype."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(narrow)
    try:
        module = subject.build(dtype=narrow).train()
        request = subject.draw_padded(module).cast(narrow)
        require_like_queries(request, request(module), f"built and called while {narrow} is the default dtype")
    finally:
        torch.set_default_dtype(before)


def _signs(out: Tensor) -> Tensor:
    """Return random signs as the gradient of the output. They are exact in 16 bits."""
    return torch.randn(out.shape, generator=torch.Generator().manual_seed(9)).sign().to(out)


def _require_half_near(got: Tensor, want: Tensor, where: str) -> None:
    """Compare a gradient with that in float64 by their medians, because a few numbers may be many times as large as the others."""
    require_finite(got, where)
    there = want != 0
    off = ((got - want).abs()[there].median() / want.abs()[there].median()).item() if there.any() else got.abs().max().item()
    require(off <= GRADIENT_MEDIAN, f"{where}: the median error is {off:.2g} of the median; at most {GRADIENT_MEDIAN:g} is allowed")


def _near(got: Tensor, want: Tensor, where: str, most: float = HALF_MEDIAN, in_mean: float = HALF_MEAN) -> float:
    require_finite(got, f"{where}: output")
    scale = want.square().mean().sqrt()
    if scale == 0:  # as for one pooled token
        require(not got.any(), f"{where}: outputs are up to {got.abs().max().item():.2g} where float64 gives zeros")
        return 0.0
    gap = (got - want).abs()
    median, mean = (gap[want != 0].median() / scale).item(), (gap.square().mean().sqrt() / scale).item()
    require(
        median <= most,
        f"{where}: the median error of the outputs is {median:.2g} of their root mean square; at most {most:g} is allowed",
    )
    require(
        mean <= in_mean,
        f"{where}: the root mean square error is {mean:.2g} of the root mean square of the outputs; at most {in_mean:g} is allowed",
    )
    return median


@attention_check("implementation", "dropout")
def dropout_acts_in_training_only(subject: Subject) -> str:
    """Dropout changes nothing in eval mode. In training, dropout follows the seed and changes the outputs, but not their mean."""
    deviations, copies = 0.0, COPIES // 8 if subject.interpreted else COPIES
    without = subject.without_dropout()
    for name, geometry in product(subject.dropouts(), subject.plain_and_causal()):
        try:
            plain = subject.build(geometry, options=without)
            dropped = subject.build(geometry, options=replace(without, **{name: 0.5}))
        except (NotApplicable, UnsupportedError):
            if geometry != subject.geometry():
                continue
            raise
        request = subject.draw(plain, batch=1)
        want = request(plain)
        where = f"{name}=0.5, causal={geometry.causal}"
        subject.equal(request(dropped), want, f"eval mode with {where} against {name}=0")
        subject.equal(request(plain.train()), want, f"training mode with {name}=0 against eval mode, causal={geometry.causal}")
        deviations = max(deviations, _mean_holds(request, dropped.train(), want, where, copies))
    return f"means over {copies} draws are within {deviations:.1f} standard errors"


def _mean_holds(request: Request, module: Attention, want: Tensor, where: str, copies: int) -> float:
    def drawn(times: int, seed: int | None = 0) -> Tensor:
        """Outputs for ``times`` copies, of a new module, since a call in training may change its buffers, such as hashes."""
        if seed is not None:
            seed_generators(seed)
        return request.changed(lambda _, tensor: tensor.expand(times, -1, -1, -1))(copy.deepcopy(module))

    first = drawn(FEW_COPIES)
    require(torch.equal(first, drawn(FEW_COPIES)), f"training with {where} does not follow torch.manual_seed")
    require(
        not torch.equal(first, drawn(FEW_COPIES, seed=None)),
        f"training with {where} gives the same output twice: nothing is dropped",
    )
    found = drawn(copies).double()
    error = found.std(dim=0) / copies**0.5
    gap = (found.mean(dim=0) - want[0]).abs()
    # The second term allows for rounding where nothing varies.
    deviations = (gap / (error + 1e-4 * want.abs().max())).max().item()
    message = f"with {where} the mean of {copies} training outputs is {deviations:.1f} standard errors from the eval output"
    require(deviations <= DEVIATIONS, f"{message}; scale what is not dropped by 1 / (1 - rate)")
    return deviations
