"""Checks that compare a mechanism with softmax attention, with its method ``definition`` or with its implementation ``eager``.
Another check tests mechanisms that can compress tokens before projecting them."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from attn_zoo.conformance.harness import NotApplicable, Partly, Violation, require, require_finite
from attn_zoo.conformance.jumps import errors_apart_from_jumps, perturbed
from attn_zoo.conformance.requests import Request, answers, key_masks, without_padded_queries
from attn_zoo.conformance.sizes import BORDERS
from attn_zoo.conformance.subject import ENDS_AND_HOLES, Subject, attention_check
from attn_zoo.contract import Attention, CompressingAttention, Geometry, hide_rows_without_keys, join_stacks, real_tokens

TWICE = 2.0
"""Largest permitted error of an implementation, divided by the error of ``eager`` at the same precision."""
ULPS, MANY_ULPS = 8, 16
"""Roundings that are added to the permitted error: ``ULPS`` at fixed sizes, ``MANY_ULPS`` at random sizes. One rounding is the
machine epsilon times the largest output or gradient."""

SLOW = 20.0
"""Largest number of CPU seconds for ``definition`` in one check. If ``Subject.brief`` is True, the limit is ``SLOW / 6``."""
clock = time.process_time
"""Return the CPU seconds that this process has used."""

LAYERS = 2
"""Number of joined layers, of which the last is compared, for mechanisms that have a method ``join``."""
LARGE = 3
"""Factor by which inputs are also multiplied in the comparison of ``eager`` with ``definition``. At 10 times, the exponentials of a
plain definition may overflow."""

UNPADDED = 3
"""Number of examples without padding in a batch on which ``eager`` and ``definition`` are compared. Four other examples have
padding."""

NEARBY = 8
"""If an implementation exceeds its permitted error, the error of ``eager`` is also measured at this many copies of the inputs.
In each copy, every number is changed by one rounding."""


@attention_check("implementation")
def limit_is_softmax(subject: Subject) -> str | None:
    """A mechanism that declares ``exact`` equals softmax attention at every tested size, with and without padding, and for inputs
    100 times as large. If the mechanism has attention sinks, softmax attention gets the same sinks.

    If the mechanism is not exact, its card may have a function ``softmax_limit``, which builds the mechanism with other options.
    With these options, the mechanism equals softmax attention.
    """
    card = subject.card
    if card.can.exact:
        for geometry in (*subject.plain_and_causal(), *subject.sized()):
            _require_softmax(subject, subject.build(geometry))
        for geometry in subject.plain_and_causal():
            _require_softmax(subject, subject.build(geometry), scale=100.0)
        if card.can.cross and not subject.always_causal:
            for keys in (subject.length, subject.sizes.blocks):
                wide = replace(subject.geometry(keys), queries=9)
                _require_softmax(subject, subject.build(wide))
        return None
    if card.softmax_limit is None:
        raise NotApplicable(
            "the mechanism is not softmax attention, and its card does not say with which options it approaches softmax"
        )
    if (subject.variant, subject.implementation) != ("default", "eager"):
        raise NotApplicable("the softmax limit is checked only once, with implementation eager and the default options")
    for geometry in (*subject.plain_and_causal(), *subject.sized(longest=max(BORDERS), shortest=min(BORDERS))):
        _require_softmax(subject, card.softmax_limit(geometry).to(subject.device, subject.dtype).eval(), padded=False)
    return None


@torch.no_grad()
def _require_softmax(subject: Subject, module: Attention, *, padded: bool = True, scale: float = 1.0) -> None:
    geometry = module.geometry
    for request in subject.requests(module, tied=True)[: None if padded else 1]:
        given, mask = request.times(scale), request.key_valid
        allowed = torch.ones(geometry.queries, geometry.keys, dtype=torch.bool, device=subject.device)
        allowed = allowed.tril() if geometry.causal else allowed
        allowed = allowed if mask is None else allowed & mask[:, None, None, :]
        want = _softmax_attention(given, allowed, getattr(module, "sinks", None))
        where = f"against softmax attention, {geometry}, padded={request.is_padded}" + (", inputs 100 times as large" * (scale > 1))
        subject.equal(given(module), want, where)


def _softmax_attention(request: Request, allowed: Tensor, sinks: Tensor | None) -> Tensor:
    """Return PyTorch's softmax attention. The output is zero if a query has no allowed key. A sink acts as the score of one more
    key, whose value is zero."""
    query, key, value = request.query, request.key, request.value
    if query is None or key is None:
        raise NotApplicable("the mechanism does not read both queries and keys, which softmax attention needs")
    if sinks is not None:
        scores = query.new_zeros(()).masked_fill(~allowed, float("-inf")).expand(*query.shape[:3], -1)
        scores = torch.cat([scores, sinks.to(query.dtype)[:, None, None].expand(*query.shape[:3], 1)], dim=-1)
        key, value = F.pad(key, (0, 0, 0, 1)), F.pad(value, (0, 0, 0, 1))
        return F.scaled_dot_product_attention(query, key, value, attn_mask=scores)
    blind = ~allowed.any(dim=-1, keepdim=True)
    out = F.scaled_dot_product_attention(query, key, value, attn_mask=allowed | blind)
    return out.masked_fill(blind, 0)


@attention_check("variant")
def eager_agrees_with_the_definition(subject: Subject) -> str:
    """In float64, the outputs and all gradients of ``eager`` equal those of ``definition``, with and without padding.
    ``definition`` is a method of the mechanism that computes the equation of the paper in a few plain steps.

    If the class has a method ``join``, the second of two joined layers is compared as well, unless the options are for another
    number of layers. Outputs under ``no_grad`` are also compared, and at one length outputs for inputs three times as large. Above
    129 positions, gradients are not compared. If the definition is slow, only the shortest sizes are compared, and the report says
    how many.
    """
    if subject.card.build.definition is None:
        raise NotApplicable("the class has no method `definition` to compare with")
    longest = subject.sizes.blocks if subject.variant == "default" else max(BORDERS)
    found = [*_geometries(subject), *subject.sized(longest=longest, shortest=2)]
    limit, spent, worst = SLOW / 6 if subject.brief else SLOW, 0.0, 0.0
    pace = math.inf  # seconds per unit of work at the fastest size: a single size may have met a pause
    by_work = sorted(found, key=_work)
    for geometry in subject.plain_and_causal() if _joins(subject) else ():
        worst = max(worst, _compare_with_definition(subject, geometry, LAYERS))
    for place, geometry in enumerate(by_work):
        if place and spent + pace * _work(geometry) > limit:
            reached = max(each.keys for each in by_work[:place])
            told = f"compared at {place} of {len(by_work)} sizes, up to {reached} positions, because the definition is slow"
            return Partly(f"{told}: it took {spent:.0f} s for these")
        begun = clock()
        worst = max(worst, _compare_with_definition(subject, geometry))
        took = clock() - begun
        spent, pace = spent + took, min(pace, took / _work(geometry))
    return f"differ by at most {worst:.1e} of the largest number"


def _work(geometry: Geometry) -> int:
    """Return the work of one comparison: query-key pairs of all heads, counted three times if gradients are compared too."""
    return geometry.queries * geometry.keys * geometry.heads * (1 if geometry.keys > max(BORDERS) else 3)


def _compare_with_definition(subject: Subject, geometry: Geometry, layers: int = 1) -> float:
    """Compare ``eager`` with the definition at one size, and return the largest difference. If there are several layers, the last
    one is compared.

    The definition, which may be slow, is called only once. Its examples without padding therefore get a mask that hides nothing.
    """
    own, naive = (_last_layer(each, geometry, layers) for each in (subject, replace(subject, implementation="definition")))
    naive.load_state_dict(own.state_dict(), strict=True)
    naive.attend = _attend_in_definition
    padded, far = subject.card.can.key_padding and geometry.keys > 5, geometry.keys > max(BORDERS)
    request, call = subject.draw(own, batch=UNPADDED + 4), partial(_unpadded_apart, own) if padded else own
    if padded:
        masks = key_masks(geometry.keys, subject.device)[:5]
        request = request.padded(torch.cat([masks[:1].expand(UNPADDED, -1), masks[1:]]))
    where = f"{geometry}, padded={padded}{f', layer {layers} of {layers}' if layers > 1 else ''}"
    want = _outputs(request, naive) if far else answers(request, naive)
    worst = _require_equal(subject, _outputs(request, call), want, f"{where}, no_grad")
    if geometry.keys == subject.length and not subject.brief:
        large = request.times(LARGE)
        _require_equal(subject, _outputs(large, call), _outputs(large, naive), f"{where}, inputs {LARGE} times as large")
    return worst if far else max(worst, _require_equal(subject, answers(request, own, call), want, where))


def _joins(subject: Subject) -> bool:
    """Return True if the class has a method ``join`` and its options are not for another number of layers than ``LAYERS``."""
    if subject.card.build.join is Attention.join:
        return False
    stack = [subject.build() for _ in range(LAYERS)]
    try:
        for layer in stack:
            layer.check_stack(stack)
    except ValueError:
        return False
    return True


def _last_layer(subject: Subject, geometry: Geometry, layers: int) -> Attention:
    """Return the last of several joined layers of a mechanism. A single layer is not joined."""
    stack = [subject.build(geometry) for _ in range(layers)]
    if layers > 1:
        join_stacks(stack)
    return stack[-1]


def _attend_in_definition(*_: object, **__: object) -> Tensor:
    raise Violation("`definition` calls `attend`, so outputs would be compared with themselves; write the equation in plain steps")


@torch.no_grad()
def _outputs(request: Request, call: Callable[..., Any]) -> dict[str, Tensor]:
    return {"output": without_padded_queries(request, request(call))}


def _unpadded_apart(module: Attention, query: Any, key: Any, value: Tensor, *, key_valid: Tensor, streams: Any) -> Tensor:
    """Call the module with the ``UNPADDED`` first examples of a batch without a mask, then with the other examples and their
    masks."""
    whole = Request(query, key, value, key_valid, streams or {})
    apart = whole.rows(slice(UNPADDED)).padded(None), whole.rows(slice(UNPADDED, None))
    return torch.cat([request(module) for request in apart])


def _require_equal(subject: Subject, got: dict[str, Tensor], want: dict[str, Tensor], where: str) -> float:
    """Compare with the definition. Return the largest difference, relative to the largest number of the definition."""
    largest = max(answer.abs().max().item() for answer in want.values()) or 1.0  # the output of pooling one token is zero
    return subject.equal(got, want, f"differs from the definition: {where}", size=largest)


@attention_check("twin")
def implementation_agrees_with_eager(subject: Subject) -> str:
    """The implementation is as accurate as ``eager``. An error is the distance of an output or gradient from that of ``eager`` in
    float64.

    In float32, the error of the implementation is at most twice the error of ``eager``, plus a few roundings. If the error is
    larger, that of ``eager`` is also measured at eight copies of the inputs, in which each number is changed by one rounding. The
    largest error of ``eager`` then sets the limit. Numbers that jump in float64 if inputs move by a few roundings may differ more.

    If the kernels multiply matrices in 16 bits only, the limit comes from a second call of ``eager`` in float64, with each input
    number changed by one rounding of 16 bits. The permitted error is twice the resulting change, plus a few roundings.
    """
    worst = 0.0
    few = _geometries(subject)
    for geometry in (*few, *subject.sized()):
        single = subject.build(geometry, dtype=subject.single)
        own, exact = (subject.as_eager().build(geometry, dtype=dtype) for dtype in (torch.float32, torch.float64))
        for module in (own, exact):
            module.load_state_dict(single.state_dict(), strict=True)
        # Two examples are enough at the two longest lengths, where five take half of the time of all.
        examples = slice(5) if geometry.keys <= subject.sizes.blocks else ENDS_AND_HOLES
        for request in subject.requests(exact, examples, fewest=6):
            padded = request.cast(subject.single)
            want, got = answers(padded.cast(torch.float64), exact), answers(padded, single)
            if subject.single is torch.float32:
                mine = answers(padded, own)
            else:
                mine = answers(perturbed(padded.cast(torch.float64), subject.single), exact)
            rounding = (ULPS if geometry in few else MANY_ULPS) * torch.finfo(subject.single).eps
            largest = {name: answer.abs().max().item() for name, answer in want.items()}
            nearby: dict[str, float] = {}
            for name in want:
                where = f"{geometry}, padded={request.is_padded}: {name}"
                require_finite(got[name], where)
                # A gradient may cancel to zero, so roundings are relative to the largest number of the backward pass.
                floor = rounding * (largest[name] if name == "output" else max(largest.values()))
                error, eager = _error(got[name], want[name]), _error(mine[name], want[name])
                if error > TWICE * eager + floor and subject.single is torch.float32:
                    nearby = nearby or _worst_errors(padded, own, exact)
                    eager = max(eager, nearby[name])
                allowed = TWICE * eager + floor
                if error > allowed and subject.single is torch.float32:
                    apart = errors_apart_from_jumps({name: got[name]}, want, {name: allowed}, padded.cast(torch.float64), exact)
                    error = apart[name].max().item()
                require(
                    error <= allowed,
                    f"{where}: the error is {error:.3g}, that of eager {eager:.3g}; at most {allowed:.3g} is allowed",
                )
                worst = max(worst, error / (eager + floor))
    return f"the error is at most {worst:.2f} times that of eager plus {ULPS} roundings, {MANY_ULPS} at the drawn sizes"


def _geometries(subject: Subject) -> list[Geometry]:
    lengths = (1, subject.length, 100) if subject.card.can.any_length else (subject.length,)
    found = [replace(plain, queries=n, keys=n) for plain in subject.plain_and_causal() for n in lengths]
    found.append(subject.geometry(heads=3, head_dim=64))
    return [*found, *subject.across()]


def _worst_errors(request: Request, own: Attention, exact: Attention) -> dict[str, float]:
    """Return the largest error of each output and gradient of ``eager`` in float32, over inputs that differ by roundings.

    If a gradient is a small difference of large numbers, its error may be many times larger at the next input.
    """
    worst: dict[str, float] = {}
    for seed in range(NEARBY):
        near = perturbed(request, torch.float32, seed)
        want, got = answers(near.cast(torch.float64), exact), answers(near, own)
        worst = {name: max(worst.get(name, 0.0), _error(got[name], want[name])) for name in want}
    return worst


def _error(found: Tensor, want: Tensor) -> float:
    return (found.double() - want).abs().max().item()


@attention_check("variant")
def compressing_first_agrees(subject: Subject) -> None:
    """If a mechanism can compress the tokens to fewer positions before projecting them to keys and values, the output is the same
    as if it compressed after projecting. The FLOPs of the compression equal those that the mechanism's method ``compression_flops``
    states."""
    for module in subject.modules():
        if not isinstance(module, CompressingAttention):
            raise NotApplicable("the mechanism is not a CompressingAttention")
        length = module.compressed_length()
        if length is None:
            raise NotApplicable("this mechanism cannot compress tokens once for all heads")
        _compress(subject, module, length)


def _compress(subject: Subject, module: CompressingAttention, length: int) -> None:
    geometry, width = module.geometry, 12
    generator = torch.Generator().manual_seed(4)
    tokens = torch.randn(6, geometry.keys, width, generator=generator, dtype=torch.float64).to(subject.dtype)
    project = torch.randn(2, width, geometry.inner_dim, generator=generator, dtype=torch.float64).to(subject.dtype)
    with FlopCounterMode(display=False) as counter:
        module.compress(tokens[:1], None)
    counted, stated = counter.get_total_flops(), module.compression_flops(geometry.keys, width, 1)
    require(counted == stated, f"compression_flops states {stated}, but PyTorch counts {counted}")
    for request in subject.requests(module):
        mask = request.key_valid
        seen = tokens if mask is None else tokens.masked_fill(~mask[:, :, None], 0)
        short = module.compress(seen, mask)
        again, masses = module.compress_and_weigh(seen, mask)
        for mass, compressed in zip(masses, module.compress(real_tokens(seen, mask), mask), strict=True):
            subject.equal(mass.expand_as(compressed), compressed, f"masses against the compressed mask, padded={request.is_padded}")
        for weighed, alone in zip(again, short, strict=True):
            subject.equal(weighed, alone, f"tokens of compress_and_weigh against those of compress, padded={request.is_padded}")
        shapes = [tuple(part.shape) for part in short]
        require(
            all(shape == (6, length, width) for shape in shapes),
            f"compress must return tensors of shape {(6, length, width)}; got {shapes}",
        )
        key, value = (_split(part @ matrix, geometry) for part, matrix in zip(short, project, strict=True))
        late_key, late_value = (_split(seen @ matrix, geometry) for matrix in project)
        late = replace(request, key=late_key, value=late_value)(module)
        assert request.query is not None
        first = hide_rows_without_keys(module.attend_compressed(request.query, key, value, module.compressed_valid(mask)), mask)
        subject.equal(first, late, f"compressing first against projecting first, padded={request.is_padded}")


def _split(tokens: Tensor, geometry: Geometry) -> Tensor:
    return tokens.unflatten(-1, (geometry.heads, geometry.head_dim)).transpose(1, 2)
