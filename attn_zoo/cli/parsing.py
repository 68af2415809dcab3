"""Parser of the command line. For an unknown word, it prints an error of one line that names the nearest known word."""

from __future__ import annotations

import argparse
import math
import re
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any, NoReturn

from attn_zoo.escapes import terminal
from attn_zoo.terminal import wrap

KEY_VALUE = ("run", "tune", "measure", "transplant")
"""Commands whose words are parsed with Hydra's grammar. The words of other commands are parsed with argparse. All commands accept
both forms, ``KEY=VALUE`` and ``--KEY VALUE``."""

ADVICE = "advice"
"""Name of a default of a parser, set by ``set_defaults``: the end of the error message about a word too many."""

_COLUMN = 20
"""Width in characters of the column of keys. The description of a longer key is in the line below the key."""
_WIDE = 80
"""Number of characters above which a list may be wrapped."""
UNITS: Mapping[str, Mapping[str, float]] = {
    "time": {"": 1.0, "s": 1.0, "min": 60.0, "h": 3600.0},
    "flops": {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12, "p": 1e15},
    "memory": {"": 1, "b": 1, "kib": 2**10, "mib": 2**20, "gib": 2**30, "kb": 10**3, "mb": 10**6, "gb": 10**9},
}
"""For each quantity, such as time, its units and their sizes: ``s`` has size 1, and ``min`` has size 60."""


class Parser(argparse.ArgumentParser):
    """``ArgumentParser`` whose error messages have one line, also for subcommands."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse all arguments. An unknown option or extra word is reported as an error of the subcommand to which it was given."""
        given = sys.argv[1:] if args is None else args
        parsed, rest = super().parse_known_args([part for word in given for part in self._as_option(word)], namespace)
        if rest:
            word = str(rest[0])
            if not word.startswith("-"):
                self.error(f"takes no further argument; got {word!r}{self.get_default(ADVICE) or ''}")
            self.error(_unknown("option", word.partition("=")[0], self._option_string_actions))
        return parsed, rest

    def _as_option(self, word: str) -> list[str]:
        """Return the option that a word KEY=VALUE means, or another word unchanged."""
        key, equals, value = word.partition("=")
        name = f"--{key.replace('_', '-')}"
        if not equals or word.startswith("-") or (action := self._option_string_actions.get(name)) is None:
            return [word]
        if action.nargs != 0:
            return [f"{name}={value}"]
        if value not in ("true", "false"):
            self.error(f"{key} must be true or false; got {value!r}")
        return [name] if value == "true" else []

    def error(self, message: str) -> NoReturn:
        """Print the message and exit with status 2."""
        said = terminal(f"{self.prog}: {message}; see {self.prog} --help")
        self.exit(2, f"{wrap(said) if sys.stderr.isatty() else said}\n")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            kind = action.option_strings[-1] if action.option_strings else str(action.metavar).lower()
            raise argparse.ArgumentError(None, _unknown(kind, str(value), map(str, action.choices)))


class InLines(argparse.HelpFormatter):
    """Help formatter that keeps the line breaks of a description and wraps lines that are too long."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return wrap(text, width)


def _unknown(kind: str, name: str, known: Iterable[str]) -> str:
    from attn_zoo.contract import UnknownNameError  # here, as it needs torch

    return str(UnknownNameError(kind, name, known))


def check_output(name: str, file: Path) -> None:
    """Check that an output file can be written.

    Raises:
        ValueError: the path is a folder, or is in a folder that does not exist.
        OSError: the file cannot be written.
    """
    if file.is_dir() or not file.absolute().parent.is_dir():
        lacking = "is a folder" if file.is_dir() else "is in a folder that does not exist"
        raise ValueError(f"{name} must be a file in an existing folder, but {str(file)!r} {lacking}")
    existed = file.exists()
    file.open("a", encoding="utf-8").close()
    if not existed:
        file.unlink()


def quantity(kind: str, text: str) -> float | None:
    """Return the number in a text such as ``4GiB``, converted to the first unit of ``UNITS[kind]``. Return None if the text is not
    a positive, finite number with one of these units."""
    match = re.fullmatch(r"([0-9]+\.?[0-9]*|\.[0-9]+)((?:e[+-]?[0-9]+)?) ?([a-z]*)", text.strip().lower())
    if match is None or match[3] not in UNITS.get(kind, {}):
        return None
    value = float(match[1] + match[2]) * UNITS[kind][match[3]]
    return value if 0 < value < math.inf else None


def add_plugin(parser: argparse.ArgumentParser) -> None:
    """Add the option ``--plugin`` to the parser of a command, or to each of its subcommands."""
    below = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    for action in below:
        for part in action.choices.values():
            add_plugin(part)
    if not below:
        words = "file or folder that registers mechanisms or tasks, without installing a package; may be repeated"
        parser.add_argument("--plugin", action="append", metavar="PATH", help=words)


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
    from attn_zoo.cli.words import ROWS, read_word  # here, as both need torch
    from attn_zoo.contract import UnknownNameError

    found: dict[str, Any] = {}
    known = [*more, *(field.name for field in fields(kind))]
    lists = {field.name for field in fields(kind) if str(field.type).startswith("list")}
    written = {field.name for field in fields(kind) if str(field.type) in ("str", "str | None")}
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
        if key in written:
            read = read.as_text()
        whole = key not in lists or read.value is None or isinstance(read.value, list)
        value = read.value if whole else read.values()
        if key in ROWS:  # rows, which the command reads again
            value = list(map(str, value)) if isinstance(value, list) else str(value)
        found[key] = value
    return found
