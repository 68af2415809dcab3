"""Checks that the examples of a batch are independent, that the memory layout of inputs is irrelevant, and that the caller's
tensors are not changed."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from attn_zoo.conformance.requests import Request, answers
from attn_zoo.conformance.subject import Subject, attention_check
from attn_zoo.contract import Attention

# Temporary tensors then take more than a few MiB, or with variants more than 1 MiB.
REPEATS, FEWER_REPEATS = 350, 70
"""Numbers of copies of the examples in a large batch: with the default options, and with variants (other sets of options)."""


@attention_check("implementation")
def batch_mates_have_no_influence(subject: Subject) -> None:
    """An example gives the same output alone and in a batch, even if the other examples are 30 times as large, hold NaN or consist
    of padding only."""
    for module in subject.modules((*subject.plain_and_causal(), *subject.across())):
        for request in subject.requests(module):
            require_apart(subject, request, module, f"{module.geometry}, padded={request.is_padded}")


def require_apart(subject: Subject, request: Request, call: Callable[..., Tensor], where: str) -> None:
    """Require that each of six examples gives the same output alone and beside any others.

    Args:
        call: function that is called with the arguments of a module.
    """
    where = f"an example in a batch against it alone, {where}"
    alone = torch.cat([request.rows(slice(row, row + 1))(call) for row in range(6)])
    subject.equal(request(call), alone, where)
    loud = beside_loud(request)
    loud_alone = torch.cat([loud.rows(slice(row, row + 1))(call) for row in range(3, 6)])
    beside = loud(call)
    subject.equal(beside[:3], alone[:3], f"{where}, batch mates 30 times as large")
    subject.equal(beside[3:], loud_alone, f"{where}, 30 times as large as its batch mates")
    broken = request.changed(lambda _, tensor: torch.cat([tensor[:3], torch.full_like(tensor[3:], torch.nan)]))
    subject.equal(broken(call)[:3], alone[:3], f"{where}, batch mates of NaN")
    if request.key_valid is not None:
        mask = request.key_valid.clone()
        mask[3:] = False
        subject.equal(request.padded(mask)(call)[:3], alone[:3], f"{where}, batch mates wholly padded")


def beside_loud(request: Request) -> Request:
    """Return a copy of six examples in which the last three are 30 times as large."""
    return request.changed(lambda _, tensor: torch.cat([tensor[:3], 30 * tensor[3:]]))


@attention_check("implementation")
def batch_order_has_no_influence(subject: Subject) -> None:
    """Permuting the examples of a batch permutes the outputs in the same way and changes nothing else."""
    module = subject.build()
    order = torch.tensor([3, 0, 5, 1, 4, 2], device=subject.device)
    for request in subject.requests(module):
        subject.equal(request.rows(order)(module), request(module)[order], f"permuted examples, padded={request.is_padded}")


@attention_check("implementation")
def batch_size_has_no_influence(subject: Subject) -> None:
    """Repeating the examples of a batch repeats their outputs. The batch is so large that a mechanism which limits its temporary
    tensors must process the batch in parts."""
    for module in subject.modules():
        request = subject.draw_padded(module)
        repeats = 2 if subject.interpreted else REPEATS if subject.variant == "default" else FEWER_REPEATS
        many = request.rows(torch.arange(6, device=subject.device).repeat(repeats))
        with torch.no_grad():
            once, often = request(module), many(module)
        subject.equal(often, once.repeat(repeats, 1, 1, 1), f"{6 * repeats} examples against 6, causal={module.geometry.causal}")


@attention_check("implementation")
def memory_layout_has_no_influence(subject: Subject) -> None:
    """Transposed, strided and expanded inputs and masks give the same outputs and gradients as their contiguous copies."""
    layouts: dict[str, Callable[[Tensor], Tensor]] = {
        "inputs stored as (batch, length, heads, head_dim)": _transposed,
        "inputs that are every second number of a larger tensor": lambda tensor: tensor.repeat_interleave(2, dim=-1)[..., ::2],
        "inputs that are one example expanded over the batch": lambda tensor: tensor[:1].expand_as(tensor),
    }
    for module in subject.modules():
        for request in subject.requests(module):
            for what, layout in layouts.items():
                _require_layout(subject, module, request, layout, what)
    # Whole blocks, because filling up the last block would copy the mask.
    whole = subject.build_if_allowed(subject.geometry(64)) if subject.card.can.key_padding else None
    if whole is not None:
        _require_layout(subject, whole, subject.draw_padded(whole), _transposed, "64 tokens with a mask stored as (keys, batch)")


def _require_layout(subject: Subject, module: Attention, request: Request, layout: Callable[[Tensor], Tensor], what: str) -> None:
    odd = _laid_out(request, layout)
    contiguous = answers(_laid_out(odd, Tensor.contiguous), module)
    subject.equal(answers(odd, module), contiguous, f"for {what} against contiguous inputs")


def _transposed(tensor: Tensor) -> Tensor:
    """Return a tensor whose first two axes (of a mask) or middle axes (of an input) lie in memory in the reverse order."""
    at = tensor.dim() // 4
    return tensor.transpose(at, at + 1).contiguous().transpose(at, at + 1)


def _laid_out(request: Request, layout: Callable[[Tensor], Tensor]) -> Request:
    mask = request.key_valid
    return request.changed(lambda _, tensor: layout(tensor)).padded(None if mask is None else layout(mask))


@attention_check("implementation")
def inputs_are_left_alone(subject: Subject) -> None:
    """Neither a call nor writing into its output changes the caller's tensors, even if a mask leaves an example without keys."""
    ones = [subject.geometry(1, causal=geometry.causal) for geometry in subject.plain_and_causal()]
    for geometry in (*subject.plain_and_causal(), *ones):
        if (module := subject.build_if_allowed(geometry)) is None:
            continue
        requests = subject.requests(module)
        if (mask := requests[-1].key_valid) is not None:
            requests.append(requests[-1].padded(mask & (torch.arange(6, device=subject.device) > 0)[:, None]))
        for request in requests:
            given = request.tensors | ({} if request.key_valid is None else {"key_valid": request.key_valid})
            kept = {name: tensor.clone() for name, tensor in given.items()}
            with torch.no_grad():
                out = request(module)
                subject.equal(given, kept, "of the caller, before and after the call", 0.0)
                out.fill_(7)
                subject.equal(given, kept, "of the caller, before and after writing into the output", 0.0)
