"""Registry: functions that register, find and build the mechanisms and tasks that are built in or come from plugins."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Mapping
from dataclasses import MISSING, fields, is_dataclass
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, TypeVar

import torch

from attn_zoo import plugin_files
from attn_zoo.checks import check_name, check_printed, check_text, check_types, check_whole
from attn_zoo.contract import (
    IMPLEMENTATIONS,
    Attention,
    AttentionCard,
    Capabilities,
    Geometry,
    Growth,
    Task,
    TaskCard,
    UnknownNameError,
    check_bounds,
    check_dtype,
    choose_implementation,
    length_rules,
    plain_options,
)
from attn_zoo.escapes import terminal
from attn_zoo.plugin_imports import apart, imported, in_words, tell
from attn_zoo.process_state import Part, add_part, sentence

A = TypeVar("A", bound=type[Attention])
T = TypeVar("T", bound=type[Task])

ENTRY_POINT_GROUP = "attn_zoo.plugins"

RESERVED = frozenset(
    ["name", "attention", "geometry", "implementation", "device", "dtype", "dim", "heads", "length"]
    + ["context_length", "context_dim", "causal", "fused", "bias", "output_dropout", "order", "short_convolution", "output_gate"]
    + ["key_value_heads", "latent_dim"]
)
"""Names that no option may have, because ``build_attention``, ``MultiHeadAttention`` or configs use them for other arguments."""

_ATTENTIONS: dict[str, AttentionCard] = {}
_TASKS: dict[str, TaskCard] = {}
OWN = "One of your own must be installed, imported, or given with --plugin PATH."
"""Advice for a name that is not registered."""

_LOADED: set[tuple[str, str]] = set()
_FAILURES: dict[str, str] = {}
_CHANGES: dict[str, str] = {}
"""Sentences on the settings of the process that a plugin changed, by the origin of its card or by its options class."""
_SEARCHED: list[str] = []
"""``sys.path`` at the last search for plugins. A search takes tens of milliseconds, and cards are looked up thousands of times."""


def _put_entries(before: tuple[dict[str, AttentionCard], dict[str, TaskCard]]) -> None:
    _ATTENTIONS.update(before[0])
    _TASKS.update(before[1])


def _same_entries(before: tuple[dict[str, Any], ...], now: tuple[dict[str, Any], ...]) -> bool:
    return all(new.get(name) is card for old, new in zip(before, now, strict=True) for name, card in old.items())


add_part(Part("registered entries", lambda: (dict(_ATTENTIONS), dict(_TASKS)), _put_entries, _same_entries))


def register_attention(name: str, *, time: str, memory: str, **facts: Any) -> Callable[[A], A]:
    """Return a class decorator that registers a mechanism.

    Args:
        name: name that users write in ``attention=name``.
        time, memory: growth of time and memory as printed in big-O notation, such as ``n k d`` (see ``Growth``).
        **facts: the other fields of ``AttentionCard``.

    Raises:
        ValueError: the name is in use or not an identifier. It is also raised if a field of the card is missing, unknown or of the
            wrong type, if an implementation is unknown, or if a method that the card declares is missing.
    """

    def decorate(cls: A) -> A:
        owner = f"attention {name!r}"
        check_name("an attention", name)
        _check_facts(owner, AttentionCard, cls, Attention, {"time": time, "memory": memory, **facts})
        if not isinstance(facts["can"], Capabilities):
            raise ValueError(f"{owner}: the field can must be a Capabilities object; got {facts['can']!r}")
        if not callable(facts["cost"]):
            raise ValueError(f"{owner}: the field cost must be a function of the geometry and options; got {facts['cost']!r}")
        card = AttentionCard(name=name, build=cls, time=Growth(time), memory=Growth(memory), **facts)
        if extra := set(card.reads) - {"query", "key", "value"}:
            raise ValueError(
                f"{owner}: the field reads may hold only query, key and value; got {', '.join(sorted(map(repr, extra)))}"
            )
        for field in ("title", "paper", "equation"):
            check_printed(owner, field, getattr(card, field))
        check_whole(f"{owner}: version", card.version)
        for implementation in card.implementations:
            if implementation not in IMPLEMENTATIONS:
                raise ValueError(
                    f"{owner}: each implementation must be one of {', '.join(IMPLEMENTATIONS)}; got {implementation!r}"
                )
            method = "attend" if implementation == "eager" else f"attend_{implementation}"
            if not callable(getattr(cls, method, None)):
                raise ValueError(
                    f"{owner} lists the implementation {implementation!r}, so {card.origin} must have a method {method}. Define "
                    "this method"
                )
        for method in ("initial_state", "advance") if card.can.stepwise else ():
            if getattr(cls, method) is getattr(Attention, method):
                raise ValueError(f"{owner} declares stepwise, so {card.origin} must have a method {method}. Define this method")
        _refuse_reserved(card.origin, card.options, RESERVED)
        _refuse_second(_ATTENTIONS, "attention", name, card.origin)
        cls.card = _ATTENTIONS[name] = card
        return cls

    return decorate


def register_task(name: str, **facts: Any) -> Callable[[T], T]:
    """Return a class decorator that registers a task.

    Args:
        name: name that users write in ``task=name``.
        **facts: the other fields of ``TaskCard``.

    Raises:
        ValueError: the name is in use or not an identifier, or a field of the card is missing, unknown or of the wrong type.
    """

    def decorate(cls: T) -> T:
        check_name("a task", name)
        _check_facts(f"task {name!r}", TaskCard, cls, Task, facts)
        card = TaskCard(name=name, build=cls, **facts)
        for field in ("title", "version", "summary", "source", "licence", "metric"):
            check_printed(f"task {name!r}", field, getattr(card, field))
        _refuse_reserved(card.origin, card.options, ("name",))
        _refuse_second(_TASKS, "task", name, card.origin)
        cls.card = _TASKS[name] = card
        return cls

    return decorate


def _check_facts(owner: str, card: type, cls: object, base: type, facts: Mapping[str, Any]) -> None:
    """Check that all required fields of a card are given, known and of the right type. The error names the field."""
    if not (isinstance(cls, type) and issubclass(cls, base)):
        raise ValueError(f"{owner} must decorate a subclass of {base.__name__}; got {cls!r}")
    known = {field.name: field for field in fields(card) if field.name not in ("name", "build")}
    if unknown := sorted(set(facts) - set(known)):
        raise ValueError(f"{owner}: the fields of a card must be among {', '.join(known)}; got {unknown[0]!r}")
    needed = [name for name, field in known.items() if field.default is MISSING and field.default_factory is MISSING]
    if missing := [name for name in needed if name not in facts]:
        raise ValueError(f"{owner}: the card must have {', '.join(missing)}, which {'is' if len(missing) == 1 else 'are'} missing")
    for name in ("time", "memory"):
        check_text(f"{owner}: {name}", facts.get(name, ""))
    if not is_dataclass(facts["options"]) or not isinstance(facts["options"], type):
        raise ValueError(f"{owner}: options must be a dataclass; got {facts['options']!r}")
    if not isinstance(facts.get("variants", {}), Mapping):
        raise ValueError(f"{owner}: variants must map names of variants to options; got {facts['variants']!r}")


def attentions() -> tuple[str, ...]:
    """Return the names of all mechanisms in alphabetical order, including those of plugins."""
    _look_for_plugins()
    return tuple(sorted(_ATTENTIONS))


def not_causal() -> tuple[str, ...]:
    """Return the names of the mechanisms without a causal form, to which causal tasks are not applicable."""
    return tuple(name for name in attentions() if not card(name).can.causal)


def task_names() -> tuple[str, ...]:
    """Return the names of all tasks in alphabetical order, including those of plugins."""
    _look_for_plugins()
    return tuple(sorted(_TASKS))


def card(name: str) -> AttentionCard:
    """Return the card of the mechanism called ``name``: its title, paper, capabilities, options and cost formulas.

    Raises:
        UnknownNameError: no mechanism has this name; the message suggests the most similar one.
    """
    check_text("the name of an attention", name)
    _register_built_in()
    if name not in _ATTENTIONS:  # no plugin replaces a built-in attention, so that others alone are worth the time of imports
        _look_for_plugins()
    if name not in _ATTENTIONS:
        raise UnknownNameError("attention", name, _ATTENTIONS, OWN)
    return _ATTENTIONS[name]


def task_card(name: str) -> TaskCard:
    """Return the card of the task called ``name``: its title, source, metric, options and presets.

    Raises:
        UnknownNameError: no task has this name; the message suggests the most similar one.
    """
    _look_for_plugins()
    check_text("the name of a task", name)
    if name not in _TASKS:
        raise UnknownNameError("task", name, _TASKS, OWN)
    return _TASKS[name]


def build_attention(
    name: str,
    geometry: Geometry,
    *,
    implementation: str = "eager",
    device: torch.device | str = "cpu",
    dtype: torch.dtype | None = None,
    **options: Any,
) -> Attention:
    """Build the mechanism called ``name`` for the given geometry (number of heads, head width, lengths, direction).

    Args:
        implementation: a name on the card, or ``auto``. ``auto`` takes the first implementation in ``auto_order(device)`` that the
            card has, the options allow and ``device`` can run. It chooses again if the mechanism is called with tensors on another
            type of device. The attribute ``implementation`` of the result names the choice.
        device: device for which ``auto`` chooses. The mechanism itself is built on the current default device.
        dtype: dtype of the matrix products (that of the inputs or of autocast), for which ``auto`` chooses; None is torch's default
            dtype.
        **options: fields of ``card(name).options``. Fields that are not given take their defaults, which may depend on the length.

    Raises:
        UnknownNameError: the mechanism, an option or the implementation is unknown.
        ValueError: an option breaks its rule, or ``dtype`` is not a dtype of floating-point numbers.
        UnsupportedError: the card does not declare a capability that the geometry needs.
    """
    entry = card(name)
    if not isinstance(geometry, Geometry):
        raise ValueError(f"geometry must be a Geometry(heads, head_dim, queries, keys); got {geometry!r}")
    check_text("implementation", implementation)
    if dtype is not None:
        check_dtype(dtype)
    chosen = attention_options(entry, geometry, options)
    if implementation != "auto":
        return entry.build(geometry, chosen, implementation)
    device = torch.device(device)
    built = entry.build(geometry, chosen, choose_implementation(entry, geometry, chosen, device, dtype))
    built.chosen_for = device.type
    return built


def build_task(name: str, **options: Any) -> Task:
    """Build the task called ``name`` with the given options.

    Raises:
        UnknownNameError: the task or an option is unknown.
        ValueError: an option breaks its rule.
    """
    entry = task_card(name)
    return entry.build(make_options(f"task {name}", entry.options, options))


def make_options(owner: str, kind: type, given: Mapping[str, Any]) -> Any:
    """Return an instance of the options dataclass ``kind`` with the given values.

    Args:
        owner: name of the mechanism or task, for the message.

    Raises:
        UnknownNameError: a given name is not a field of the dataclass.
        ValueError: an option has the wrong type or breaks its rule.
    """
    known = [f.name for f in fields(kind)]
    for name in given:
        if name not in known:
            raise UnknownNameError(f"option of {owner}", name, known)
    name = owner.partition(" ")[2] or owner
    check_types(name, kind, given)
    if kind.__module__.startswith("attn_zoo."):
        made = kind(**given)
    else:
        when = "when its options were made"
        with apart(owner, when) as changed:
            made = kind(**given)
        if changed:
            _CHANGES[f"{kind.__module__}:{kind.__qualname__}"] = sentence(owner, when, changed)
    check_bounds(name, made)
    return made


def attention_options(entry: AttentionCard, geometry: Geometry, given: Mapping[str, Any]) -> Any:
    """Return all options of the mechanism with the card ``entry``: the given values and, for other options, the defaults for this
    geometry.

    Raises:
        UnknownNameError: an option is unknown.
        ValueError: an option breaks its rule.
    """
    numbers = {name: rule.number(geometry) for name, rule in length_rules(entry.options).items()}
    return make_options(f"attention {entry.name}", entry.options, {**numbers, **given})


def stated_options(entry: AttentionCard, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return options of the mechanism with the card ``entry`` as plain data: the given values, and the defaults that do not depend
    on the sequence length.

    Raises:
        UnknownNameError: an option is unknown.
        ValueError: an option breaks its rule.
    """
    plain = plain_options(attention_options(entry, Geometry(1, 64, 4096, 4096), given))
    return {name: value for name, value in plain.items() if name in given or name not in length_rules(entry.options)}


