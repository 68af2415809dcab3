"""``attn-zoo list``: the cards as tables."""

from __future__ import annotations

import argparse
import inspect
import textwrap
from dataclasses import fields
from typing import Any

from tabulate import tabulate

from attn_zoo import registry
from attn_zoo.contract import AttentionCard, Geometry, Pairs, Patches, TaskCard, length_rules

_MARK = {True: "yes", False: "-"}
_LENGTHS = (64, 1024, 4096)
_CLAIMS = ("causal", "stepwise", "padding", "cross", "any length", "time", "memory")


def fill(parser: argparse.ArgumentParser) -> None:
    """Say what the command takes."""
    parser.add_argument(
        "--attention", metavar="NAME", help="all about one attention: paper, claims, options and defaults by length"
    )
    parser.add_argument("--task", metavar="NAME", help="all about one task: source, options, levels and how they differ")
    parser.set_defaults(handler=_list)


def _list(parsed: argparse.Namespace) -> int:
    asked = [describe_attention(parsed.attention)] if parsed.attention else []
    asked += [describe_task(parsed.task)] if parsed.task else []
    print("\n\n".join(asked) or listing())
    return 0


def listing() -> str:
    """Attentions, tasks and failed plugins."""
    failures = registry.load_plugins()
    parts = [_attentions(), _tasks()]
    if failures:
        rows = [[name, "failed", reason] for name, reason in failures.items()]
        parts.append(tabulate(rows, ["plugin", "state", "reason"], tablefmt="simple"))
    return "\n\n".join(parts)


def describe_attention(name: str) -> str:
    """All that the card of an attention says, with its options and what their defaults are at a few lengths.

    Raises:
        UnknownNameError: no attention has this name.
    """
    registry.load_plugins()
    card = registry.card(name)
    facts = [["paper", card.paper], ["equation", card.equation], ["implementations", ", ".join(card.implementations)]]
    facts += [[claim, says] for claim, says in zip(_CLAIMS, _claims(card), strict=True)] + [["defined in", card.origin]]
    at = [registry.attention_options(card, Geometry(8, 64, n, n), {}) for n in _LENGTHS]
    rules = length_rules(card.options)
    options = [
        [f.name, rules[f.name].words if f.name in rules else _plain(f.default), *(_plain(getattr(one, f.name)) for one in at)]
        for f in fields(card.options)
    ]
    parts = [f"{card.name}: {card.title}", tabulate(facts, tablefmt="plain", maxcolwidths=[None, 100])]
    parts += [textwrap.indent(inspect.getdoc(card.build) or "", "  ")]
    if options:
        head = ["option", "unless given", *(f"at {n:,} tokens" for n in _LENGTHS)]
        parts += [tabulate(options, head, tablefmt="simple", disable_numparse=True)]
    return "\n\n".join(parts)


def describe_task(name: str) -> str:
    """All that the card of a task says, with its options and levels.

    Raises:
        UnknownNameError: no task has this name.
    """
    registry.load_plugins()
    card = registry.task_card(name)
    facts = [["version", card.version], ["source", card.source], ["licence", card.licence], ["metric", card.metric]]
    facts += [["inputs", inputs_in_words(card)], ["data", " and ".join(d.name for d in card.datasets) or "generated"]]
    facts += [["defined in", card.origin]]
    options = [[f.name, _plain(getattr(card.options(), f.name))] for f in fields(card.options)]
    levels = [
        [name, _pairs(level.options), _pairs(level.model), _pairs(level.budget), level.differs]
        for name, level in card.levels.items()
    ]
    widths = [None, 28, 22, 28, 44]
    parts = [f"{card.name}: {card.title}", card.summary, tabulate(facts, tablefmt="plain", maxcolwidths=[None, 100])]
    parts += [textwrap.indent(inspect.getdoc(card.build) or "", "  ")]
    parts += [tabulate(options, ["option", "unless given"], tablefmt="simple", disable_numparse=True)]
    head = ["level", "options", "network", "budget", "differs from the published set-up"]
    parts += [tabulate(levels, head, tablefmt="simple", maxcolwidths=widths)]
    return "\n\n".join(parts)


def attention_table() -> str:
    """Every attention with its claims and growth, for a page."""
    rows = [[f"`{card.name}`", card.title, *_claims(card), card.paper] for card in _cards()]
    return tabulate(rows, ["attention", "what it is", *_CLAIMS, "paper"], tablefmt="github")


def task_table() -> str:
    """Every task with its data, length and classes, for a page."""
    registry.load_plugins()
    rows = []
    for card in map(registry.task_card, registry.task_names()):
        built = card.build(card.options())
        rows.append([f"`{card.name}`", card.summary, built.data_title, inputs_in_words(card), card.metric, card.licence])
    return tabulate(rows, ["task", "what is asked", "data", "inputs unless dialled", "metric", "licence"], tablefmt="github")


def inputs_in_words(card: TaskCard) -> str:
    """Form, length and classes under the default options."""
    spec = card.build(card.options()).spec
    if isinstance(spec.inputs, Patches):
        form = f"{spec.inputs.height} x {spec.inputs.width} x {spec.inputs.channels} in {spec.length} patches"
    else:
        form = f"2 x {spec.length} tokens" if isinstance(spec.inputs, Pairs) else f"{spec.length} tokens"
    asked = "by position" if spec.labels == "position" else "an example"
    return f"{form}, {spec.classes} classes {asked}"


def _pairs(given: Any) -> str:
    return ", ".join(f"{key}={_plain(value)}" for key, value in given.items())


def _plain(value: Any) -> str:
    return str(getattr(value, "value", value))


def _attentions() -> str:
    rows = [[card.name, *_claims(card), ", ".join(card.implementations), card.paper] for card in _cards()]
    return tabulate(rows, ["attention", *_CLAIMS, "implementations", "paper"], tablefmt="simple")


def _cards() -> list[AttentionCard]:
    return [registry.card(name) for name in registry.attentions()]


def _claims(card: AttentionCard) -> list[str]:
    can = card.can
    flags = [_MARK[flag] for flag in (can.causal, can.stepwise, can.key_padding, can.cross)]
    return [*flags, "shorter" if can.shorter else _MARK[can.any_length], str(card.time), str(card.memory)]


def _tasks() -> str:
    rows = [
        [card.name, card.version, ", ".join(card.levels), card.licence, card.summary]
        for card in map(registry.task_card, registry.task_names())
    ]
    return tabulate(
        rows, ["task", "version", "levels", "licence", "summary"], tablefmt="simple", maxcolwidths=[None, None, None, 20, 70]
    )
