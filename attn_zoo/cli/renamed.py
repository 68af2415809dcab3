"""Spellings of earlier versions, each with what is written in its place."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise

KEY_VALUE = ("run", "tune", "measure", "transplant")
"""Commands whose words are KEY=VALUE; those of the others are options."""
_OPTION = re.compile(r"(?:set\.|dials\.)?(?P<name>\w+)\.(?P<option>\w+)=(?P<values>.+)")
_PLACES = {"analyze": "--attention {}", "transplant": "attention={}", "measure": "attentions=[{}]", "export": "attn-zoo export {}"}
"""Place of a row on the command line, by command."""
_KEYS = {
    "hydra.launcher.ray.": "launcher.",
    "hydra.launcher.n_jobs": "workers",
    "hydra.launcher.": "launcher.",
    "hydra/launcher=": "launch=",
    "hydra/sweeper/sampler=": "tuning.sampler=",
    "hydra.sweeper.n_trials": "tuning.trials",
    "hydra.sweeper.n_jobs": "tuning.at_once",
}
"""Present beginning of a key, by its earlier one; the first match counts."""


def refuse_old_spelling(words: Sequence[str]) -> None:
    """Refuse options of a mechanism that do not stand in its row, and keys that were Hydra's.

    Raises:
        ValueError: saying in one line how the word is written.
    """
    command, rest = (words[0], words[1:]) if words else ("", [])
    _refuse_other_form(command, rest)
    if command == "list" and (found := [words[at + 1] for at, word in enumerate(words[:-1]) if word in ("--attention", "--task")]):
        raise ValueError(f"--attention and --task are earlier spellings; attn-zoo list {' '.join(found)} is written now")
    if command == "records" and len(rest) > 1 and not rest[1].startswith("-"):
        raise ValueError(f"{rest[1]!r} is an earlier spelling; attn-zoo records {rest[0]} --records {rest[1]} is written now")
    for word in rest if command in ("run", "tune") else ():
        for old, new in _KEYS.items():
            if word.lstrip("+").startswith(old):
                raise ValueError(f"{word!r} is an earlier spelling; {new}{word.lstrip('+').removeprefix(old)} is written now")
    for word in rest if command == "measure" else ():
        if word.startswith("sizes."):
            raise ValueError(f"{word!r} is an earlier spelling; {_compared_row(word)} is written now")
    for word in _options_beside_rows(command, rest):
        match = _OPTION.fullmatch(word)
        row = "{name}[{option}={values}]".format(**match.groupdict()) if match else "NAME[OPTION=VALUE]"
        new = _PLACES[command].format(row.replace(",", "|"))
        raise ValueError(f"{word!r} is an earlier spelling; options stand in the row, {new} (in quotes where the shell needs them)")


def _refuse_other_form(command: str, words: Sequence[str]) -> None:
    """Refuse ``--records`` and ``--plugin`` where keys have values, and the other way round."""
    for word in words:
        name, equals, value = word.lstrip("-").partition("=")
        if name in ("records", "plugin") and (equals or word.startswith("--")):
            if command in KEY_VALUE and word.startswith("--"):
                raise ValueError(f"attn-zoo {command} takes KEY=VALUE; write {name}={value or 'PATH'}; got {word!r}")
            if command not in KEY_VALUE and not word.startswith("-"):
                raise ValueError(f"attn-zoo {command} takes options; write --{name} {value}; got {word!r}")


def _compared_row(word: str) -> str:
    from attn_zoo.cost.peers.comparisons import COMPARISONS  # here, as it loads PyTorch

    name, _, value = word.removeprefix("sizes.").partition("=")
    option = COMPARISONS[name].hyperparameter if name in COMPARISONS else ""
    return f"mechanisms=[{name}[{option or 'OPTION'}={value}]]"


def _options_beside_rows(command: str, words: Sequence[str]) -> list[str]:
    if command == "analyze":
        return [word for flag, word in pairwise(words) if flag in ("--set", "--dial")]
    if command == "measure":
        return [word for word in words if word.startswith("set.")]
    if command == "transplant":
        named = next((word.partition("=")[2] for word in words if word.startswith("attention=")), "NAME")
        found = [word for word in words if word.startswith(("dials.", "attention."))]
        return [re.sub(r"^attention\.", f"{named}.", word) for word in found]
    if command == "export":
        return [f"{words[0]}.{word}" for word in words[1:] if re.fullmatch(r"\w+=.+", word)]
    return []
