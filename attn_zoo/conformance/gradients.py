"""Checks that gradients reach all inputs that the card reads, and that they are correct."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.autograd.gradcheck import GradcheckError
from torch.func import functional_call

from attn_zoo.conformance.harness import NotApplicable, Violation, require
from attn_zoo.conformance.requests import Request, answers, without_padded_queries
from attn_zoo.conformance.subject import Subject, attention_check
from attn_zoo.contract import Attention, Geometry


@attention_check("implementation")
def every_position_gets_a_gradient(subject: Subject) -> None:
    """Each valid position of each input and stream influences the output, itself or through a stream that replaces it."""
    module = subject.build()
    masks: list[Tensor | None] = [None]
    if subject.card.can.key_padding:
        holes = torch.ones(1, subject.length, dtype=torch.bool, device=subject.device)
        holes[:, 2::5] = False
        masks.append(holes.expand(4, -1))
    for mask in masks:
        # Four examples and all heads: a hash may leave one position alone in its bucket, but not in each of them.
        request = subject.draw(module, batch=4).padded(mask)
        reached = _reached(request, module)
        for name, positions in reached.items():
            hidden = mask is not None and "keys" in request.sides[name]
            expected = mask[0, : len(positions)] if hidden and mask is not None else torch.ones_like(positions)
            dead = torch.nonzero(expected & ~positions).flatten().tolist()
            require(
                not dead,
                f"{name}: no gradient at {len(dead)} of {len(positions)} positions (padded={mask is not None}): {dead[:8]}",
            )


def _reached(request: Request, module: Attention) -> dict[str, Tensor]:
    """Mask of the positions of each tensor with a gradient. A stream also counts for the input it is initialised as a copy of."""
    found = answers(request, module)
    reached = {}
    for name in request.tensors:
        grad = found[f"gradient of {name}"]
        bad = int((~grad.isfinite()).sum())
        require(bad == 0, f"{bad} gradients of the {name} are NaN or infinite")
        reached[name] = (grad != 0).any(dim=3).any(dim=0).any(dim=0)
    for stream in module.card.streams(module.geometry, module.options):
        source = "query" if stream.starts_as == "key" and request.shared else stream.starts_as
        if source in reached and stream.of in request.sides[source]:
            served = reached[f"stream {stream.name}"]
            reached[source][: len(served)] |= served
    return reached


@attention_check("implementation")
def every_parameter_gets_a_gradient(subject: Subject) -> None:
    """Every parameter influences the output."""
    module = subject.build()
    parameters = dict(module.named_parameters())
    if not parameters:
        raise NotApplicable("there are no parameters")
    with torch.no_grad():
        for parameter in parameters.values():  # away from zero, where the gradients of others vanish
            parameter.add_(0.01 * torch.randn_like(parameter))
    request = subject.draw(module)
    found = answers(request, module)
    for name in parameters:
        grad = found[f"gradient of {name}"]
        require(grad.isfinite().all(), f"gradients of the parameter {name} are NaN or infinite")
        require((grad != 0).any(), f"no gradient reaches the parameter {name}")


@attention_check("variant")
def gradients_match_finite_differences(subject: Subject) -> None:
    """In float64, gradients of inputs, streams and parameters agree with differences of outputs."""
    for geometry in subject.plain_and_causal():
        small = _smallest(subject, geometry)
        request = subject.draw(small, batch=2)
        masks: list[Tensor | None] = [None]
        if subject.card.can.key_padding:
            holes = torch.ones(2, small.geometry.keys, dtype=torch.bool)
            holes[1, 2:4] = False
            masks.append(holes)
        for mask in masks:
            _gradcheck(small, request.padded(mask), f"causal={geometry.causal}, padded={mask is not None}")


def _smallest(subject: Subject, geometry: Geometry) -> Attention:
    small = subject.build_if_allowed(subject.geometry(7, head_dim=4, causal=geometry.causal))
    return subject.build(geometry) if small is None else small


def _gradcheck(module: Attention, request: Request, where: str) -> None:
    names, parameters = list(request.tensors), dict(module.named_parameters())

    def run(*given: Tensor) -> Tensor:
        tensors = dict(zip(names, given, strict=False))
        changed = request.changed(lambda name, _: tensors[name])
        state = dict(zip(parameters, given[len(names) :], strict=True))
        arguments = {"key_valid": changed.key_valid, "streams": changed.streams or None}
        out: Tensor = functional_call(module, state, (changed.query, changed.key, changed.value), arguments)
        return without_padded_queries(changed, out)

    leaves: Sequence[Tensor] = [t.detach().clone().requires_grad_() for t in (*request.tensors.values(), *parameters.values())]
    try:
        torch.autograd.gradcheck(run, leaves, fast_mode=True, atol=1e-6, rtol=1e-4)
    except GradcheckError as error:
        raise Violation(f"{where}: {' '.join(str(error).split())[:400]}") from error
