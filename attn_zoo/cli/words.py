"""From the KEY=VALUE words of a command line, in Hydra's grammar, to the specification of a run. A value may be a mechanism with
options, such as ``linformer[projected_length=32]``."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import fields, replace
from typing import Any, NamedTuple

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import ChoiceSweep, Glob, IntervalSweep, QuotedString, RangeSweep, Sweep
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf

from attn_zoo import registry
from attn_zoo.cli.config import COMPOSED, RunConfig, Settings
from attn_zoo.cli.job import Job
from attn_zoo.contract import Level, UnknownNameError
from attn_zoo.contract.options import typed_options
from attn_zoo.leaderboard.statistics import SHARES
from attn_zoo.records import Budget, ModelSpec, RunSpec
from attn_zoo.records.criterion import criterion_budget
from attn_zoo.rows import RowName, read_rows, split

_NAMES = ("attention", "task", *COMPOSED)
"""Keys of a run whose values are names or, for ``attention``, mechanisms with options."""

ROWS = ("attention", "mechanisms")
"""Keys whose values are mechanisms with options. The second is a key of ``benchmarks/peers.py``."""
MULTIRUN = ("-m", "--multirun")
FLAGS = (*MULTIRUN, "-h", "--help", "--plan")
"""Options without a value, in commands that parse KEY=VALUE words."""
_PARTS = ("data", "model", "budget", "dials", "tuning", "checkpoint", "weights")
"""Keys of a run that have keys below them, such as ``model.dim`` below ``model``."""
_TEXTS = ("records", "data.root", "weights.folder", "launcher.folder")
"""Keys of a run whose values are text, also if they look like numbers: ``records=3.10`` is not the folder ``3.1``."""
_OPTIONS = ("attention.", "task.", "dials.")
"""Beginnings of the keys of options. Their values are converted to declared types later, as if they stood in brackets."""


class Word(NamedTuple):
    """One word of the command line, of the form KEY=VALUE."""

    key: str
    text: str
    """Value as written."""
    value: Any
    """Value as plain data or, if the word has several values, as a sweep object of Hydra. A value of a key in ``ROWS`` is a row."""
    added: bool = False
    """True if the key was written with ``+`` before it."""

    @property
    def swept(self) -> bool:
        """True if the word has several values, such as ``seed=0,1,2``."""
        return isinstance(self.value, Sweep)

    def values(self) -> list[Any]:
        """Return the values of the word as a list. A range does not contain its end: ``range(1,4)`` gives 1, 2 and 3.

        Raises:
            ValueError: the values are an interval, which cannot be listed, or a range without values.
        """
        if not isinstance(self.value, Sweep):
            return [self.value]
        if not isinstance(self.value, ChoiceSweep | RangeSweep):
            said = "has infinitely many values, so no grid can try them all. Use choice(...), range(...) or tuning.sampler=tpe"
            raise ValueError(f"{self.key}={self.text} {said}")
        if isinstance(self.value, RangeSweep) and not self.value.step:
            raise ValueError(f"the step of a range must not be 0; got {self.key}={self.text}. Give another step")
        if not (found := list(map(_plain, self.value.list if isinstance(self.value, ChoiceSweep) else self.value.range()))):
            raise ValueError(f"a range must have a value, but {self.key}={self.text} has none. range(1,4) gives 1, 2 and 3")
        return found

    def as_text(self) -> Word:
        """Return the word with its value as written if the value is a number or a truth value, and otherwise unchanged."""
        return self._replace(value=self.text.strip()) if isinstance(self.value, int | float) else self

    def ends(self) -> list[Any]:
        """Return the two ends of an interval, or all values of another word.

        Raises:
            ValueError: nothing can be drawn from the interval, or the values cannot be listed (see ``values``).
        """
        if not isinstance(self.value, IntervalSweep):
            return self.values()
        ends: list[Any] = [self.value.start, self.value.end]
        start, end = ends
        if start > end:
            raise ValueError(f"the first end of an interval must not be above the second; got {self.key}={self.text}. Swap them")
        if "log" in self.value.tags and start <= 0:
            raise ValueError(
                f"an interval with a logarithmic scale must begin above 0; got {self.key}={self.text}. Leave out tag(log,...), or "
                "begin above 0"
            )
        return ends


def _plain(value: Any) -> Any:
    """Return a value without Hydra's quotes."""
    if isinstance(value, list):
        return list(map(_plain, value))
    if isinstance(value, dict):
        return {_plain(key): _plain(each) for key, each in value.items()}
    return value.text if isinstance(value, QuotedString) else value


