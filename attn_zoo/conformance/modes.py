"""Checks of a module in training mode, with and without gradients, in other dtypes, on other devices, when copied and when
compiled."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from functools import partial
from io import BytesIO
from typing import Any

import torch
from torch import Tensor

from attn_zoo.conformance.batch import beside_loud
from attn_zoo.conformance.causality import FUTURES, LOUD_AND_QUIET, require_no_future
from attn_zoo.conformance.harness import blamed, require, seed_generators
from attn_zoo.conformance.numerics import SINGLE
from attn_zoo.conformance.padding import FILLS
from attn_zoo.conformance.requests import Request, answers, without_padded_queries
from attn_zoo.conformance.subject import Subject, attention_check
from attn_zoo.contract import Attention


@attention_check("implementation")
def training_keeps_the_promises(subject: Subject) -> None:
    """In training mode without dropout, an output does not depend on padding or, in causal attention, on later positions.

    Outputs and gradients also equal those in eval mode, and an output does not depend on other examples. These rules do not apply
    to a mechanism that declares ``random_at_build`` if its training call draws random numbers or changes the module.
    """
    for module in subject.modules(options=subject.without_dropout()):
        geometry, where = module.geometry, f"in training, causal={module.geometry.causal}"
        call = partial(_trained, module)
        request = subject.draw_padded(module)
        if geometry.causal:
            scenes = (FUTURES[0], FUTURES[2], LOUD_AND_QUIET[0])
            require_no_future(subject, module, range(1, geometry.keys), scenes, call)
        if request.is_padded:
            clean = without_padded_queries(request, request(call))
            for what, fill in FILLS.items():
                other = request.filled_at_padding(fill)
                found = without_padded_queries(other, other(call))
                subject.equal(found, clean, f"{where}, {what} in padded keys", subject.exactness)
        whole = request(call)
        if not (subject.card.can.random_at_build and _draws(module, request)):
            want, trained = answers(request, module), copy.deepcopy(module).train()
            seed_generators(5)
            subject.equal(answers(request, trained), want, f"{where}, against eval mode")
            subject.equal(beside_loud(request)(call)[:3], whole[:3], f"{where}, beside examples 30 times as large")


def _trained(module: Attention, query: Any, key: Any, value: Tensor, **given: Any) -> Tensor:
    """Call a copy of the module in training mode, under a fixed seed, with inputs that require gradients."""
    fresh = copy.deepcopy(module).train()
    seed_generators(5)
    leaves = {id(x): x.detach().requires_grad_() for x in (query, key, value) if x is not None}
    out: Tensor = fresh(leaves.get(id(query)), leaves.get(id(key)), leaves[id(value)], **given)
    return out.detach()


def _draws(module: Attention, request: Request) -> bool:
    """Return True if a training call draws random numbers, or changes what the module holds."""
    fresh = copy.deepcopy(module).train()
    before, start = copy.deepcopy(fresh.state_dict()), torch.get_rng_state()
    request(fresh)
    changed = any(not torch.equal(tensor, before[name]) for name, tensor in fresh.state_dict().items())
    return changed or not torch.equal(start, torch.get_rng_state())


@attention_check("implementation")
def recording_gradients_changes_nothing(subject: Subject) -> None:
    """Outputs are the same with gradients, under ``torch.no_grad`` and in inference mode.

    A gradient does not depend on which other gradients are requested. It also does not depend on the memory layout of the output's
    gradient, which may be expanded or not contiguous.
    """
    for module in subject.modules(subject.short_and_long()):
        geometry = module.geometry
        request = subject.draw_padded(module, slice(None) if geometry.keys == subject.length else slice(4, None))
        where = f"length={geometry.keys}, causal={geometry.causal}"
        want = answers(request, module)
        for mode in (torch.no_grad(), torch.inference_mode()):
            with mode:
                quiet = without_padded_queries(request, request(module))
                subject.equal(quiet.clone(), want["output"], f"output under {type(mode).__name__}, {where}")
        if geometry.keys == subject.length:
            inputs = request.tensors.keys()
            for left_out in ({name} for name in inputs if len(inputs) > 1):
                got = answers(request, module, asked=inputs - left_out)
                subject.equal(got, want, f"where {left_out.pop()} needs no gradient, {where}")
            subject.equal(answers(request, module, asked=()), want, f"where no input needs a gradient, {where}")
        plain = request.padded(None)  # a mask would copy the gradient first
        contiguous = answers(plain, module, along=lambda out: _wide(out).contiguous())
        for what, layout in LAYOUTS.items():
            got = answers(plain, module, along=layout)
            subject.equal(got, contiguous, f"for a gradient of the output that is {what}, {where}")


def _wide(out: Tensor) -> Tensor:
    """Return a gradient of the output that differs by channel only, expanded over the other dimensions."""
    return torch.linspace(-1, 1, out.shape[-1], dtype=out.dtype, device=out.device).expand_as(out)


LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "expanded": _wide,
    "transposed": lambda out: _wide(out).transpose(1, 2).contiguous().transpose(1, 2),
    "strided": lambda out: _wide(out).repeat_interleave(2, dim=-1)[..., ::2],
}
"""Functions that return a gradient of the output, by the memory layout of this gradient."""


@attention_check("implementation")
def conversions_reach_everything(subject: Subject) -> None:
    """A module that was called, and then converted by ``.to()`` to another dtype and back, gives the same outputs as a module that
    was converted but not called. This also holds if the calls were in bfloat16."""
    types = (torch.float32, torch.float64) if subject.dtype is torch.float64 else (subject.dtype,)
    for geometry in subject.plain_and_causal():
        for first in (subject.dtype, *([torch.bfloat16] if subject.single is torch.float32 else [])):
            module, fresh = subject.build(geometry).to(first), subject.build(geometry).to(first)  # fresh is not called
            request = subject.draw(module)
            request.cast(first)(module)
            answers(request.cast(first), module)
            for dtype in (*types, subject.dtype):
                fresh.to(dtype)
                converted = request.cast(dtype)
                found = converted(module.to(dtype))
                where = f"used module converted from {first} to {dtype}, causal={geometry.causal}"
                require(found.dtype == dtype, f"{where}: the output has dtype {found.dtype}")
                limit = subject.tolerance if dtype is subject.dtype else SINGLE
                subject.equal(found, converted(copy.deepcopy(fresh)), where, limit)


@attention_check("variant")
def shapes_flow_outside_a_device_context(subject: Subject) -> None:
    """A module that was moved to PyTorch's meta device runs outside the context ``torch.device("meta")``, with and without a mask.
    The module must therefore create tensors on the device of its inputs."""
    for module in subject.modules():
        moved = copy.deepcopy(module).to("meta")
        for request in subject.requests(module):
            where = f"{module.geometry}, padded={request.is_padded}"
            require_shape_on_meta(request, partial(Request.__call__, module=moved), where)


def require_shape_on_meta(request: Request, call: Callable[[Request], Tensor], where: str) -> None:
    """Require that ``call`` runs on inputs on the meta device, and that its output has the shape of the values."""
    mask = None if request.key_valid is None else request.key_valid.to("meta")
    told = "the mechanism does not run on the meta device, where tensors have no values"
    with blamed(f"{where}: {told}", NotImplementedError, RuntimeError):
        out = call(request.changed(lambda _, tensor: tensor.to("meta")).padded(mask))
    want, got = ("meta", tuple(request.value.shape)), (out.device.type, tuple(out.shape))
    require(got == want, f"{where}: the device and shape of the output must be {want}; got {got}")


@attention_check("implementation")
def modules_in_use_can_be_copied(subject: Subject) -> None:
    """A module can be copied and pickled after calls in training and, if the card declares ``stepwise``, after calls that read
    some of the tokens. The copy gives the same output."""
    for module in subject.modules():
        geometry, request = module.geometry, subject.draw(module)
        answers(request, module.train())
        module.eval()
        if subject.card.can.stepwise and geometry.causal:
            state = module.initial_state(len(request.value), dtype=subject.dtype, device=subject.device)
            leaves = request.leaves()
            module.step(leaves.query, leaves.key, leaves.value, state, **leaves.streams)
        leaves = request.leaves()
        out = leaves(module)
        with blamed("a module in use cannot be copied", Exception):  # because of a tensor with history, a lock or a generator
            twin = copy.deepcopy(module)
        with torch.no_grad():
            request(twin)
        with blamed("a module in use cannot be pickled", Exception):  # because of a function without a name or a handle
            _Pickler(BytesIO()).dump(twin)
        subject.equal(request(twin), out.detach(), f"output of a copy made in use, causal={geometry.causal}", subject.exactness)
        out.sum().backward()


class _Pickler(pickle.Pickler):
    """Pickler that does not require that classes can be imported, because the classes of a single file cannot."""

    def persistent_id(self, held: Any) -> str | None:
        return held.__qualname__ if isinstance(held, type) else None


@attention_check("card")
def compiled_agrees(subject: Subject) -> None:
    """After ``torch.compile``, outputs and gradients equal those of uncompiled calls, with and without padding."""
    for module in subject.modules():
        for request in reversed(subject.requests(module)):
            prove = partial(_require_compiled, subject, request, module, answers(request, module))
            try:
                prove("aot_eager")  # traces the call, as "eager" does, and its backward pass
            except Exception:
                prove("eager")  # fails here too if the forward trace is at fault
                raise


def _require_compiled(subject: Subject, request: Request, module: Attention, want: dict[str, Tensor], backend: str) -> None:
    torch._dynamo.reset()
    got = answers(request, module, torch.compile(module, backend=backend))
    torch._dynamo.reset()
    subject.equal(got, want, f"compiled by {backend}, causal={module.geometry.causal}, padded={request.is_padded}")
