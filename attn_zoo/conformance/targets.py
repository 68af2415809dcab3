"""Targets of the kit: a registered name, ``package.module:Class``, ``file.py`` or ``file.py:Class``."""

from __future__ import annotations

import importlib
import sys
import traceback
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import ModuleType

import torch

from attn_zoo import registry
from attn_zoo.conformance.attention_suite import attention_checks, resolve
from attn_zoo.conformance.harness import Case
from attn_zoo.conformance.sizes import drawn_sizes
from attn_zoo.conformance.task_checks import task_checks
from attn_zoo.contract import AttentionCard, TaskCard, UnknownNameError

Card = AttentionCard | TaskCard


def entries(targets: Iterable[str | Card]) -> list[Card]:
    """Return the cards of the targets, each once, in the order of the targets.

    Raises:
        UnknownNameError: nothing has this name.
        ValueError: a module or file cannot be imported or holds no class with a card, or a plugin that might cannot be loaded.
        FileNotFoundError: there is no such file.
    """
    found = [card for target in targets for card in ([target] if isinstance(target, Card) else _named(target))]
    return list({card.origin: card for card in found}.values())


def cases_of(card: Card, device: torch.device | None = None) -> Iterator[Case]:
    """Iterate over every check of an attention, on ``device`` where it is given, or of a task, as callable cases."""
    return task_checks(card) if isinstance(card, TaskCard) else attention_checks(card, device)


def note_of(card: Card) -> str:
    """Sizes drawn for an attention; empty for a task."""
    return "" if isinstance(card, TaskCard) else str(drawn_sizes(card.name))


def _named(target: str) -> list[Card]:
    file, _, class_name = target.partition(":")
    if file.endswith(".py"):
        return _in_file(Path(file), class_name)
    if ":" in target:
        return [resolve(target)]
    failures = registry.load_plugins()
    names = {*registry.attentions(), *registry.task_names()}
    if target in names:
        return [resolve(target)]
    if Path(target).is_dir() and "/" in target:
        raise ValueError(f"{target} is a folder; check takes the name that it registers, package.module:Class, or FILE.py")
    unknown = UnknownNameError("attention or task", target, names)
    if failures:
        reasons = "; ".join(f"{name} ({reason})" for name, reason in failures.items())
        raise ValueError(f"{unknown}. Plugins that could not be loaded: {reasons}") from unknown
    raise unknown


def _in_file(path: Path, class_name: str) -> list[Card]:
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}")
    registry.load_plugins()  # a plugin may contain this file, which must not be registered twice
    module = _module_of(path.resolve())
    if class_name:
        return [resolve(f"{module.__name__}:{class_name}")]
    cards: list[Card] = [registry.card(name) for name in registry.attentions()]
    cards += [registry.task_card(name) for name in registry.task_names()]
    own = [card for card in cards if card.build.__module__ == module.__name__]
    if not own:
        raise ValueError(f"{path} registers nothing; decorate a class with @register_attention(...) or @register_task(...)")
    return own


def _module_of(path: Path) -> ModuleType:
    """Import a file as a module under its full name, unless it is loaded already."""
    for module in list(sys.modules.values()):
        if _file_of(module) == path:
            return module
    root = path.parent
    while (root / "__init__.py").exists():
        root = root.parent
    name = ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__")
    # As Python does for the folder of a script; it stays, since another process that rebuilds tasks gets the same path.
    sys.path.insert(0, str(root))
    try:
        module = importlib.import_module(name)
    except Exception as error:  # a file outside the zoo may raise anything
        frame = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{Path(frame.filename).name}:{frame.lineno}"
        raise ValueError(f"{path} cannot be imported as {name}: {type(error).__name__}: {error} ({where})") from error
    if _file_of(module) != path:
        raise ValueError(f"{path} would be module {name!r}, which is another file here ({module.__file__}); rename it")
    return module


def _file_of(module: ModuleType) -> Path | None:
    file = getattr(module, "__file__", None)
    return Path(file).resolve() if isinstance(file, str) else None
