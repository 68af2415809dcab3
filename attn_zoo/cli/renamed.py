"""Spellings of earlier versions, each refused with what is written in its place."""

from __future__ import annotations

import re
from collections.abc import Sequence

KEY_VALUE = ("run", "tune", "measure", "transplant")
"""Commands whose words are KEY=VALUE; those of the others are options."""
_OPTION = r"(?P<option>\w+)=(?P<value>\S+)"
_ROW = rf"(?P<name>\w+)\.{_OPTION}"
_EARLIER = (
    ("list", r"--(?:attention|task) (?P<value>\S+)", "attn-zoo list {value}"),
    ("records (?:verify|rerun)", r"(?:(?<=verify )|(?<=rerun ))(?P<value>[^-\s]\S*)", "attn-zoo {command} --records {value}"),
    ("run|tune", r"\+*hydra\.launcher\.n_jobs(?P<value>\S*)", "workers{value}"),
    ("run|tune", r"\+*hydra\.launcher\.(?:ray\.)?(?P<value>\S*)", "launcher.{value}"),
    ("run|tune", r"\+*hydra/launcher=(?P<value>\S*)", "launch={value}"),
    ("run|tune", r"\+*hydra/sweeper/sampler=(?P<value>\S*)", "tuning.sampler={value}"),
    ("run|tune", r"\+*hydra\.sweeper\.n_trials(?P<value>\S*)", "tuning.trials{value}"),
    ("run|tune", r"\+*hydra\.sweeper\.n_jobs(?P<value>\S*)", "tuning.at_once{value}"),
    ("measure", r"sizes\.linformer=(?P<value>\S+)", "mechanisms=[linformer[projected_length={value}]]"),
    ("measure", r"sizes\.(?P<name>\w+)=(?P<value>\S+)", "mechanisms=[{name}[OPTION={value}]]"),
    ("measure", rf"set\.{_ROW}", "attentions=[{name}[{option}={value}]]"),
    ("transplant", rf"dials\.{_ROW}", "attention={name}[{option}={value}]"),
    (
        r"transplant(?: .*)? attention=(?P<name>\w+)",
        rf"attention\.{_OPTION}",
        "attention={name}[{option}={value}]",
    ),
    ("transplant", rf"attention\.{_OPTION}", "attention=NAME[{option}={value}]"),
    ("analyze", rf"--(?:set|dial) {_ROW}", "--attention {name}[{option}={value}]"),
    (r"export (?P<name>\w+)", _OPTION, "attn-zoo export {name}[{option}={value}]"),
)
"""Command, earlier spelling of a word, and its present spelling."""


def refuse_old_spelling(words: Sequence[str]) -> None:
    """Refuse options of a mechanism that do not stand in its row, and keys and arguments that were called otherwise.

    Raises:
        ValueError: saying in one line how it is written now.
    """
    for word in words[1:]:
        _refuse_other_form(words[0], word)
    for commands, earlier, now in _EARLIER:
        if match := re.match(rf"(?P<command>{commands}) (?:.*? )?(?P<old>{earlier})", " ".join(words)):
            found = {**match.groupdict(), "value": match["value"].replace(",", "|") if "[" in now else match["value"]}
            raise ValueError(f"{match['old']!r} is an earlier spelling; {now.format(**found)} is written now")


def _refuse_other_form(command: str, word: str) -> None:
    """Refuse ``--records`` and ``--plugin`` where keys have values, and the other way round."""
    name, equals, value = word.lstrip("-").partition("=")
    if name in ("records", "plugin") and (equals or word.startswith("--")):
        if command in KEY_VALUE and word.startswith("--"):
            raise ValueError(f"attn-zoo {command} takes KEY=VALUE; write {name}={value or 'PATH'}; got {word!r}")
        if command not in KEY_VALUE and not word.startswith("-"):
            raise ValueError(f"attn-zoo {command} takes options; write --{name} {value}; got {word!r}")