def load_plugins() -> Mapping[str, str]:
    """Load all plugins once: packages with the entry-point group ``attn_zoo.plugins``, and the files of ``$ATTN_ZOO_PLUGIN``.

    A plugin that fails is left out. Functions that list names, or look up a name that is not built in, call this
    function themselves. Call it yourself only for packages that were installed while the process runs.

    Returns:
        Reasons why plugins failed, by entry-point name or file.
    """
    _register_built_in()
    _SEARCHED[:] = sys.path
    for point in entry_points(group=ENTRY_POINT_GROUP):
        if (point.name, point.value) not in _LOADED:
            _LOADED.add((point.name, point.value))
            try:
                _load(point.name, point.value, point.load)
                if point.module.partition(".")[0] != "attn_zoo":
                    plugin_files.note_installed(point.name, point.module)
            except BaseException as error:  # a plugin may raise anything; the failure is reported
                _leave_out(point.name, f"{point.value}: {in_words(error)}", error)
    for path in plugin_files.exported_plugins():
        if ("", str(path)) not in _LOADED:
            try:
                _load_file(path)
            except BaseException as error:
                plugin_files.unexport_plugin(path)
                _leave_out(str(path), str(error) if isinstance(error, ValueError | OSError) else in_words(error), error)
    return dict(_FAILURES)


