"""Checks that a causal attention sees its past and nothing else."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from attn_zoo.conformance.harness import NotApplicable, require
from attn_zoo.conformance.requests import Request
from attn_zoo.conformance.subject import Subject, attention_check, must_refuse
from attn_zoo.contract import Attention

FUTURES: dict[str, Callable[[Tensor], Tensor]] = {
    "other numbers": lambda tensor: tensor.flip(0).flip(-1) + 1,
    "numbers 30 times as large": lambda tensor: 30 * tensor,
    "numbers 10000 times as large": lambda tensor: -1e4 * tensor,
    "zeros": torch.zeros_like,
}
"""Changes of the future; a maximum or a sum over the whole length shows only where the future exceeds the past."""


@attention_check("implementation")
def causal_output_ignores_the_future(subject: Subject) -> None:
    """In a causal geometry no change of later positions, however large, changes an output; where not claimed, it is refused."""
    if not subject.causal:
        must_refuse("causal", lambda: subject.build(subject.geometry(causal=True)))
        return
    for module in _causal(subject):
        plain = subject.draw(module)
        # With a large past and a small future, a maximum over both underflows the past where features shrink with large inputs.
        for request, past in ((plain, ""), (plain.changed(lambda _, tensor: 30 * tensor), " and the past is 30 times as large")):
            before = request(module)
            for cut in _cuts(module):
                for kind, change in FUTURES.items():
                    after = _with_future(request, cut, change)(module)
                    what = f"outputs before position {cut} of {module.geometry.keys} when the future holds {kind}{past}"
                    subject.equal(after[:, :, :cut], before[:, :, :cut], what)


@attention_check("implementation")
def padding_in_the_future_has_no_influence(subject: Subject) -> None:
    """Whether later positions are padding changes no earlier output."""
    modules = _causal(subject)
    if not subject.card.can.key_padding:
        raise NotApplicable("key_padding is not claimed")
    for module in modules:
        request = subject.draw(module)
        before = request(module)
        for cut in _cuts(module):
            mask = torch.arange(module.geometry.keys, device=subject.device).lt(cut).expand(request.value.shape[0], -1)
            after = request.padded(mask)(module)
            subject.equal(after[:, :, :cut], before[:, :, :cut], f"outputs before position {cut} when the rest is padding")


@attention_check("implementation")
def causal_output_sees_the_past(subject: Subject) -> None:
    """The first causal output depends on the first value and, where contents are compared, later outputs on earlier values."""
    module = _causal(subject)[0]
    request = subject.draw(module).leaves()
    out = request(module)
    first = _influence(out, request, 0, module)
    require(first[0] > 0, "the first position does not see itself: its output does not depend on its value")
    if "query" not in subject.card.reads:
        return
    for position in (subject.length // 2, subject.length - 1):
        seen = int((_influence(out, request, position, module)[:position] > 0).sum())
        require(seen > 0, f"position {position} sees none of the {position} positions before it")


def _causal(subject: Subject) -> list[Attention]:
    """Causal modules at the length of the check and at a longer one."""
    if not subject.causal:
        raise NotApplicable("causal is not claimed")
    return [subject.build(geometry) for geometry in subject.short_and_long() if geometry.causal]


def _cuts(module: Attention) -> list[int]:
    """Positions at which the future begins: near both ends and in between."""
    length = module.geometry.keys
    return sorted({1, length // 3, length // 2, length - 1})


def _with_future(request: Request, cut: int, change: Callable[[Tensor], Tensor]) -> Request:
    return request.changed(lambda _, tensor: torch.cat([tensor[:, :, :cut], change(tensor[:, :, cut:])], dim=2))


def _influence(out: Tensor, request: Request, position: int, module: Attention) -> Tensor:
    """Absolute gradient of one output by each position's value, or by a stream that replaces it."""
    values = [request.value]
    values += [request.streams[s.name] for s in module.card.streams(module.geometry, module.options) if s.starts_as == "value"]
    grads = torch.autograd.grad(out[:, :, position].sum(), values, retain_graph=True, allow_unused=True)
    total = torch.zeros(request.value.shape[2], dtype=out.dtype, device=out.device)
    for grad in grads:
        if grad is not None:
            total[: grad.shape[2]] += grad.abs().amax(dim=(0, 1, 3))
    return total
