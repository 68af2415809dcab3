"""Checks of a module in training mode, with and without gradients, in other dtypes, on other devices, when copied and when
compiled."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Sequence
from functools import partial
from io import BytesIO
from typing import Any

import torch
from torch import Tensor

from attn_zoo.conformance.causality import FUTURES, LOUD_AND_QUIET, require_no_future
from attn_zoo.conformance.harness import Violation, require, seed_generators
from attn_zoo.conformance.numerics import SINGLE
from attn_zoo.conformance.requests import Request, answers, key_masks, trained_parameters, weighed, without_padded_queries
from attn_zoo.conformance.subject import Subject, attention_check
from attn_zoo.contract import Attention


@attention_check("implementation")
def training_keeps_the_promises(subject: Subject) -> None:
    """In training mode without dropout, an output does not depend on padding or, in causal attention, on later positions.

    Outputs and gradients also equal those in eval mode, and an output does not depend on other examples. These rules do not apply
    to a mechanism that declares ``random_at_build`` if its training call draws random numbers or changes the module.
    """
    for geometry in subject.plain_and_causal():
        module = subject.build(geometry, options=subject.without_dropout())
        where = f"in training, causal={geometry.causal}"
        call = partial(_trained, module)
        request = subject.draw(module, batch=6)
        if geometry.causal:
            scenes = (FUTURES[0], FUTURES[2], LOUD_AND_QUIET[0])
            require_no_future(subject, module, range(1, geometry.keys), scenes, call)
        if subject.card.can.key_padding:
            request = request.padded(key_masks(geometry.keys, subject.device))
            clean = without_padded_queries(request, request(call))
            for fill in (1e3, torch.nan):
                other = request.filled_at_padding(partial(_noise, fill))
                found = without_padded_queries(other, other(call))
                subject.equal(found, clean, f"{where}, padded keys times {fill}", subject.exactness)
        whole = request(call)
        loud = request.changed(lambda _, tensor: torch.cat([tensor[:3], 30 * tensor[3:]]))
        if not (subject.card.can.random_at_build and _draws(module, request)):
            want, trained = answers(request, module), copy.deepcopy(module).train()
            seed_generators(5)
            for name, tensor in answers(request, trained).items():
                subject.equal(tensor, want[name], f"{name} {where}, against eval mode")
            subject.equal(loud(call)[:3], whole[:3], f"{where}, beside examples 30 times as large")


def _noise(size: float, tensor: Tensor) -> Tensor:
    return size * (tensor.flip(0) + 1)


def _needs(asked: Sequence[str], name: str, tensor: Tensor) -> Tensor:
    return tensor.detach().requires_grad_(name in asked)


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
    for geometry in subject.short_and_long():
        module = subject.build(geometry)
        request = subject.draw(module, batch=6 if geometry.keys == subject.length else 2)
        if subject.card.can.key_padding:
            request = request.padded(key_masks(geometry.keys, subject.device)[-len(request.value) :])
        where = f"length={geometry.keys}, causal={geometry.causal}"
        want = answers(request, module)
        for mode in (torch.no_grad(), torch.inference_mode()):
            with mode:
                quiet = without_padded_queries(request, request(module))
                subject.equal(quiet.clone(), want["output"], f"output under {type(mode).__name__}, {where}")
        if geometry.keys == subject.length:
            _require_each_gradient(subject, module, request, want, where)
        _require_any_output_gradient(subject, module, request.padded(None), where)  # a mask would copy the gradient first


def _require_each_gradient(subject: Subject, module: Attention, request: Request, want: dict[str, Tensor], where: str) -> None:
    for left_out in request.tensors:
        asked = [name for name in request.tensors if name != left_out] or [left_out]
        some = request.changed(partial(_needs, asked))
        out = without_padded_queries(some, some(module))
        subject.equal(out.detach(), want["output"], f"output where {left_out} needs no gradient, {where}")
        grads = torch.autograd.grad(weighed(out), [some.tensors[name] for name in asked], allow_unused=True)
        for name, grad in zip(asked, grads, strict=True):
            found = torch.zeros_like(some.tensors[name]) if grad is None else grad
            what = f"gradient of {name} where {left_out} needs none, {where}"
            subject.equal(found, want[f"gradient of {name}"], what)
    parameters = trained_parameters(module)
    if any(want[f"gradient of {name}"].any() for name in parameters):
        message = f"no gradient reaches the parameters where no input needs one, {where}"
        out = weighed(without_padded_queries(request, request(module)))
        require(out.requires_grad, message)
        for name, grad in zip(parameters, torch.autograd.grad(out, list(parameters.values()), allow_unused=True), strict=True):
            wanted = want[f"gradient of {name}"]
            require(grad is not None or not wanted.any(), f"{message}: {name}")
            if grad is not None:
                subject.equal(grad, wanted, f"gradient of {name} where no input needs one, {where}")


def _require_any_output_gradient(subject: Subject, module: Attention, request: Request, where: str) -> None:
    layouts: dict[str, Callable[[Tensor], Tensor]] = {
        "expanded": _wide,
        "transposed": lambda out: _wide(out).transpose(1, 2).contiguous().transpose(1, 2),
        "strided": lambda out: _wide(out).repeat_interleave(2, dim=-1)[..., ::2],
    }
    found: dict[str, dict[str, Tensor]] = {}
    for what, layout in {"contiguous": lambda out: _wide(out).contiguous(), **layouts}.items():
        leaves = request.leaves()
        out = without_padded_queries(leaves, leaves(module))
        grads = torch.autograd.grad(out, list(leaves.tensors.values()), layout(out), allow_unused=True)
        found[what] = {name: grad for name, grad in zip(leaves.tensors, grads, strict=True) if grad is not None}
    for what in layouts:
        for name, grad in found["contiguous"].items():
            subject.equal(found[what][name], grad, f"gradient of {name} for a gradient of the output that is {what}, {where}")


def _wide(out: Tensor) -> Tensor:
    """Return a gradient of the output that differs by channel only, expanded over the other dimensions."""
    return torch.linspace(-1, 1, out.shape[-1], dtype=out.dtype, device=out.device).expand_as(out)


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
    for geometry in subject.plain_and_causal():
        module = subject.build(geometry)
        request = subject.draw(module, batch=6)
        for mask in subject.masks(geometry.keys):
            moved = request.changed(lambda _, tensor: tensor.to("meta")).padded(None if mask is None else mask.to("meta"))
            try:
                out = moved(copy.deepcopy(module).to("meta"))
            except (NotImplementedError, RuntimeError) as error:
                raise Violation(f"{geometry}, padded={mask is not None}: {type(error).__name__}: {error}") from error
            require(out.device.type == "meta", f"{geometry}: the output must be on the meta device; got {out.device}")
            want, got = tuple(moved.value.shape), tuple(out.shape)
            require(got == want, f"{geometry}: on the meta device the output must have shape {want}; got {got}")


@attention_check("implementation")
def modules_in_use_can_be_copied(subject: Subject) -> None:
    """A module can be copied and pickled after calls in training and, if the card declares ``stepwise``, after calls that read
    some of the tokens. The copy gives the same output."""
    for geometry in subject.plain_and_causal():
        module = subject.build(geometry)
        request = subject.draw(module)
        answers(request, module.train())
        module.eval()
        if subject.card.can.stepwise and geometry.causal:
            state = module.initial_state(len(request.value), dtype=subject.dtype, device=subject.device)
            leaves = request.leaves()
            module.step(leaves.query, leaves.key, leaves.value, state, **leaves.streams)
        leaves = request.leaves()
        out = leaves(module)
        try:
            twin = copy.deepcopy(module)
        except Exception as error:  # because of a tensor with history, a lock or a generator
            raise Violation(f"a module in use cannot be copied: {type(error).__name__}: {error}") from error
        with torch.no_grad():
            request(twin)
        try:
            _Pickler(BytesIO()).dump(twin)
        except Exception as error:  # because of a function without a name or a handle
            raise Violation(f"a module in use cannot be pickled: {type(error).__name__}: {error}") from error
        subject.equal(request(twin), out.detach(), f"output of a copy made in use, causal={geometry.causal}", subject.exactness)
        out.sum().backward()


class _Pickler(pickle.Pickler):
    """Pickler that does not require that classes can be imported, because the classes of a single file cannot."""

    def persistent_id(self, held: Any) -> str | None:
        return held.__qualname__ if isinstance(held, type) else None


@attention_check("card")
def compiled_agrees(subject: Subject) -> None:
    """After ``torch.compile``, outputs and gradients equal those of uncompiled calls, with and without padding."""
    for geometry in subject.plain_and_causal():
        module = subject.build(geometry)
        request = subject.draw(module, batch=6)
        for mask in reversed(subject.masks(geometry.keys)):
            each = request.padded(mask)
            prove = partial(_require_compiled, subject, each, module, answers(each, module))
            try:
                prove("aot_eager")  # traces the call, as "eager" does, and its backward pass
            except Exception:
                prove("eager")  # fails here too if the forward trace is at fault
                raise


def _require_compiled(subject: Subject, request: Request, module: Attention, want: dict[str, Tensor], backend: str) -> None:
    torch._dynamo.reset()
    got = answers(request, module, torch.compile(module, backend=backend))
    torch._dynamo.reset()
    where = f"causal={module.geometry.causal}, padded={request.key_valid is not None}"
    for name, answer in got.items():
        subject.equal(answer, want[name], f"compiled by {backend}, {where}: {name}")
