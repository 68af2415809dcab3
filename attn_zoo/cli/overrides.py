"""Hydra overrides with rows as values: quoted, since Hydra's grammar has no rows, and then unfolded into overrides of a run."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import fields

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import ChoiceSweep, Override, QuotedString
from hydra.errors import HydraException

from attn_zoo.cli.config import RunConfig, store_hybrid
from attn_zoo.contract import UnknownNameError
from attn_zoo.leaderboard.reproduce import hydra_value
from attn_zoo.rows import read_rows, split

_KEYS = ("attention", "attentions", "layer", "mechanisms")
"""Keys whose values are rows."""


_SIGNS = ":[+*"
"""Characters of rows that are more than a name."""

_GROUPS = ("attention", "task", "experiment", "launch")
"""Keys whose values are names."""


def parse(word: str) -> Override:
    """Parse a word as an override.

    Raises:
        HydraException: the word is no override.
    """
    return OverridesParser.create().parse_override(word)


def parse_overrides(words: Sequence[str], further: Sequence[str] = ()) -> list[Override]:
    """Parse words as overrides of a run, with rows quoted.

    Args:
        further: keys of the command in addition to those of a run.

    Raises:
        UnknownNameError: a run has no such setting.
        ValueError: a word is no override, a name is none, or a key is of Hydra's launchers.
    """
    return [_parsed(word, further) for word in words]


def _parsed(word: str, further: Sequence[str]) -> Override:
    key = word.partition("=")[0].lstrip("+")
    try:
        override = parse(quote_rows(word))
    except HydraException as error:
        where = str(error).splitlines()[0].partition(" expecting ")[0]
        raise ValueError(f"{word!a} cannot be read as KEY=VALUE ({where!a}); put values with other characters in quotes") from error
    if override.is_delete():
        raise ValueError(f"{word!a}: a setting cannot be removed; give it another value")
    top = str(override.key_or_group).replace("/", ".").partition(".")[0]
    known = [*(f.name for f in fields(RunConfig)), "experiment", "launch", "hydra", *further]
    if top not in known:
        raise UnknownNameError("setting of a run", top, known)
    if re.match(r"hydra[./](launcher|sweeper)", key):
        raise ValueError(f"{word!a}: runs use no launcher or sweeper of Hydra; write launch=NAME, launcher.KEY= or tuning.KEY=")
    if key in _GROUPS and not _names_only(override):
        raise ValueError(
            f"{key} takes a name; tune and run -m take several, separated by commas and without brackets; got {word!a}"
        )
    return override


def _names_only(override: Override) -> bool:
    """Tell whether every value of an override is text; a glob counts as text."""
    value = override.value()
    if isinstance(value, ChoiceSweep):
        return all(isinstance(choice, str | QuotedString) for choice in value.list)
    return isinstance(value, str | QuotedString) or override.is_sweep_override()


def quote_rows(word: str) -> str:
    """Quote each row in a word KEY=VALUE, with one row for each alternative; return any other word unchanged.

    Raises:
        ValueError: a part of the value is no row.
    """
    key, equals, value = word.partition("=")
    if key not in _KEYS or not equals or value.startswith(("choice(", "glob(")):
        return word
    listed = value.startswith("[") and value.endswith("]")
    parts = split(value[1:-1] if listed else value)
    if not any(character in part for part in parts for character in _SIGNS):
        return word
    rows = [text for part in parts for text in ([part] if part[:1] in "'\"" else map(hydra_value, map(str, read_rows(part))))]
    return f"{key}={'[' if listed else ''}{','.join(rows)}{']' if listed else ''}"


def unfold_row(job: Sequence[str]) -> list[str]:
    """Overrides of one run, with its row as ``attention=NAME attention.OPTION=VALUE implementation=NAME``.

    Raises:
        ValueError: another override gives an option or the implementation that the row gives as well.
    """
    found: list[str] = []
    for word in job:
        override = parse(word)
        value = override.value() if override.key_or_group == "attention" else None
        if not isinstance(value, str) or not any(character in value for character in _SIGNS):
            found.append(word)
            continue
        (row,) = read_rows(value)
        said = {f"attention.{name}": hydra_value(str(option)) for name, option in row.options.items()}
        said |= {} if row.implementation == "auto" else {"implementation": hydra_value(row.implementation)}
        keys = {other.partition("=")[0].lstrip("+") for other in job}
        if twice := [key for key in said if key in keys]:
            raise ValueError(f"{twice[0]} is given twice, in the row {value} and as a key; leave one of them out")
        if row.is_hybrid:
            store_hybrid(row.attention)
        found += [f"attention={hydra_value(row.attention)}", *(f"{key}={text}" for key, text in said.items())]
    return found
