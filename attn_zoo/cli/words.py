"""KEY=VALUE words of all commands, in Hydra's grammar. A value may be a mechanism with options, such as
``linformer[projected_length=32]``."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import MISSING, fields
from typing import Any, NamedTuple

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import ChoiceSweep, Glob, QuotedString, RangeSweep, Sweep
from hydra.errors import HydraException

from attn_zoo.cli.config import RunConfig
from attn_zoo.contract import UnknownNameError
from attn_zoo.leaderboard.reproduce import hydra_value
from attn_zoo.rows import read_rows, split

_SIGNS = ":[+*"
"""Characters that do not occur in a name. At least one of them is needed to write a hybrid, or a mechanism with options or an
implementation."""
_NAMES = ("attention", "task", "experiment", "launch")
"""Keys of a run whose values are names or, for ``attention``, mechanisms with options."""

FLAGS = ("-m", "--multirun", "-h", "--help", "--plan")
"""Options without a value, in commands that parse KEY=VALUE words."""
_COLUMN = 20
"""Width in characters of the column of keys. The description of a longer key is in the line below the key."""
_WIDE = 80
"""Number of characters above which a list may be wrapped."""
_PARTS = ("data", "model", "budget", "dials", "tuning", "checkpoint", "weights")
"""Keys of a run that have keys below them, such as ``model.dim`` below ``model``."""


class Word(NamedTuple):
    """One word of the command line, of the form KEY=VALUE."""

    key: str
    text: str
    """Value as written."""
    value: Any
    """Value as plain data or, if the word has several values, as a sweep object of Hydra."""
    added: bool = False
    """True if the key was written with ``+`` before it."""

    @property
    def swept(self) -> bool:
        """True if the word has several values, such as ``seed=0,1,2``."""
        return isinstance(self.value, Sweep)

    def values(self) -> list[Any]:
        """Return the values of the word as a list. A range does not contain its end: ``range(1,4)`` gives 1, 2 and 3.

        Raises:
            ValueError: the values are an interval, which cannot be listed.
        """
        if not isinstance(self.value, Sweep):
            return [self.value]
        if not isinstance(self.value, ChoiceSweep | RangeSweep):
            said = "has infinitely many values, so no grid can try them all. Use choice(...), range(...) or tuning.sampler=tpe"
            raise ValueError(f"{self.key}={self.text} {said}")
        if isinstance(self.value, RangeSweep) and not self.value.step:
            raise ValueError(f"the step of a range must not be 0; got {self.key}={self.text}. Give another step")
        return list(map(_plain, self.value.list if isinstance(self.value, ChoiceSweep) else self.value.range()))


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
    """Return the key and the value of a word.

    Raises:
        ValueError: the word is not of the form KEY=VALUE, or its value is not a valid mechanism with options.
    """
    try:
        read = OverridesParser.create().parse_override(quote_rows(word))
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
    return Word(read.key_or_group.replace("/", "."), read.get_value_string(), value, read.is_add() or read.is_force_add())


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
    known = [*(f.name for f in fields(RunConfig)), "experiment", "launch", *further]
    if (top := word.key.partition(".")[0]) not in known:
        raise UnknownNameError("setting of a run", top, known)
    if word.key in _PARTS and not isinstance(word.value, dict):
        raise ValueError(
            f"{word.key} is a group of settings, so one of its keys must be named; got {written!a}. Write {word.key}.KEY=VALUE"
        )
    names = word.value.list if isinstance(word.value, ChoiceSweep) else [word.value]
    if word.key in _NAMES and not all(isinstance(name, str | QuotedString) for name in names):
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
        ValueError: a mechanism with options is written wrongly, or an option or the implementation is given twice, with the
            mechanism and as a key.
    """
    last = {word.key: word for word in words}
    names = [word._replace(key=f"{word.key}.name") for key in ("attention", "task") if (word := last.pop(key, None))]
    if names and names[0].key == "attention.name":
        (row,) = read_rows(names[0].value)
        said = {f"attention.{name}": value for name, value in row.options.items()}
        said |= {} if row.implementation == "auto" else {"implementation": row.implementation}
        if twice := [key for key in said if key in last]:
            raise ValueError(
                f"{twice[0]} must be given once; got it in brackets ({names[0].value}) and as a key. Leave one of them out"
            )
        names[0] = names[0]._replace(value=row.attention)
        names += [Word(key, str(value), value) for key, value in said.items()]
    return [*names, *last.values()]


