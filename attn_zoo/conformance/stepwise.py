"""Checks of stepwise calls: processing a sequence in pieces with a recurrent state gives the same outputs as one call."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import FrozenInstanceError, fields, is_dataclass, replace
from functools import partial
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from attn_zoo.conformance.batch import require_apart
from attn_zoo.conformance.harness import Violation, must_raise, must_refuse, require
from attn_zoo.conformance.requests import Request, answers, require_like_queries
from attn_zoo.conformance.sizes import CUTS
from attn_zoo.conformance.state import tensors_of
from attn_zoo.conformance.subject import Subject, attention_check
from attn_zoo.contract import Attention, CarriedState, UnsupportedError

ROUNDINGS = 32
"""Largest difference between outputs of 16 bits in steps and in one call, in roundings of the largest output."""


@attention_check("variant")
def stepwise_matches_full(subject: Subject) -> None:
    """Processing a sequence token by token, or in pieces of any length, gives the same outputs and gradients as one call. In 16
    bits, outputs are equal up to rounding, and of the dtype of the inputs. If the card does not declare ``stepwise``, a step raises
    ``UnsupportedError``."""
    if not subject.card.can.stepwise:
        module = subject.build(subject.plain_and_causal()[-1])
        must_refuse("stepwise (initial_state)", partial(module.initial_state, 3))
        must_refuse("stepwise (step)", partial(_step, module, subject.draw(module), None))
        return
    together = subject.build()
    must_refuse("a step without causality", lambda: subject.draw(together)(partial(_in_steps, together, [subject.length])))
    for module in subject.modules(geometry for geometry in subject.short_and_long() if geometry.causal):
        geometry, request = module.geometry, subject.draw(module)
        whole = answers(request, module)
        for what, sizes in _ways(geometry.keys).items():
            found = answers(request, module, partial(_in_steps, module, sizes))
            subject.equal(found, whole, f"of {geometry.keys} tokens, {what}, against one call")
        if not subject.card.can.any_length:
            longer = subject.draw(module, queries=geometry.keys + 1, keys=geometry.keys + 1)
            must_refuse("a step beyond the length built for", partial(longer, partial(_in_steps, module, [geometry.keys, 1])))
        elif geometry.keys == subject.length:
            _require_steps_beyond(subject, module)
    _require_steps_in_16_bits(subject)


@torch.no_grad()
def _require_steps_in_16_bits(subject: Subject) -> None:
    """Compare steps with one call of a module of 16 bits."""
    for dtype in (torch.float16, torch.bfloat16):
        module = subject.build(subject.geometry(causal=True)).to(dtype)
        request = subject.draw(module).cast(dtype)
        found = request(partial(_in_steps, module, _three_pieces(subject)))
        require(found.dtype == dtype, f"a step with {dtype} inputs returns {found.dtype}")
        subject.equal(found, request(module), f"{dtype} outputs in steps against one call", ROUNDINGS * torch.finfo(dtype).eps)


@torch.no_grad()
def _require_steps_beyond(subject: Subject, module: Attention) -> None:
    """Compare steps with one call, for three times as many tokens as the module was built for."""
    length = 3 * subject.length + 2
    longer = subject.draw(module, queries=length, keys=length)
    found = longer(partial(_in_steps, module, [subject.length, subject.length, 1, 1, subject.length]))
    subject.equal(found, longer(module), f"{length} tokens in steps, built for {subject.length}, against one call")


@attention_check("variant", "stepwise")
def steps_hold_on_for_long(subject: Subject) -> None:
    """A sequence of more than 512 tokens gives the same outputs in pieces as in one call. The pieces are single tokens, blocks of
    64 tokens, or pieces that end at a power of two, one token before it, or one token after it."""
    far = subject.geometry(subject.sizes.long, heads=1, causal=True)
    length = far.keys if subject.card.can.any_length or subject.build_if_allowed(far) else subject.length
    module = subject.build(replace(far, queries=length, keys=length))
    request = subject.draw(module, batch=1)
    borders = torch.tensor([0, *(cut for cut in CUTS if cut < length), length]).diff().tolist()
    with torch.no_grad():
        whole = request(module)
        blocks = [64] * (length // 64) + [length % 64] * (length % 64 > 0)
        ways = {"token by token": [1] * length, f"in pieces of {borders}": borders, "in pieces of 64": blocks}
        for what, sizes in ways.items():
            steps = request(partial(_in_steps, module, sizes))
            for end in sorted({min(64, length), min(512, length), length}):
                what_ends = f"the first {end} outputs of {length} tokens, {what}, against one call"
                subject.equal(steps[:, :, :end], whole[:, :, :end], what_ends)


@attention_check("variant", "stepwise")
def steps_leave_their_state_alone(subject: Subject) -> None:
    """A recurrent state is a frozen dataclass that counts its tokens. A step does not change the state that it receives, so two
    different continuations can start from one state."""
    module = subject.build(subject.geometry(causal=True))
    request, half = subject.draw(module), subject.length // 2
    with torch.no_grad():
        start = module.initial_state(request.value.shape[0], dtype=subject.dtype, device=subject.device)
        _, middle = _step(module, request.between(0, half), start)
        for state, position in ((start, 0), (middle, half)):
            kept = {name: tensor.clone() for name, tensor in _numbers(state).items()}
            rest = request.between(position, None)
            other = rest.changed(lambda _, tensor: -3 * tensor)
            require(state.position == position, f"after {position} tokens, state.position must be {position}; got {state.position}")
            first, after = _step(module, rest, state)
            require(
                after.position == subject.length,
                f"after {subject.length} tokens, state.position must be {subject.length}; got {after.position}",
            )
            _step(module, other, state)
            changed = [name for name, tensor in _numbers(state).items() if not torch.equal(tensor, kept[name])]
            require(not changed, f"a step from position {position} changed {', '.join(changed)} of the state it was given")
            subject.equal(_step(module, rest, state)[0], first, f"the second step from position {position} against the first", 0.0)


@attention_check("variant", "stepwise")
def carried_states_stay_as_small_as_stated(subject: Subject) -> None:
    """A recurrent state in float32 takes at most the ``state_bytes`` that the card states for the number of tokens read. Its
    tensors are not views of larger tensors, which would stay in memory."""
    module = subject.build(subject.geometry(causal=True)).float()
    tokens, piece = subject.length * (5 if subject.card.can.any_length else 1), subject.length // 3
    for batch in (1, 3):
        request = subject.draw(module, queries=tokens, keys=tokens, batch=batch).cast(torch.float32)
        state = module.initial_state(batch, device=subject.device)
        for start in range(0, tokens, piece):
            with torch.no_grad():
                out, state = _step(module, request.between(start, start + piece), state)
            require(out.dtype == torch.float32, f"a step with float32 inputs returns {out.dtype}")
            tensors, read = _numbers(state).values(), min(start + piece, tokens)
            held = sum(tensor.nbytes for tensor in tensors)
            require(held == state.nbytes, f"state.nbytes must be {held}, the bytes of its tensors; got {state.nbytes}")
            kept = sum({tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in tensors}.values())
            require(
                kept <= held,
                f"after {read} tokens the state has {held} bytes, but it keeps tensors of {kept} bytes in memory, because it holds "
                "views of them. Copy the views with clone()",
            )
            stated = _state_bytes(module, max(read, subject.length))
            what = f"after {read} tokens of {batch} examples the state has {held} bytes"
            require(held <= batch * stated, f"{what}, but the card states {batch} x {stated}")


def _state_bytes(module: Attention, tokens: int) -> int:
    stated = module.card.cost(replace(module.geometry, queries=tokens, keys=tokens), module.options).state_bytes
    require(stated is not None, "the card declares stepwise, so its cost must state state_bytes")
    return stated or 0


@attention_check("variant", "stepwise")
def steps_keep_examples_apart(subject: Subject) -> None:
    """In stepwise calls, an example gives the same outputs alone and in a batch, even if other examples are 30 times as large or
    hold NaN."""
    module = subject.build(subject.geometry(causal=True))
    require_apart(subject, subject.draw(module, batch=6), partial(_in_steps, module, _three_pieces(subject)), "in steps")


def _three_pieces(subject: Subject) -> list[int]:
    half = subject.length // 2
    return [half, 1, subject.length - half - 1]


@attention_check("variant", "stepwise")
def unfit_steps_are_refused(subject: Subject) -> None:
    """A step raises ``ValueError`` if its recurrent state has another type or batch size, if there are no tokens, if the numbers of
    queries and keys differ, or if additional inputs (streams) are missing."""
    module = subject.build(subject.geometry(causal=True))
    request = subject.draw(module)
    state = module.initial_state(3, dtype=subject.dtype, device=subject.device)
    bad: dict[str, tuple[Request, Any]] = {
        "None as the state": (request, None),
        "a state of fewer examples": (request, module.initial_state(1, dtype=subject.dtype, device=subject.device)),
        "a step of no tokens": (request.between(0, 0), state),
    }
    if request.query is not None and not request.shared:
        bad["a query too few"] = replace(request, query=request.query[:, :, 1:]), state
    if request.streams:
        bad["missing streams"] = replace(request, streams={}), state
    for what, (given, before) in bad.items():
        must_raise(ValueError, what, partial(_step, module, given, before))


@attention_check("variant", "stepwise")
def empty_batches_step_or_are_refused(subject: Subject) -> None:
    """A step with an empty batch gives an empty output, passes gradients to the inputs and counts the tokens. A mechanism may
    instead raise ``ValueError`` or ``UnsupportedError``."""
    module, half = subject.build(subject.geometry(causal=True)), subject.length // 2
    request, outs = subject.draw(module).rows(slice(0, 0)), list[Tensor]()
    try:
        state = module.initial_state(0, dtype=subject.dtype, device=subject.device)
        for piece in (request.between(0, half), request.between(half, half + 1), request.between(half + 1, None)):
            leaves = piece.leaves()
            out, state = _step(module, leaves, state)
            outs.append(out)
            read = sum(each.shape[2] for each in outs)
            what = f"a step of no examples that ends at token {read}"
            require_like_queries(leaves, out, what)
            require(state.position == read, f"{what}: state.position must be {read}; got {state.position}")
            require(out.requires_grad, f"{what}: no gradient reaches any input")
        torch.cat(outs, dim=2).sum().backward()
    except (ValueError, UnsupportedError):
        return


def _ways(length: int) -> dict[str, Sequence[int]]:
    """Return ways to cut a sequence into pieces: the lengths of the pieces, by a description."""
    generator = torch.Generator().manual_seed(length)
    cuts = torch.randperm(length - 1, generator=generator)[: 5 + length // 20].add(1).sort().values
    edges = torch.cat([torch.tensor([0]), cuts, torch.tensor([length])])
    ways: dict[str, Sequence[int]] = {
        "in pieces of random lengths": edges.diff().tolist(),
        "as a prefix and the last token": [length - 1, 1],
        "as one piece": [length],
    }
    if length < 100:
        ways["token by token"] = [1] * length
    return ways


def _in_steps(
    module: Attention, sizes: Sequence[int], query: Any, key: Any, value: Tensor, *, key_valid: Tensor | None, streams: Any
) -> Tensor:
    """Compute outputs piece by piece and concatenate them."""
    whole = Request(query, key, value, None, streams or {})
    state: CarriedState = module.initial_state(value.shape[0], dtype=value.dtype, device=value.device)
    out = []
    for start, size in zip(accumulate(sizes, initial=0), sizes, strict=False):
        answer, state = _step(module, whole.between(start, start + size), state)
        out.append(answer)
    return torch.cat(out, dim=2)


def _step(module: Attention, request: Request, state: Any) -> tuple[Tensor, CarriedState]:
    return module.step(request.query, request.key, request.value, state, **request.streams)


def _numbers(state: CarriedState) -> dict[str, Tensor]:
    """Return the tensors that a state holds, by the names of their fields."""
    if not is_dataclass(state) or isinstance(state, type):
        raise Violation(f"a state must be a frozen dataclass; got {type(state).__name__}")
    try:
        setattr(state, fields(state)[0].name, None)
        raise Violation(f"{type(state).__name__}, the class of the state, is not frozen")
    except FrozenInstanceError:
        return dict(tensors_of({field.name: getattr(state, field.name) for field in fields(state)}))
