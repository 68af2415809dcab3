"""Reading of KEY=VALUE words for commands whose keys are the fields of a dataclass."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import MISSING, fields
from typing import Any

from attn_zoo.cli.words import read_word
from attn_zoo.contract import UnknownNameError

_COLUMN = 20
"""Width in characters of the column of keys. The description of a longer key is in the line below the key."""
_WIDE = 80
"""Number of characters above which a list may be wrapped."""


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