def as_keys(words: Sequence[str]) -> list[str]:
    """Return the words in the form KEY=VALUE. Options are converted: both ``--records runs`` and ``--records=runs`` become
    ``records=runs``.

    Raises:
        ValueError: an option has no value.
    """
    found, left = list[str](), iter(words)
    for word in left:
        name, equals, value = word.removeprefix("--").partition("=")
        if not word.startswith("--") or word in FLAGS:
            found.append(word)
            continue
        value = value if equals else next(left, "--")
        if value.startswith("--"):
            raise ValueError(f"{word} must have a value. Write {name}=VALUE")
        found.append(f"{name.replace('-', '_')}={value}")
    return found


def read_word(word: str) -> Word:
    """Return the key and the value of a word. The value of a key in ``ROWS`` is a row, or a sweep or list of rows.

    Raises:
        ValueError: the word is not of the form KEY=VALUE, or its value is not a valid mechanism with options.
    """
    key, equals, text = word.partition("=")
    if equals and (name := key.lstrip("+")) in ROWS:
        return Word(name, text, _rows(text), key != name)
    try:
        read = OverridesParser.create().parse_override(word)
    except HydraException as error:
        where = str(error).splitlines()[0].partition(" expecting ")[0]
        raise ValueError(
            f"{word!a} must be of the form KEY=VALUE, but cannot be read ({where!a}). Put values with special characters in quotes"
        ) from error
    if read.is_delete():
        raise ValueError(f"{word!a} must not remove a setting. Give the setting another value")
    value = read.value()
    if read.package is not None or isinstance(value, Glob):
        raise ValueError(f"{word!a} must be of the form KEY=VALUE, without @ or *. Write every value: KEY=a,b")
    name, added = read.key_or_group.replace("/", "."), read.is_add() or read.is_force_add()
    found = Word(name, read.get_value_string(), value, added)
    return found.as_text() if name in _TEXTS or name.startswith(_OPTIONS) else found


def read_run_words(words: Iterable[str], further: Collection[str] = ()) -> list[Word]:
    """Return the keys and values of the words of ``attn-zoo run``.

    Args:
        further: keys of the command in addition to those of a run.

    Raises:
        UnknownNameError: a run has no such setting.
        ValueError: a word is not of the form KEY=VALUE, or the value of a key such as ``task`` is not a name.
    """
    return [_checked(read_word(word), word, further) for word in words]


def _checked(word: Word, written: str, further: Collection[str]) -> Word:
    known = [*(f.name for f in fields(RunConfig)), *COMPOSED, *further]
    if (top := word.key.partition(".")[0]) not in known:
        raise UnknownNameError("setting of a run", top, known)
    if word.key in _PARTS and not isinstance(word.value, dict):
        raise ValueError(
            f"{word.key} is a group of settings, so one of its keys must be named; got {written!a}. Write {word.key}.KEY=VALUE"
        )
    names = word.value.list if isinstance(word.value, ChoiceSweep) else [word.value]
    if word.key in _NAMES and not all(isinstance(name, RowName | str | QuotedString) for name in names):
        raise ValueError(
            f"{word.key}= must be a name or, with -m or attn-zoo tune, several names separated by commas, without brackets; "
            f"got {written!a}"
        )
    return word


def unfolded(words: Iterable[Word]) -> list[Word]:
    """Return one word per key. If several words have the same key, the last word counts. A word like
    ``attention=linformer[projected_length=32]`` is split into one word for the name of the mechanism and one per option. The words
    with names of the mechanism and the task come first.

    Raises:
        ValueError: an option or the implementation is given twice, with the mechanism and as a key.
    """
    last = {word.key: word for word in words}
    names = [word._replace(key=f"{word.key}.name") for key in ("attention", "task") if (word := last.pop(key, None))]
    if names and names[0].key == "attention.name":
        row = names[0].value
        said = {f"attention.{name}": value for name, value in row.options.items()}
        said |= {} if row.implementation == "auto" else {"implementation": row.implementation}
        if twice := [key for key in said if key in last]:
            raise ValueError(f"{twice[0]} must be given once; got it in brackets ({row}) and as a key. Leave one of them out")
        names[0] = names[0]._replace(value=row.attention)
        names += [Word(key, str(value), value) for key, value in said.items()]
    return [*names, *last.values()]


def _rows(text: str) -> Any:
    """Return the row that the value of a key in ``ROWS`` names, a sweep if it names several, or a list if it is in brackets.

    Raises:
        ValueError: a part of the text is not a row.
    """
    listed, chosen = text.startswith("[") and text.endswith("]"), text.startswith("choice(") and text.endswith(")")
    parts = split(text[1:-1] if listed else text.removeprefix("choice(")[:-1] if chosen else text)
    rows: list[Any] = [row for part in parts or [""] for row in read_rows(part[1:-1] if part[:1] in ("'", '"') else part)]
    return rows if listed else rows[0] if len(rows) == 1 else ChoiceSweep(list=rows)


