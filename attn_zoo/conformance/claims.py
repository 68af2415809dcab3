"""Checks that a card is complete, that each capability on it works, and that requests outside the capabilities raise
``UnsupportedError``."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import MISSING, fields, is_dataclass, replace
from enum import Enum
from functools import partial
from inspect import isclass
from typing import get_type_hints

import torch

from attn_zoo.conformance.harness import NotApplicable, Violation, blamed, must_raise, must_refuse, require
from attn_zoo.conformance.requests import require_like_queries
from attn_zoo.conformance.subject import DEFAULTS_AT, Subject, attention_check
from attn_zoo.contract import Attention, Geometry, Stream, UnsupportedError, length_rules
from attn_zoo.registry import attention_options

OTHER_LENGTHS = (1, 33, 63, 100)
LENGTHS_OF_DEFAULTS = (2, 3, 5, 17, 64, 100, 1000, 4096, 65536)
INPUTS = ("query", "key", "value")


@attention_check("card")
def card_is_complete(subject: Subject) -> None:
    """The card has all its texts. Its options have defaults of plain types, and its variants (sets of options) can be built. The
    field ``reads`` names the inputs that the mechanism uses: ``value``, and possibly ``query`` and ``key``."""
    card = subject.card
    for name in ("name", "title", "paper", "equation"):
        require(str(getattr(card, name)).strip(), f"the card's {name} is empty")
    require(isclass(card.build) and issubclass(card.build, Attention), f"build must be a subclass of Attention; got {card.build!r}")
    require(card.build.card is card, f"{card.origin}.card must be this card; got the card of {card.build.card.name!r}")
    require(card.implementations[:1] == ("eager",), f"implementations must begin with eager; got {card.implementations}")
    unknown = set(card.reads) - set(INPUTS)
    require(
        not unknown and "value" in card.reads, f"reads must name value, and may name only {', '.join(INPUTS)}; got {card.reads}"
    )
    _check_options(subject)
    require(
        card.can.causal or not card.can.stepwise, "the card declares stepwise without causal; steps are causal, so declare both"
    )
    require(subject.causal == card.can.causal, "the card declares causal, but the default options do not support a causal geometry")
    for geometry in subject.plain_and_causal():
        streams = card.streams(geometry, subject.options)
        require(all(isinstance(stream, Stream) for stream in streams), f"streams must return a tuple of Stream; got {streams!r}")
        names = [stream.name for stream in streams]
        require(
            len(set(names)) == len(names) and all(map(str.isidentifier, names)),
            f"streams must have different names that are Python identifiers; got {names}",
        )


def _check_options(subject: Subject) -> None:
    card, kind = subject.card, subject.card.options
    require(isclass(kind) and is_dataclass(kind), f"options must be a dataclass; got {kind!r}")
    hints = get_type_hints(kind)
    for option in fields(kind):
        bare = option.default is MISSING and option.default_factory is MISSING and option.name not in length_rules(kind)
        require(not bare, f"option {option.name} has no default; give it one, or a rule for the length (by_length)")
        hint = hints[option.name]
        plain = isclass(hint) and (hint in (int, float, bool, str) or issubclass(hint, Enum))
        require(
            plain, f"option {option.name} is of type {hint}; only int, float, bool, str and enums can be set from a command line"
        )
    for variant, options in card.variants.items():
        require(
            variant and variant != "default",
            f"the name of a variant must not be empty or 'default'; got {variant!r}. Choose another name",
        )
        given = attention_options(card, DEFAULTS_AT, options)
        require(given != attention_options(card, DEFAULTS_AT, {}), f"variant {variant!r} equals the defaults")


@attention_check("variant")
def building_does_not_mutate_options(subject: Subject) -> None:
    """Building a mechanism does not change the options that are passed to it, at any tested size."""
    for geometry in (*subject.plain_and_causal(), *subject.sized()):
        options, before = deepcopy(subject.options), repr(subject.options)
        subject.card.build(geometry, options, subject.implementation)
        require(repr(options) == before, f"{geometry}: building changed its options from {before} to {options!r}")


@attention_check("card")
def defaults_suit_every_length(subject: Subject) -> str:
    """If default options depend on the length, the mechanism can be built with its defaults at every length from 2 on. From 64
    tokens on, its method ``warnings`` does not warn of the defaults."""
    if not length_rules(subject.card.options):
        raise NotApplicable("no option has a default that depends on the length")
    card, sizes = subject.card, ((n, d) for n in LENGTHS_OF_DEFAULTS for d in (8, 64))
    for n, d in sizes:
        for causal in subject.forms:
            geometry = Geometry(2, d, n, n, causal)
            with blamed(f"the default options are unsupported at {geometry}", UnsupportedError, ValueError), torch.device("meta"):
                options = attention_options(card, geometry, {})
                card.build(geometry, options)
            warnings = card.build.warnings(geometry, options) if n >= 64 else ()
            require(not warnings, f"the method warnings warns of the defaults at {geometry}: {'; '.join(warnings)}")
    return "; ".join(f"{name} = {rule.words}" for name, rule in length_rules(card.options).items())


@attention_check("card")
def request_checking_is_inherited(subject: Subject) -> None:
    """The class inherits ``forward``, ``step`` and the checks of their arguments from ``Attention``, and overrides none of them."""
    for name in ("forward", "__call__", "step", "_check_request", "_check_tensors"):
        instead = "advance" if name == "step" else "attend"
        require(
            getattr(subject.card.build, name) is getattr(Attention, name),
            f"{subject.card.origin} overrides {name}; write {instead} instead",
        )


@attention_check("implementation")
def output_is_like_the_queries(subject: Subject) -> None:
    """The output has the shape of the queries, the dtype and device of the inputs, and finite numbers only."""
    narrow = (torch.bfloat16, torch.float16) if subject.single is torch.float32 else ()
    for module in subject.modules():
        for dtype in dict.fromkeys((subject.dtype, subject.single, *narrow)):
            for request in subject.requests(module.to(dtype)):
                where = f"causal={module.geometry.causal}, {dtype}, padded={request.is_padded}"
                require_like_queries(request.cast(dtype), request.cast(dtype)(module), where)


@attention_check("implementation")
def cross_lengths_run_or_are_refused(subject: Subject) -> None:
    """If the card declares ``cross``, the numbers of queries and keys may differ. Otherwise, building for unequal numbers raises
    ``UnsupportedError``, and so does a call with unequal numbers."""
    if subject.always_causal:
        raise NotApplicable(
            f"this check needs different numbers of queries and keys, but the implementation {subject.implementation} supports "
            "only causal attention, which needs equal numbers"
        )
    square = subject.geometry()
    for queries, keys in ((9, square.keys), (1, square.keys), (2 * square.keys, square.keys)):
        geometry = replace(square, queries=queries, keys=keys)
        if subject.card.can.cross:
            module = subject.build(geometry)
            request = subject.draw(module)
            require_like_queries(request, request(module), f"{queries} queries, {keys} keys")
            continue
        must_refuse(f"cross ({queries} queries, {keys} keys)", partial(subject.build, geometry))
        if "query" in subject.card.reads and not subject.card.can.shares_query_key:
            module = subject.build(square)
            request = subject.draw(module, queries=queries)
            must_refuse(f"a call with {queries} queries and {keys} keys", partial(request, module))


@attention_check("implementation")
def other_lengths_run_or_are_refused(subject: Subject) -> None:
    """A module runs at the length that it is built for. It also runs at other lengths if the card declares ``any_length``, and at
    shorter lengths if the card declares ``shorter``. A call at any other length raises ``UnsupportedError``."""
    can = subject.card.can
    for causal in subject.forms:
        module = subject.build(subject.geometry(causal=causal))
        for length in OTHER_LENGTHS:
            built = subject.build_if_allowed(subject.geometry(length, causal=causal))
            if built is not None:
                request = subject.draw(built)
                require_like_queries(request, request(built), f"built for {length}, causal={causal}")
            request = subject.draw(module, queries=length, keys=length)
            if can.any_length or length == subject.length or (can.shorter and length < subject.length):
                require_like_queries(request, request(module), f"built for {subject.length}, given {length}, causal={causal}")
            else:
                must_refuse(f"any_length (built for {subject.length}, given {length})", partial(request, module))


@attention_check("variant")
def resizing_leads_to_the_new_length(subject: Subject) -> None:
    """After ``resize_length``, a module has the new length and can load the state dict of a second module, which was built for this
    length. The two modules then give the same output. A mechanism that cannot be resized raises ``UnsupportedError``."""
    for geometry in subject.plain_and_causal():
        for length in (2 * geometry.keys + 1, geometry.keys - 2):
            built = subject.build_if_allowed(replace(geometry, queries=length, keys=length))
            module = subject.build(geometry)
            try:
                module.resize_length(length)
            except UnsupportedError as refusal:
                if subject.card.can.any_length:
                    raise Violation(f"the card declares any_length, but resize_length({length}) is unsupported") from refusal
                continue
            require(
                module.geometry == replace(geometry, queries=length, keys=length),
                f"after resize_length({length}), the geometry is {module.geometry}",
            )
            request = subject.draw(module)
            require_like_queries(request, request(module), f"resized from {geometry.keys} to {length}")
            if built is None:
                raise Violation(f"resize_length({length}) ran, but a module for {length} keys cannot be built")
            module.load_state_dict(built.state_dict(), strict=True)
            where = f"resized to {length} with the state dict of a module built for {length}"
            subject.equal(request(module), request(built), where, subject.exactness)


@attention_check("implementation")
def unread_inputs_have_no_influence(subject: Subject) -> None:
    """An input that the card does not list as read may be None or hold NaN. It does not change the output, and no gradient reaches
    it."""
    unread = [name for name in INPUTS if name not in subject.card.reads]
    if subject.card.can.shares_query_key:
        unread = [name for name in unread if name != "key"]
    module = subject.build()
    expected = subject.draw(module)(module)
    if subject.card.can.shares_query_key and "key" not in subject.card.reads:
        alone = replace(subject.draw(module), key=None)
        subject.equal(alone(module), expected, "output for key=None against the query also passed as key", 0.0)
    if not unread and subject.card.can.shares_query_key:
        return
    if not unread:
        raise NotApplicable("this check needs an input that the mechanism does not read, but the mechanism reads every input")
    nan = subject.draw(module, unread=True).changed(lambda name, tensor: tensor * torch.nan if name in unread else tensor).leaves()
    out = nan(module)
    subject.equal(out.detach(), expected, f"output for NaN instead of None as {' and '.join(unread)}", 0.0)
    if not out.requires_grad:
        raise Violation("no gradient reaches any input")
    out.sum().backward()
    touched = [name for name in unread if (grad := nan.tensors[name].grad) is not None and bool((grad != 0).any())]
    require(not touched, f"the card says {touched} are not read, but a gradient reaches them")


@attention_check("implementation")
def unfit_requests_are_refused(subject: Subject) -> None:
    """A shape, dtype, mask or additional input (stream) that does not fit raises ``ValueError``. If the mechanism uses the queries
    as keys, a separate key tensor raises ``UnsupportedError``."""
    module = subject.build()
    good = subject.draw(module)
    mask = torch.ones(good.value.shape[0], good.value.shape[2], dtype=torch.bool, device=subject.device)
    bad = {
        "value of three dimensions": replace(good, value=good.value[0]),
        "value with a head too many": replace(good, value=torch.cat([good.value, good.value[:, :1]], dim=1)),
        "integer key_valid": good.padded(mask.long()),
        "key_valid of the shape (keys, batch)": good.padded(mask.mT.contiguous()),
        "a stream that the card does not name": replace(good, streams={**good.streams, "surprise": good.value}),
    }
    if "query" in subject.card.reads:
        bad["None as the query"] = replace(good, query=None)
        bad["query and value of different dtypes"] = replace(good, value=good.value.half())
        bad["query and value of different batch"] = replace(good, value=good.value[:1])
    if good.streams:
        bad["missing streams"] = replace(good, streams={})
        bad["a stream too short"] = good.changed(lambda name, tensor: tensor[:, :, :-1] if name.startswith("stream") else tensor)
    for what, request in bad.items():
        must_raise(ValueError, what, partial(request, module))
    if subject.card.can.shares_query_key and good.query is not None:
        must_refuse("a key tensor other than the query", partial(replace(good, key=good.query.clone()), module))


@attention_check("variant")
def building_draws_what_is_claimed(subject: Subject) -> None:
    """If two modules are built under different seeds and then given equal parameters, their outputs are equal, unless the card
    declares ``random_at_build``."""
    first, second = subject.build(seed=1), subject.build(seed=2)
    with torch.no_grad():
        for mine, other in zip(first.parameters(), second.parameters(), strict=True):
            other.copy_(mine)
    request = subject.draw(first)
    gap = (request(first) - request(second)).abs().max().item()
    if not subject.card.can.random_at_build:
        require(
            gap == 0,
            f"the card does not declare random_at_build, but outputs of two seeds differ by {gap:.3g} with equal parameters",
        )
    elif subject.variant == "default" and gap == 0:
        buffers = [{name for name, _ in subject.build(options=options).named_buffers()} for options in subject.variants()]
        require(
            any(buffers), "the card declares random_at_build, but outputs under two seeds are equal, and no variant has buffers"
        )
