"""Check that the position of padding does not matter, for mechanisms whose outputs do not depend on positions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import product

import torch
from torch import Tensor

from attn_zoo.conformance.harness import NotApplicable
from attn_zoo.conformance.requests import Request, influence
from attn_zoo.conformance.subject import Subject, attention_check
from attn_zoo.contract import Attention, Geometry

# If a mechanism masks scores with a large negative number instead of minus infinity, the fault shows only if other scores are below
# this number, as with large inputs.
SCALES = (1.0, 100.0)
"""Factors by which the check multiplies the inputs."""

SATURATING = (0.0, 50.0, -50.0)
"""Numbers to try in a padded key or additional input (stream): zero, and two numbers that open or shut a gate."""
AT_ONCE = 256
"""Number of combinations of ``SATURATING`` that are tried in one batch."""


@attention_check("implementation", "key_padding")
def padding_position_does_not_matter(subject: Subject) -> str:
    """If outputs do not depend on positions, padding before, between or after real tokens does not change the outputs of these
    tokens.

    Outputs count as independent of positions in three cases. First, permuting the tokens permutes the outputs. Second, a token
    exists that can be inserted anywhere without changing outputs of other tokens. Third, the mechanism has a recurrent state of
    fixed size whose decay depends on the tokens only.
    """
    if not subject.card.can.any_length:
        raise NotApplicable("the card does not declare any_length, because the weights belong to positions")
    proved, told = 0, []
    for geometry in _lengths(subject):
        if reason := _depends_on_positions(subject, geometry):
            told.append(f"{geometry.keys} tokens, causal={geometry.causal}: {reason}")
            continue
        for scale in SCALES:
            _require_absence(subject, subject.build(geometry), scale)
        proved += 1
    if not proved:
        raise NotApplicable(f"the outputs depend on positions: {told[0]}")
    return f"holds at {proved} lengths and forms" + (f"; outputs depend on positions at {'; '.join(told)}" if told else "")


def _lengths(subject: Subject) -> list[Geometry]:
    """Return geometries at the length of the check and, with one narrow head, at the drawn sizes from 6 tokens on."""
    sized = [replace(each, heads=1, head_dim=subject.geometry().head_dim) for each in subject.sized(shortest=6)]
    return [*subject.plain_and_causal(), *(each for each in sized if each.keys <= max(129, subject.sizes.blocks))]


@torch.no_grad()
def _require_absence(subject: Subject, module: Attention, scale: float) -> None:
    geometry = module.geometry
    request = subject.draw(module, batch=len(_patterns(geometry.keys))).times(scale)
    for row, (what, mask) in enumerate(_patterns(geometry.keys).items()):
        own, valid = request.rows(slice(row, row + 1)), mask.to(subject.device)
        padded = own.padded(valid[None])(module)[:, :, valid]
        alone = _without_padding(own, valid)(module)
        where = f"{geometry}, {what}" + (f", inputs {scale:.0f} times as large" if scale > 1 else "")
        subject.equal(padded, alone, f"the real tokens beside padding against the same tokens alone: {where}")


def _patterns(length: int) -> dict[str, Tensor]:
    """Return masks by their description: padding on either side, in the middle, in holes, and across position 64."""
    third, half = max(1, length // 3), length // 2
    spans = {
        f"padding from {third} to {2 * third}": (third, 2 * third),
        f"padding at {half} alone": (half, half + 1),
        f"padding up to {third}": (0, third),
        f"padding from {length - third} on": (length - third, length),
    }
    if length > 70:
        spans["padding from 60 to 68"] = (60, 68)
    masks = {}
    for what, (start, stop) in spans.items():
        masks[what] = torch.ones(length, dtype=torch.bool)
        masks[what][start:stop] = False
    holes = torch.ones(length, dtype=torch.bool)
    holes[1::3] = False
    return {**masks, "every third token padding": holes}


def _without_padding(request: Request, valid: Tensor) -> Request:
    return request.changed(lambda _, tensor: tensor[:, :, valid[: tensor.shape[2]]]).padded(None)


def _depends_on_positions(subject: Subject, geometry: Geometry) -> str | None:
    """Return the reason why outputs of ``eager`` without padding depend on positions, or None if they do not."""
    eager = subject.as_eager()
    module = eager.build(replace(geometry, causal=False))
    if any(stream.first is not None for stream in subject.card.streams(geometry, subject.options)):
        return "the first positions have inputs of their own"
    request = eager.draw(module, batch=2)
    with torch.no_grad():
        before = request(module)
        gaps = (_gap_when_permuted(module, request, before, seed) for seed in range(4))
        gap = next((gap for gap in gaps if gap > subject.tolerance), 0.0)
    if not gap or _has_neutral_token(eager, geometry):
        return None
    if geometry.causal and subject.card.can.stepwise:
        return _decays_by_distance(eager)
    return f"permuting the tokens changes the outputs by {gap:.2g} of the largest output"


def _gap_when_permuted(module: Attention, request: Request, before: Tensor, seed: int) -> float:
    """Return the largest change of an output if the tokens are permuted at random, relative to the largest output ``before``."""
    device = request.value.device
    order = torch.randperm(request.positions, generator=torch.Generator().manual_seed(seed)).to(device)
    after = request.changed(lambda _, tensor: tensor[:, :, order])(module)
    return ((after - before[:, :, order]).abs().max() / before.abs().max().clamp(min=1e-30)).item()


@torch.no_grad()
def _has_neutral_token(subject: Subject, geometry: Geometry) -> bool:
    """Return True if some token changes no output of other tokens, wherever it stands. Outputs then do not depend on positions.

    The value of the token is zero. Its key and streams are zero or saturate their gates, because a gate of 1 keeps a state.
    """
    module = subject.build(geometry)
    request = subject.draw(module, batch=1)
    keys = [name for name in request.tensors if name != "value" and "keys" in request.sides[name]]
    candidates = list(product(SATURATING, repeat=len(keys)))
    expected = [(valid, _without_padding(request, valid)(module)) for valid in _patterns(geometry.keys).values()]
    for start in range(0, len(candidates), AT_ONCE):
        part = candidates[start : start + AT_ONCE]
        numbers = torch.tensor(part).reshape(len(part), len(keys))
        for valid, want in expected:
            fills = {"value": torch.zeros(len(numbers)), **dict(zip(keys, numbers.unbind(1), strict=True))}
            numbers = numbers[_are_neutral(subject, module, request, fills, valid, want)]
            if not len(numbers):
                break
        else:
            return True
    return False


def _are_neutral(
    subject: Subject, module: Attention, request: Request, fills: Mapping[str, Tensor], valid: Tensor, want: Tensor
) -> Tensor:
    """Return for each candidate whether tokens with its ``fills``, at the padded positions of a mask, change no output of the other
    tokens.

    Args:
        fills: one number per candidate for each input.
        want: outputs of the other tokens alone.
    """
    valid = valid.to(request.value.device)

    def filled(name: str, tensor: Tensor) -> Tensor:
        tensor = tensor.expand(len(fills["value"]), *tensor.shape[1:])
        if name not in fills:
            return tensor
        return torch.where(valid[: tensor.shape[2], None], tensor, fills[name].to(tensor)[:, None, None, None])

    got = request.changed(filled)(module)[:, :, valid]
    return ((got - want).abs().flatten(1).amax(1) <= subject.tolerance * want.abs().max()).cpu()


def _decays_by_distance(subject: Subject) -> str | None:
    """Return the reason why a recurrent state depends on positions, or None if its size is fixed and its decay depends on the
    tokens only."""
    cost, plain = subject.card.cost, subject.geometry(causal=True)
    bytes_held = [cost(replace(plain, queries=n, keys=n), subject.options).state_bytes for n in (1024, 4096)]
    if bytes_held[0] is None or bytes_held[0] != bytes_held[1]:
        return "the state grows with the number of tokens"
    n = subject.sizes.blocks
    if _influences(subject, subject.geometry(n, heads=1, causal=True), seed=1)[0] == 0:
        return f"the first of {n} tokens has no influence on the last, as in a window"
    # The ratio of the influences of two tokens on a later one changes with the token between only if that token gates the first.
    ratios = [found[0] / found[2] for found in (_influences(subject, subject.geometry(4, heads=1, causal=True), s) for s in (1, 2))]
    if abs(ratios[0] - ratios[1]) <= 1e-6 * abs(ratios[0]):
        return "the state decays with the distance, whatever the tokens between"
    return None


def _influences(subject: Subject, geometry: Geometry, seed: int) -> list[float]:
    """Return the influence of each value on the last output. ``seed`` changes only the second token."""
    module = subject.build(geometry)
    request, other = subject.draw(module, batch=1), subject.draw(module, batch=1, seed=10 + seed)
    second = torch.arange(geometry.keys, device=subject.device)[:, None] == 1
    leaves = request.changed(lambda name, tensor: torch.where(second, other.tensors[name], tensor)).leaves()
    found: list[float] = influence(leaves(module)[:, :, -1], leaves).tolist()
    return found