def changed(config: DictConfig, words: Iterable[Word]) -> DictConfig:
    """Return a copy of the config with the values that the KEY=VALUE words state. A word like
    ``attention=linformer[projected_length=32]`` must first be split by ``unfolded`` into one word for the name and one per option.

    Raises:
        OmegaConfBaseException: there is no such key, or a value has the wrong type.
    """
    made = deepcopy(config)
    for word in words:
        if word.key not in COMPOSED:
            OmegaConf.update(made, word.key, word.value, force_add=word.added)
    return made


def settings_from(config: DictConfig) -> Settings:
    """Return the settings of a composed config that belong to the whole command, such as the folder of records, and not to a
    run."""
    values = ((f.name, config[f.name]) for f in fields(Settings))
    given: dict[str, Any] = {name: OmegaConf.to_object(value) if OmegaConf.is_config(value) else value for name, value in values}
    return Settings(**given)


def job_from(config: DictConfig) -> Job:
    """Return the run that a composed config describes, with all values resolved. If its task has an option ``root`` without a
    value, it gets the value of ``data.root``.

    Raises:
        UnknownNameError: a preset or name does not exist.
        ValueError: an option, size or budget has the wrong type or breaks its rule.
    """
    task = _given(config.task)
    row, entry = _row_from(config), registry.task_card(task.pop("name"))
    level = entry.level(config.level)
    root = {"root": config.data.root} if "root" in entry.locations and config.data.root else {}
    locations = {**root, **{name: task[name] for name in entry.locations if name in task}}
    spec = RunSpec(
        attention=row.attention,
        task=entry.name,
        options=row.options,
        task_options=typed_options(f"task {entry.name}", entry.options, {**level.options, **task}),
        implementation=config.implementation,
        model=ModelSpec(**typed_options("model", ModelSpec, {**level.model, **_given(config.model)})),
        budget=_budget_from(level, entry.metric, _given(config.budget)),
        seed=config.seed,
        device=config.device,
        precision=config.precision,
    )
    return Job(spec, locations).resolved()


def _budget_from(level: Level, metric: str, given: Mapping[str, Any]) -> Budget:
    """Return the budget of a preset with the given fields. For training until a criterion, the maximum number of steps and the
    interval of validation follow from the preset's steps."""
    fields = {**level.budget, **given}
    if given.get("until") == "criterion":
        fixed = {"steps": Budget().steps, **level.budget}
        fields = criterion_budget(fixed, given, level.ceiling if metric in SHARES else 0.0)
    return Budget(**typed_options("budget", Budget, fields))


def _row_from(config: DictConfig) -> RowName:
    """Return the row of a composed config, with options of the types that its mechanisms declare. ``attention.OPTION`` takes
    precedence over ``dials``.

    Raises:
        UnknownNameError: no such attention or option.
        ValueError: an option cannot be converted.
    """
    given, dials = _given(config.attention), _given(config.dials)
    for name, options in dials.items():
        known = [f.name for f in fields(registry.card(name).options)]
        if not isinstance(options, dict):
            raise ValueError(
                f"dials.{name} is a group of options, so one of them must be named; got {options!r}. Write "
                f"dials.{name}.OPTION=VALUE"
            )
        for option in options:
            if option not in known:
                raise UnknownNameError(f"option under 'dials.{name}'", option, known)
    name = given.pop("name")
    own = {f"{key}.{option}": each for key, value in given.items() if isinstance(value, dict) for option, each in value.items()}
    row = RowName(name, own if "+" in name else given, config.implementation)
    if "+" in name and (single := [key for key, value in given.items() if not isinstance(value, dict)]):
        raise UnknownNameError(f"option of the hybrid {name}", single[0], [f"{part}.OPTION" for part in dict.fromkeys(row.turn)])

    def filled(part: RowName) -> RowName:
        options = {**dials.get(part.attention, {}), **part.options}
        kind = registry.card(part.attention).options
        return replace(part, options=typed_options(f"attention {part.attention}", kind, options))

    return row.changed(filled)


def _given(node: Any) -> dict[str, Any]:
    plain = OmegaConf.to_container(node, resolve=True)
    assert isinstance(plain, dict)
    return _without_none(plain)


def _without_none(plain: Mapping[Any, Any]) -> dict[str, Any]:
    there = {str(key): value for key, value in plain.items() if value is not None}
    return {key: _without_none(value) if isinstance(value, dict) else value for key, value in there.items()}
