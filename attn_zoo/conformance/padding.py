"""Checks that the content of padded keys does not influence outputs or gradients."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from attn_zoo.conformance.harness import NotApplicable, must_refuse, require, require_finite
from attn_zoo.conformance.requests import Request, answers, key_masks
from attn_zoo.conformance.subject import Subject, attention_check
from attn_zoo.contract import Attention

FILLS: dict[str, Callable[[Tensor], Tensor]] = {
    "noise of size 1000": lambda tensor: 1e3 * (tensor.flip(0) + 1),
    "NaN": lambda tensor: torch.full_like(tensor, torch.nan),
}
"""Functions that return what padded positions hold, by its description: large numbers made of other examples, or NaN."""
AVERAGE = 1e-3
"""Outputs count as averages of the values if equal values give outputs within this relative distance of the values."""
QUERIES = 32
"""Largest number of other queries that are tried if an output is exactly zero."""


@attention_check("implementation")
def padding_has_no_influence(subject: Subject) -> None:
    """Large numbers or NaN in padded keys change no output and no gradient, whatever the number of queries. A mask that hides
    nothing changes no output. If the card does not declare ``key_padding``, a mask raises ``UnsupportedError``."""
    if not subject.card.can.key_padding:
        module = subject.build()
        masks = key_masks(module.geometry.keys, subject.device)
        must_refuse("key_padding", partial(subject.draw(module, batch=len(masks)).padded(masks), module))
        return
    for module in subject.modules((*subject.short_and_long(), *subject.across())):
        geometry = module.geometry
        plain, clean = subject.requests(module)
        nothing = torch.ones(len(plain.value), geometry.keys, dtype=torch.bool, device=subject.device)
        subject.equal(plain.padded(nothing)(module), plain(module), f"a mask that hides nothing against no mask, {geometry}")
        expected = answers(clean, module)
        for what, fill in FILLS.items():
            got = answers(clean.filled_at_padding(fill), module)
            subject.equal(got, expected, f"for {what} in padded keys, {geometry}", subject.exactness)


@attention_check("implementation")
def padding_gets_no_weight(subject: Subject) -> str | None:
    """If outputs are averages of the values, padding has no weight in these averages. This holds for keys that the caller marks as
    padding, and for positions that the mechanism adds to fill up a block."""
    remarks = []
    geometries = subject.short_and_long()
    for module in subject.modules(geometries):
        where = f"length={module.geometry.keys}, causal={module.geometry.causal}"
        whole = subject.build_if_allowed(subject.geometry(64, causal=module.geometry.causal))
        off = [_distance(subject.draw(built), built) for built in (whole, module) if built is not None]
        if min(off) > AVERAGE:
            remarks.append(f"{where}: outputs are not averages of the values: equal values give outputs {min(off):.2g} off")
            continue
        filled = f"{where}: if all values are equal, outputs must equal them, but they differ by {off[-1]:.2g} of them"
        require(off[-1] <= AVERAGE, f"{filled}; positions that fill up the last block seem to take part")
        if subject.card.can.key_padding:
            found = _distance(subject.draw_padded(module), module)
            message = f"{where}: if all values are equal, outputs must equal them, but with padding they differ by {found:.2g} of"
            require(found <= AVERAGE, f"{message} them; padded keys seem to stay in the normaliser")
    if len(remarks) == len(geometries):
        raise NotApplicable("outputs are not averages of the values")
    return "; ".join(remarks) or None


def _distance(request: Request, module: Attention) -> float:
    """Return the largest relative distance of an output from the first value, which replaces all values. Under a mask, only valid
    positions count, because they see themselves. An output of exactly zero is computed again with other queries, because ReLU may
    have made all weights of its query zero."""
    want, sides = request.value[:1, :, :1], request.sides
    request = request.changed(lambda name, tensor: want.expand_as(tensor) if "values" in sides[name] else tensor)
    out, generator = request(module), torch.Generator().manual_seed(0)

    def other_signs(name: str, tensor: Tensor) -> Tensor:
        signs = torch.randint(2, tensor.shape[-1:], generator=generator).to(tensor) * 2 - 1
        return tensor * signs if name == "query" else tensor

    for _ in range(QUERIES):
        blind = ~out.any(dim=-1, keepdim=True)
        if not blind.any():
            break
        out = torch.where(blind, request.changed(other_signs)(module), out)
    gap = (out - want).abs().amax(dim=(1, 3)) / want.abs().max()
    return (gap if request.key_valid is None else gap[request.key_valid]).max().item()


@attention_check("implementation", "key_padding", "query")
def padded_queries_have_no_influence(subject: Subject) -> None:
    """Large numbers or NaN in queries at padded positions do not change the output at a valid position."""
    for module in subject.modules(subject.short_and_long()):
        request = subject.draw_padded(module)
        assert request.key_valid is not None
        valid = request.key_valid[:, None, :, None]
        expected = request(module).masked_fill(~valid, 0)
        for what, fill in FILLS.items():
            got = request.filled_at_padding(fill, side="queries")(module).masked_fill(~valid, 0)
            subject.equal(got, expected, f"valid outputs when padded queries hold {what}, causal={module.geometry.causal}")


@attention_check("implementation", "key_padding")
def padding_amounts_to_shorter_inputs(subject: Subject) -> str:
    """If the card declares ``any_length`` or ``shorter``, one or two padded positions on the right do not change the outputs at the
    other positions. If the card declares ``shorter``, this also holds if most positions are padded."""
    can = subject.card.can
    if not (can.any_length or can.shorter):
        raise NotApplicable("the mechanism supports a single length, because its card declares neither any_length nor shorter")
    remarks = []
    for geometry in subject.plain_and_causal():
        # Without any_length, the module is built for longer inputs, and shorter ones must fit into it.
        module = subject.build(geometry if can.any_length else replace(geometry, queries=95, keys=95))
        # The first three pairs have no power of two between them, since sizes may change at one. Where most of the input is
        # padding, sizes that follow the length in steps, such as the number of buckets, may differ, unless the card claims that
        # shorter inputs equal padded ones.
        for length, kept in ((31, 30), (31, 29), (95, 93), (95, 31)):
            request = subject.draw(module, queries=length, keys=length)
            mask = torch.arange(length, device=subject.device).lt(kept).expand(len(request.value), -1)
            padded, alone = request.padded(mask)(module)[:, :, :kept], request.first(kept)(module)
            what = f"{kept} positions padded to {length} and the {kept} positions alone, causal={geometry.causal}"
            gap = subject.equal(padded, alone, what, math.inf if (length, kept) == (95, 31) and not can.shorter else None)
        remarks.append(f"31 positions padded to 95 and the 31 alone differ by {gap:.1g}, causal={geometry.causal}")
    return "; ".join(remarks)


@attention_check("implementation", "key_padding")
def queries_without_keys_give_zeros(subject: Subject) -> None:
    """The output of a query that sees no valid key is exactly zero, and every gradient is finite."""
    for module in subject.modules((*subject.short_and_long(), *subject.across())):
        geometry, request = module.geometry, subject.draw(module, batch=3)
        mask = torch.ones(3, geometry.keys, dtype=torch.bool, device=subject.device)
        mask[0] = False
        left = geometry.keys // 3
        mask[1, :left] = False
        request = request.padded(mask).filled_at_padding(FILLS["NaN"])
        out = request(module)
        where = f"length={geometry.keys}, causal={geometry.causal}"
        _require_zeros(out[0], f"{where}: an example without valid keys")
        if geometry.causal:
            _require_zeros(out[1, :, :left], f"{where}: the {left} queries before the first valid key")
        for name, answer in answers(request, module).items():
            require_finite(answer, f"{where}: {name}")


def _require_zeros(out: Tensor, what: str) -> None:
    bad = int((out != 0).sum())
    require(bad == 0, f"{what} must give zeros, but {bad} of {out.numel()} outputs are not, up to {out.abs().max().item():.3g}")