def _leave_out(name: str, reason: str, error: BaseException) -> None:
    """Record and print why a plugin failed. If the user interrupted its import, raise the interrupt again."""
    if isinstance(error, KeyboardInterrupt):
        raise error
    _FAILURES[terminal(name)] = terminal(reason)
    tell(f"plugin {name} failed and is left out: {reason}")


def changes_outside_runs(entry: AttentionCard | TaskCard) -> list[str]:
    """Return sentences on settings of the process that a plugin changed outside any run: when it was imported, or when options
    of its mechanism or task were made. ``entry`` is the card of the mechanism or task.
    """
    places = entry.origin, f"{entry.options.__module__}:{entry.options.__qualname__}"
    return [_CHANGES[place] for place in places if place in _CHANGES]


def load_plugin(path: Path) -> list[AttentionCard | TaskCard]:
    """Load a plugin from a file or folder once. Its path is added to ``$ATTN_ZOO_PLUGIN``, so subprocesses load the plugin as well.

    Returns:
        The cards that the plugin registers.

    Raises:
        FileNotFoundError: the path does not exist.
        ValueError: the plugin cannot be imported, or registers nothing; the message names file and line.
    """
    load_plugins()  # an installed plugin may contain the file, which must not be registered twice
    _load_file(path)
    known: list[AttentionCard | TaskCard] = [*_ATTENTIONS.values(), *_TASKS.values()]
    cards = [card for card in known if _stands_in(path.resolve(), card)]
    if not cards:
        raise ValueError(
            f"{path} must register a mechanism or a task, but registers none. Decorate a class with @register_attention(...) "
            "or @register_task(...)"
        )
    plugin_files.export_plugin(path)
    return cards


