"""Targets of the command ``attn-zoo check``. A target is a registered name, a hybrid, ``package.module:Class``, a plugin's file or
folder, or ``file.py:Class``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import torch

from attn_zoo import plugin_files, registry
from attn_zoo.conformance.attention_suite import attention_checks, resolve
from attn_zoo.conformance.harness import Case
from attn_zoo.conformance.sizes import drawn_sizes
from attn_zoo.conformance.task_checks import task_checks
from attn_zoo.contract import AttentionCard, TaskCard, UnknownNameError
from attn_zoo.rows import RowName

Card = AttentionCard | TaskCard


def entries(targets: Iterable[str | Card]) -> list[Card]:
    """Return the cards (registered descriptions) of the mechanisms and tasks that the targets name, in this order and without
    repetition. A hybrid such as ``local+linear`` names all of its mechanisms.

    Raises:
        UnknownNameError: a target has an unknown name.
        ValueError: a module or file cannot be imported or holds no card. A target with an unknown name also raises this error if a
            plugin, which may define the name, failed to load.
        FileNotFoundError: there is no such file.
    """
    found = [card for target in targets for card in ([target] if isinstance(target, Card) else _named(target))]
    return list({card.origin: card for card in found}.values())


def cases_of(card: Card, device: torch.device | None = None) -> Iterator[Case]:
    """Yield every conformance check of a mechanism or a task as a case that can be called. If ``device`` is given, a mechanism is
    checked on it."""
    return task_checks(card) if isinstance(card, TaskCard) else attention_checks(card, device)


def note_of(card: Card) -> str:
    """Return a sentence about the sizes at which a mechanism is checked, or an empty text for a task."""
    return "" if isinstance(card, TaskCard) else str(drawn_sizes(card.name))


def _named(target: str) -> list[Card]:
    file, _, class_name = target.partition(":")
    if file.endswith(".py") or ("/" in target and Path(target).is_dir()):
        return _in_file(Path(file), class_name)
    if ":" in target:
        return [resolve(target)]
    if "+" in target:
        return [resolve(name) for name in dict.fromkeys(RowName(target).turn)]
    failures = registry.load_plugins()
    names = {*registry.attentions(), *registry.task_names()}
    if target in names:
        return [resolve(target)]
    unknown = UnknownNameError("attention or task", target, names, registry.OWN)
    if failures:
        reasons = "; ".join(f"{name} ({reason})" for name, reason in failures.items())
        raise ValueError(f"{unknown}. Plugins that could not be loaded: {reasons}") from unknown
    raise unknown


def _in_file(path: Path, class_name: str) -> list[Card]:
    cards = registry.load_plugin(path)
    if class_name:
        return [resolve(f"{module.__name__}:{class_name}") for module in plugin_files.load(path)]
    return cards
