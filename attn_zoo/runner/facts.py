"""Facts from the cards of mechanisms and tasks. Each record has a copy of these facts, so tables can be made without the
mechanisms and tasks."""

from __future__ import annotations

from typing import Any

from attn_zoo.contract import AttentionCard, TaskCard, TaskSpec, length_rules
from attn_zoo.registry import card
from attn_zoo.rows import RowName
from attn_zoo.runner.metrics import measure_named


def attention_facts(attention: str) -> dict[str, Any]:
    """Return the facts on the card of a mechanism (what was registered with it, such as its title and paper).

    A hybrid (layers with different mechanisms) combines the facts of all its mechanisms. Its entry ``control`` is True if all of
    these mechanisms are controls.
    """
    row = RowName(attention)
    parts = [_card_facts(card(name)) for name in dict.fromkeys(row.turn)]
    if not row.is_hybrid:
        return parts[0]
    told = {key: "; ".join(f"{part['name']}: {part[key]}" for part in parts) for key in ("paper", "equation", "time", "memory")}
    rules = {f"{part['name']}.{name}": words for part in parts for name, words in part["length_rules"].items()}
    return {
        "name": attention,
        "title": f"Hybrid of {', '.join(part['title'] for part in parts)}",
        **told,
        "control": all(part["control"] for part in parts),
        "origin": "; ".join(part["origin"] for part in parts),
        "length_rules": rules,
    }


def _card_facts(entry: AttentionCard) -> dict[str, Any]:
    return {
        "name": entry.name,
        "title": entry.title,
        "paper": entry.paper,
        "equation": entry.equation,
        "time": str(entry.time),
        "memory": str(entry.memory),
        "control": entry.control,
        "origin": entry.origin,
        "length_rules": {name: rule.words for name, rule in length_rules(entry.options).items()},
    }


def task_facts(entry: TaskCard, spec: TaskSpec | None, data_title: str | None, criterion: str | None = None) -> dict[str, Any]:
    """Return the facts on the card of a task and, if the task was built, the facts of its spec and data.

    Args:
        spec: spec of the built task; None if it was not built.
        criterion: name of the examples whose scores end the training; None for a fixed budget.
    """
    names = ("name", "title", "version", "summary", "source", "licence", "metric")
    facts: dict[str, Any] = {name: getattr(entry, name) for name in names}
    facts["higher_is_better"] = measure_named(entry.metric).higher_is_better
    facts["data"] = data_title
    facts |= {name: getattr(spec, name, None) for name in ("length", "classes", "causal")}  # None before the task is built
    if spec is not None and spec.problem != "classification":
        facts["problem"] = spec.problem
    if entry.distant is not None:
        facts["distant"] = entry.distant
    return facts if criterion is None else {**facts, "criterion": criterion}