def _stands_in(place: Path, card: AttentionCard | TaskCard) -> bool:
    file = plugin_files.file_of(sys.modules.get(card.build.__module__))
    return file is not None and file.is_relative_to(place)


def _load_file(path: Path) -> None:
    """Import a plugin. If the import fails, it registers nothing."""
    _LOADED.add(("", str(path.resolve())))
    _load(path.name, str(path.resolve()), lambda: plugin_files.load(path))


def _load(name: str, place: str, load: Callable[[], object]) -> None:
    """Import a plugin. If the import fails, it registers nothing."""
    registered: tuple[dict[str, Any], ...] = (_ATTENTIONS, _TASKS)
    before = [dict(entries) for entries in registered]
    try:
        changes = imported(name, place, load)
    except BaseException:
        for entries, old in zip(registered, before, strict=True):
            entries.clear()
            entries.update(old)
        raise
    if changes:
        added = [entries[name] for entries, old in zip(registered, before, strict=True) for name in entries.keys() - old.keys()]
        _CHANGES.update((card.origin, changes) for card in added)


def _register_built_in() -> None:
    import attn_zoo.attention  # noqa: F401  (registers the built-in mechanisms)


def _look_for_plugins() -> None:
    """Load plugins, unless they were already loaded for the current ``sys.path``."""
    if sys.path != _SEARCHED:
        load_plugins()


def _refuse_second(entries: Mapping[str, AttentionCard] | Mapping[str, TaskCard], kind: str, name: str, origin: str) -> None:
    if name in entries:
        raise ValueError(
            f"{kind} {name!r} must be registered once; got it from {entries[name].origin} and from {origin}. Choose another name"
        )


def _refuse_reserved(origin: str, options: type, reserved: Collection[str]) -> None:
    for f in fields(options):
        if f.name in reserved:
            raise ValueError(
                f"{origin}: an option cannot be called {f.name!r}, because attn-zoo uses this name for something else. Rename the "
                "option"
            )
