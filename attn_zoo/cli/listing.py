"""``attn-zoo list``: the cards as tables."""

from __future__ import annotations

from tabulate import tabulate

from attn_zoo import registry

_MARK = {True: "yes", False: "-"}


def listing() -> str:
    """Attentions, tasks and failed plugins."""
    failures = registry.load_plugins()
    parts = [_attentions(), _tasks()]
    if failures:
        rows = [[name, "failed", reason] for name, reason in failures.items()]
        parts.append(tabulate(rows, ["plugin", "state", "reason"], tablefmt="simple"))
    return "\n\n".join(parts)


def _attentions() -> str:
    rows = []
    for card in map(registry.card, registry.attentions()):
        can = card.can
        rows.append(
            [
                card.name,
                *(_MARK[flag] for flag in (can.causal, can.key_padding, can.cross)),
                "shorter" if can.shorter else _MARK[can.any_length],
                card.time,
                card.memory,
                ", ".join(card.implementations),
                card.paper,
            ]
        )
    head = ["attention", "causal", "padding", "cross", "any length", "time", "memory", "implementations", "paper"]
    return tabulate(rows, head, tablefmt="simple")


def _tasks() -> str:
    rows = [
        [card.name, card.version, ", ".join(card.levels), card.licence, card.summary]
        for card in map(registry.task_card, registry.task_names())
    ]
    return tabulate(
        rows, ["task", "version", "levels", "licence", "summary"], tablefmt="simple", maxcolwidths=[None, None, None, 20, 70]
    )