def quote_rows(word: str) -> str:
    """Return the word KEY=VALUE with quotes around each mechanism that has more than a name, such as
    ``linformer[projected_length=32]``. If the brackets have several values for an option, the mechanism is repeated with each
    value. Other words are returned unchanged.

    Raises:
        ValueError: a mechanism in the word is not written in the form NAME[OPTION=VALUE].
    """
    key, equals, value = word.partition("=")
    if key != "attention" or not equals or value.startswith(("choice(", "glob(")):
        return word
    listed = value.startswith("[") and value.endswith("]")
    parts = split(value[1:-1] if listed else value)
    if not any(character in part for part in parts for character in _SIGNS):
        return word
    rows = [text for part in parts for text in ([part] if part[:1] in "'\"" else map(hydra_value, map(str, read_rows(part))))]
    return f"{key}={'[' if listed else ''}{','.join(rows)}{']' if listed else ''}"


def describe_keys(kind: type) -> Iterator[str]:
    """Yield a help text for each field of the dataclass ``kind``: its name, its default and its description. The fields are the
    keys of a command."""
    for key in fields(kind):
        default = key.default if key.default_factory is MISSING else key.default_factory()
        value = getattr(default, "value", default)
        comma = "," if len(str(value)) < _WIDE else ", "  # a space, where the line can be wrapped
        shown = comma.join(map(str, value)) or "[]" if isinstance(value, list) else "null" if value is None else str(value)
        named = f"{key.name}={shown.lower() if isinstance(value, bool) else shown}"
        alone = len(named) > _COLUMN or " " in named
        gap = "\n" + " " * (_COLUMN + 6) if alone else " " * (_COLUMN + 2 - len(named))
        yield f"    {named}{gap}{key.metadata['help']}"


def read_keys(
    command: str, words: Sequence[str], kind: type, *, more: Collection[str] = (), owner: str = "", texts: Collection[str] = ()
) -> dict[str, Any]:
    """Parse KEY=VALUE words, and return the values by key. If a key occurs twice, the last value counts. A field that is a list
    gets the values between the commas: ``KEY=a,b``.

    Args:
        kind: dataclass whose fields are the keys.
        more: further keys.
        owner: name of the part of the command that has the keys, for error messages; empty for the whole command.
        texts: keys whose values are not parsed and stay text.

    Raises:
        UnknownNameError: no such key.
        ValueError: a word is not of the form KEY=VALUE, or a key that is not a list has several values.
    """
    found: dict[str, Any] = {}
    known = [*more, *(field.name for field in fields(kind))]
    lists = {field.name for field in fields(kind) if str(field.type).startswith("list")}
    for word in words:
        key, _, text = word.partition("=")
        if key in texts and text:
            found[key] = text
            continue
        read = read_word(word)
        key = read.key
        if read.added:
            raise ValueError(
                f"words of {command} must be KEY=VALUE without a sign before the key; got {word!r}. Write {key}={text}"
            )
        if key.startswith("attention."):
            row = f"NAME[{key.removeprefix('attention.')}={text.replace(',', '|')}]"
            raise ValueError(f"options of a mechanism must stand in brackets after its name; got {word!r}. Write attention={row}")
        if key not in known:
            raise UnknownNameError(f"key of {owner or command}", key, known)
        if read.swept and key not in lists:
            raise ValueError(f"{key}= must be one value; got {word!r}. Give one value")
        whole = key not in lists or read.value is None or isinstance(read.value, list)
        found[key] = read.value if whole else read.values()
    return found
