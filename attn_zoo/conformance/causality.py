"""Checks that outputs of causal attention depend on earlier positions and not on later ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from attn_zoo.conformance.harness import NotApplicable, must_refuse, require
from attn_zoo.conformance.requests import Request, influence
from attn_zoo.conformance.sizes import BORDERS, CUTS
from attn_zoo.conformance.subject import Subject, attention_check
from attn_zoo.contract import Attention

ROWS = 2**21
"""Largest number of query-key pairs per head in one call. Each example tests one cut (first position that is changed), so many
cuts are divided among several calls."""

# All lie between 64 and 128, because a mechanism may change its number of buckets when the length passes a power of two.
PREFIXED, PREFIXES = 127, (126, 120, 113, 112, 97, 96, 81, 80, 72, 65)
"""Length of a sequence, and lengths of its prefixes, which end inside blocks and at borders of blocks."""


@dataclass(frozen=True, slots=True)
class Scene:
    """One way to test causality: a factor for the past positions, and a change of the future positions."""

    future: str
    """Content of the future positions after the change, in words."""
    change: Callable[[Tensor], Tensor]
    past: float = 1.0
    opposed: bool = False
    """If True, the keys are set to the negated queries, so that the score of a position with itself is at most zero."""

    def __str__(self) -> str:
        size = f"{self.past:g} times as large" if self.past > 1 else f"{1 / self.past:g} times as small"
        past = f" and the past is {size}" if self.past != 1 else ""
        return f"the future holds {self.future}{past}{', keys being negated queries' if self.opposed else ''}"


def _other(tensor: Tensor) -> Tensor:
    return tensor.flip(-1) + 1


# A maximum or sum over the whole length is detected only if the future exceeds the past; a large past and a small future underflow
# features that shrink with large inputs; a large finite fill in place of minus infinity is detected only if scores are below it.
FUTURES = (
    Scene("other numbers", _other),
    Scene("numbers 30 times as large", lambda tensor: 30 * _other(tensor)),
    Scene("numbers 10000 times as large", lambda tensor: -1e4 * tensor),
    Scene("zeros", torch.zeros_like),
)
LOUD_PASTS = tuple(replace(scene, past=30.0) for scene in FUTURES)
LOUD_AND_QUIET = (
    Scene("numbers 100 times as large", lambda tensor: 100 * _other(tensor), past=100.0),
    Scene("numbers 100 times as small", lambda tensor: 0.01 * _other(tensor), past=100.0),
    Scene("numbers 100 times as large", lambda tensor: 100 * _other(tensor), past=0.01),
    Scene("numbers 100 times as large", lambda tensor: 100 * _other(tensor), past=100.0, opposed=True),
)


@attention_check("implementation")
def causal_output_ignores_the_future(subject: Subject) -> None:
    """In causal attention, no output depends on later positions, however much these change. If the card does not declare
    ``causal``, building the mechanism as causal raises ``UnsupportedError``."""
    if not subject.causal:
        must_refuse("causal", lambda: subject.build(subject.geometry(causal=True)))
        return
    module = subject.build(subject.geometry(causal=True))
    require_no_future(subject, module, range(1, module.geometry.keys), (*FUTURES, *LOUD_PASTS, *LOUD_AND_QUIET))


@attention_check("implementation", "causal")
def no_future_leaks_at_any_border(subject: Subject) -> None:
    """In causal attention, no output depends on later positions, at any tested length. Up to 129 positions, every position is tried
    as the beginning of the future. At longer lengths, only some positions are tried, such as powers of two."""
    for geometry in subject.sized(shortest=2):
        if geometry.causal:
            module = subject.build(subject.geometry(geometry.keys, heads=1, causal=True))
            short = geometry.keys <= max(BORDERS) and not subject.interpreted
            scenes = (FUTURES[0], LOUD_AND_QUIET[0]) if short else (FUTURES[0],)
            with torch.no_grad():
                require_no_future(subject, module, range(1, geometry.keys) if short else cuts(geometry.keys), scenes)


def require_no_future(
    subject: Subject, module: Attention, where: Sequence[int], scenes: Sequence[Scene], call: Callable[..., Tensor] | None = None
) -> None:
    """Change all positions from a cut onwards, and require that every output before the cut stays the same.

    Args:
        where: cuts (first positions that change). Each cut is tried in an example of its own.
        scenes: ways to scale the positions before a cut and to change those after it.
        call: function that is called instead of ``module``, if given.

    Raises:
        Violation: an output before a cut changed.
    """
    length, call = module.geometry.keys, module if call is None else call
    request = subject.draw(module, batch=1)
    for scene in scenes:
        past = (_opposed(request) if scene.opposed else request).times(scene.past)
        before = past(call).detach()
        for some in _portions(where, length):
            after = _with_futures(past, request, some, scene.change)(call).detach()
            for row, cut in enumerate(some):
                what = f"outputs before position {cut} of {length} when {scene}"
                subject.equal(after[row : row + 1, :, :cut], before[:, :, :cut], what)


def _opposed(request: Request) -> Request:
    if request.shared or request.query is None or request.key is None:
        return request
    return replace(request, key=-request.query)


def cuts(length: int) -> list[int]:
    """Return the positions at which the future begins in tests of ``length`` positions: near both ends, in between, and at powers
    of two or next to them."""
    return sorted({cut for cut in (*CUTS, length // 3, length // 2, length - 1) if 0 < cut < length})


def _portions(where: Sequence[int], length: int) -> Iterator[Sequence[int]]:
    rows = max(1, ROWS // length**2)
    for start in range(0, len(where), rows):
        yield where[start : start + rows]


def _with_futures(past: Request, request: Request, where: Sequence[int], change: Callable[[Tensor], Tensor]) -> Request:
    """Return one example per cut: the numbers of ``past`` before the cut, and those of ``request``, changed by ``change``, from the
    cut on."""
    changed = request.changed(lambda _, tensor: change(tensor))
    cut = torch.tensor(where, device=request.value.device)[:, None, None, None]

    def join(name: str, tensor: Tensor) -> Tensor:
        place = torch.arange(tensor.shape[2], device=tensor.device)[:, None]
        return torch.where(place >= cut, changed.tensors[name], tensor)

    return past.changed(join)


@attention_check("implementation", "causal", "key_padding")
def padding_in_the_future_has_no_influence(subject: Subject) -> None:
    """In causal attention, marking later positions as padding changes no earlier output."""
    for module in subject.modules(geometry for geometry in subject.short_and_long() if geometry.causal):
        geometry, request = module.geometry, subject.draw(module, batch=1)
        before = request(module)
        where = torch.tensor(
            range(1, geometry.keys) if geometry.keys <= max(BORDERS) else cuts(geometry.keys), device=subject.device
        )
        masks = torch.arange(geometry.keys, device=subject.device) < where[:, None]
        after = request.rows(torch.zeros_like(where)).padded(masks)(module)
        for row, cut in enumerate(where.tolist()):
            what = f"outputs before position {cut} of {geometry.keys} when the rest is padding"
            subject.equal(after[row : row + 1, :, :cut], before[:, :, :cut], what)


@attention_check("implementation", "causal")
def a_prefix_answers_as_the_whole(subject: Subject) -> None:
    """In causal attention, the outputs of a prefix alone equal the first outputs of the whole sequence."""
    if not subject.card.can.any_length:
        raise NotApplicable("the card does not declare any_length, so the mechanism runs only at the length that it was built for")
    whole = subject.build(subject.geometry(causal=True))
    request = subject.draw(whole, queries=PREFIXED, keys=PREFIXED, batch=2)
    with torch.no_grad():
        outputs = request(whole)
        for end in PREFIXES:
            found = request.first(end)(whole)
            subject.equal(found, outputs[:, :, :end], f"a prefix of {end} positions alone against the first outputs of {PREFIXED}")


@attention_check("implementation", "causal")
def causal_output_sees_the_past(subject: Subject) -> None:
    """In causal attention, the first output depends on the first value. If the mechanism uses queries, later outputs depend on
    earlier values, except at positions that begin a block."""
    module = subject.build(subject.geometry(causal=True))
    request = subject.draw(module).leaves()
    out = request(module)
    require(
        influence(out[:, :, 0], request)[0] > 0, "the first position does not see itself: its output does not depend on its value"
    )
    if "query" not in subject.card.reads:
        return
    for position in (subject.length // 2, subject.length - 1):  # of two neighbours, only one can begin a block
        pair = ((influence(out[:, :, at], request)[:at] > 0).any() for at in (position, position - 1))
        require(any(pair), f"position {position} sees none of the {position} positions before it, and neither does {position - 1}")
