"""``attn-zoo list``: print the cards of mechanisms and tasks as tables."""

from __future__ import annotations

import argparse
import inspect
import re
import sys
import textwrap
from dataclasses import fields
from typing import Any

from tabulate import tabulate

from attn_zoo import registry
from attn_zoo.contract import AttentionCard, Frames, Geometry, Pairs, Patches, TaskCard, UnknownNameError, length_rules
from attn_zoo.escapes import terminal_lines
from attn_zoo.terminal import WIDE, columns, fit, wrap

_MARK = {True: "yes", False: "-"}
_LENGTHS = (64, 1024, 4096)
_CONTROLS = "(c) marks a control: a network that cannot select tokens by content, which shows what a task yields without attention."
_CLAIMS = ("causal", "stepwise", "padding", "cross", "any length", "time", "memory")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``attn-zoo list``."""
    parser.description = "Print tables of all mechanisms and tasks and of plugins that failed, or describe the named ones in full."
    shown = "mechanism or task to show in full: paper, equation, capabilities, options, defaults by length; presets of a task"
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"{shown} (default: print tables of all)")
    parser.add_argument("--wide", action="store_true", help=WIDE)
    parser.set_defaults(handler=_list)


def _list(parsed: argparse.Namespace) -> int:
    print(terminal_lines("\n\n".join(map(describe, parsed.names)) or listing(parsed.wide)))
    return 0


def describe(name: str) -> str:
    """Return the card (the registered description) of the mechanism or task with this name, as text.

    Raises:
        UnknownNameError: nothing has this name.
    """
    if name in registry.attentions():
        return _attention(registry.card(name))
    if name in registry.task_names():
        return _task(registry.task_card(name))
    raise UnknownNameError("attention or task", name, [*registry.attentions(), *registry.task_names()], registry.OWN)


def listing(wide: bool = False) -> str:
    """Return tables of all mechanisms, all tasks, and the plugins that could not be loaded.

    Args:
        wide: True to show all columns at full width.
    """
    failures = registry.load_plugins()
    parts = [_attentions(wide), _tasks(wide)]
    if failures:
        parts.append(fit([[name, "failed", reason] for name, reason in failures.items()], ["plugin", "state", "reason"], wide=wide))
    return "\n\n".join([*parts, "attn-zoo list NAME shows one of them in full"])


def _attention(card: AttentionCard) -> str:
    """Return the card of a mechanism, with its equation and the defaults of its options at a few lengths."""
    facts = [["paper", card.paper], ["equation", card.equation], ["implementations", ", ".join(card.implementations)]]
    facts += [[claim, says] for claim, says in zip(_CLAIMS, _claims(card), strict=True)]
    facts += [["version", str(card.version)], ["defined in", card.origin]]
    at = [registry.attention_options(card, Geometry(8, 64, n, n), {}) for n in _LENGTHS]
    rules = length_rules(card.options)
    options = [
        [f.name, rules[f.name].words if f.name in rules else _plain(f.default), *(_plain(getattr(one, f.name)) for one in at)]
        for f in fields(card.options)
    ]
    head = ["option", "default", *(f"at {n:,} tokens" for n in _LENGTHS)]
    tables = [fit(options, head)] if options else []
    return "\n\n".join([f"{card.name}: {card.title}", *_documentation(card), fit(facts), *tables])


def _task(card: TaskCard) -> str:
    """Return the card of a task, with its options and presets."""
    facts = [[name, getattr(card, name)] for name in ("version", "source", "licence", "metric")]
    facts += [["inputs", inputs_in_words(card)], ["data", card.build(card.options()).data_title]]
    facts += [["data sets", ", ".join(each.name for each in card.datasets)]] * bool(card.datasets)
    facts += [["defined in", card.origin]]
    options = [[f.name, _plain(getattr(card.options(), f.name))] for f in fields(card.options)]
    levels = [
        [name, _pairs(level.options), _pairs(level.model), _pairs(level.budget), level.differs]
        for name, level in card.levels.items()
    ]
    tables = [fit(options, ["option", "default"])] if options else []
    tables += [fit(levels, ["level", "options", "network", "budget", "differs from the published set-up"])]
    return "\n\n".join([f"{card.name}: {card.title}", wrap(card.summary), *_documentation(card), fit(facts), *tables])


def _documentation(card: AttentionCard | TaskCard) -> list[str]:
    """Return the docstrings of the module, which hold the equation of a mechanism, and of the class."""
    module = inspect.getdoc(sys.modules[card.build.__module__]) if isinstance(card, AttentionCard) else ""
    own = inspect.getdoc(card.build) if "__doc__" in vars(card.build) else ""
    return [textwrap.indent(wrap(_flowing(text), columns() - 2), "  ") for text in (module, own) if text]


def _flowing(docstring: str) -> str:
    """Return a docstring with one line for each paragraph, each remark such as ``Source:`` and each item of a list, and with single
    backticks."""
    return re.sub(r"(?<!\n)\n(?!\n|[A-Z]\w+: |- ) *", " ", docstring).replace("``", "`")


def attention_table() -> str:
    """Return a Markdown table of all mechanisms: their capabilities, and how their time and memory grow with the length."""
    rows = [[f"`{card.name}`", card.title, *_claims(card), card.paper] for card in _cards()]
    return tabulate(rows, ["attention", "what it is", *_CLAIMS, "paper"], tablefmt="github")


def task_table() -> str:
    """Return a Markdown table of all tasks with their data, input length and number of classes."""
    registry.load_plugins()
    rows = [
        [f"`{card.name}`", card.summary, card.build(card.options()).data_title, inputs_in_words(card), card.metric, card.licence]
        for card in map(registry.task_card, registry.task_names())
    ]
    return tabulate(rows, ["task", "what is asked", "data", "default inputs", "metric", "licence"], tablefmt="github")


def inputs_in_words(card: TaskCard) -> str:
    """Return a short text about the inputs and labels of a task with its default options."""
    spec = card.build(card.options()).spec
    if isinstance(spec.inputs, Patches):
        form = f"{spec.inputs.height} x {spec.inputs.width} x {spec.inputs.channels} in {spec.length} patches"
    elif isinstance(spec.inputs, Frames):
        form = f"{spec.length} frames of {spec.inputs.channels} channels"
    else:
        form = f"2 x {spec.length} tokens" if isinstance(spec.inputs, Pairs) else f"{spec.length} tokens"
    asked = "per position" if spec.labels == "position" else "per example"
    numbers = "1 number" if spec.classes == 1 else f"{spec.classes} numbers"
    kinds = {"multi_label": f"any of {spec.classes} classes", "regression": numbers}
    return f"{form}, {kinds.get(spec.problem, f'{spec.classes} classes')} {asked}"


def _pairs(given: Any) -> str:
    return ", ".join(f"{key}={_plain(value)}" for key, value in given.items())


def _plain(value: Any) -> str:
    return str(getattr(value, "value", value))


def _attentions(wide: bool) -> str:
    rows = [[card.name + " (c)" * card.control, *_claims(card), ", ".join(card.implementations), card.paper] for card in _cards()]
    head = ["attention", *_CLAIMS, "implementations", "paper"]
    table = fit(rows, head, optional=["paper", "implementations", "memory"], whole=["time", "memory"], wide=wide)
    return f"{table}\n\n{wrap(_CONTROLS)}"


def _cards() -> list[AttentionCard]:
    return [registry.card(name) for name in registry.attentions()]


def _claims(card: AttentionCard) -> list[str]:
    can = card.can
    flags = [_MARK[flag] for flag in (can.causal, can.stepwise, can.key_padding, can.cross)]
    return [*flags, "shorter" if can.shorter else _MARK[can.any_length], str(card.time), str(card.memory)]


def _tasks(wide: bool) -> str:
    rows = [
        [card.name, card.version, ", ".join(card.levels), card.licence, card.summary]
        for card in map(registry.task_card, registry.task_names())
    ]
    return fit(rows, ["task", "version", "levels", "licence", "summary"], optional=["licence", "version"], wide=wide)
