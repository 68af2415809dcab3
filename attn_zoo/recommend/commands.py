"""Commands that a recommendation proposes: runs whose records could change it, and a measurement of the recommended mechanism."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import torch

from attn_zoo.contract import TaskSpec
from attn_zoo.contract.options import length_rules
from attn_zoo.grouping import grouped
from attn_zoo.leaderboard.advise.abilities import Ability
from attn_zoo.leaderboard.advise.needs import Need
from attn_zoo.leaderboard.compare import BASELINE, SEEDS_NEEDED
from attn_zoo.plugin_files import plugin_words
from attn_zoo.recommend.ranking import Candidate, Recommendation, build
from attn_zoo.recommend.requirements import Requirements
from attn_zoo.registry import build_task, card, task_card, task_names
from attn_zoo.rows import RowName

CONTROL = "uniform"
"""Control that the suggested commands run beside a mechanism."""


@dataclass(frozen=True, slots=True)
class Command:
    """Command that gathers evidence."""

    text: str
    lengths: tuple[int, ...] = ()
    """Input lengths of the runs in ascending order; empty for ``attn-zoo transplant``."""


def evidence_command(found: Recommendation) -> Command | None:
    """Return the command that gathers evidence on the mechanism of ``Recommendation.untried``. Return None if no command could
    change the recommendation.

    All runs of the command count as evidence for the use case: they have its direction and enough tokens. If no single command can
    run all tasks in this way, the command runs as many of them as possible.
    """
    untried = found.untried()
    if untried is None:
        return None
    each, lacking = untried
    row = RowName(each.attention, each.options)
    if found.need is None:
        encoder = not (found.required.reads_past or found.required.cross)
        text = f"attn-zoo transplant attention={row},{CONTROL} seed=1,2,3 output=transplant.json"
        return Command(with_plugins(text)) if encoder else None
    tasks = [str(ability.table.task["name"]) for ability in lacking] or list(found.answer.missing)
    known = [name for name in dict.fromkeys(tasks) if name in task_names()]
    groups = grouped((words, (name, spec.length)) for name in known for words, spec in settings(name, found.need, found.required))
    if not groups:
        return None
    words, runs = max(groups.items(), key=lambda group: ("profile" in group[0], len(group[1]), -len(group[0])))
    names, lengths = [name for name, _ in runs], tuple(sorted({length for _, length in runs}))
    if not _fits(found.required, row, lengths):
        row = RowName(each.attention)
    rows = ",".join(str(one) for one in _recorded(found, row, lacking))
    seeds = ",".join(str(seed) for seed in range(1, _seeds(found, each.attention, lacking) + 1))
    text = f"attn-zoo run -m {words} attention={BASELINE},{CONTROL},{rows} task={','.join(names)} seed={seeds}"
    return Command(with_plugins(text), lengths)


def with_plugins(text: str) -> str:
    """Return a command with the words that load the plugins of this process, without which it would not know their names."""
    return " ".join([text, *map(shlex.quote, plugin_words())])


def settings(task: str, need: Need, required: Requirements) -> Iterator[tuple[str, TaskSpec]]:
    """Yield the settings at which runs of a task are evidence for a use case in the required direction, each with the resulting
    inputs of the task. Settings are words of a command, such as ``level=cpu task.causal=true``."""
    card, causal = task_card(task), required.reads_past
    names = {field.name for field in fields(card.options)}
    way = {"causal": causal} if "causal" in names else {}
    size = {"length": need.shortest} if "length" in names and need.shortest else {}
    tried: list[tuple[str, Mapping[str, Any]]] = [("profile_decoder" if causal else "profile_encoder", {})]
    tried += [("cpu", changes) for changes in ({}, way, size, {**way, **size})]
    found = {}
    for level, changes in tried:
        if level not in card.levels:
            continue
        try:
            spec = build_task(task, **{**card.levels[level].options, **changes}).spec
        except ValueError:  # the task does not support these options
            continue
        if need.counts(task, spec.causal, spec.length):
            words = [f"task.{name}={str(value).lower()}" for name, value in changes.items()]
            found[" ".join([f"level={level}", *words])] = spec
    yield from found.items()


def _fits(required: Requirements, row: RowName, lengths: Sequence[int]) -> bool:
    """Return True if the row's options, chosen for the required length, also fit other lengths."""
    try:
        with torch.device("meta"):
            for length in lengths:
                build(replace(required, length=length), row)
    except ValueError:
        return False
    return True


def _recorded(found: Recommendation, row: RowName, lacking: Sequence[Ability]) -> list[RowName]:
    """Return a row once for each set of options with which it was recorded on the tasks of ``lacking``. Each set has the given
    options, and those whose recorded value is not the default. Options whose default depends on the length keep this default."""
    entry, names = card(row.attention), {ability.name for ability in lacking}
    with_default = [field for field in fields(entry.options) if field.name not in length_rules(entry.options)]
    defaults = {field.name: getattr(field.default, "name", field.default) for field in with_default}
    judged = [one.row.options for one in found.at_deciding(row.attention) if one.ability.name in names and one.row]
    others = [{name: value for name, value in options.items() if value != defaults.get(name, value)} for options in judged]
    rows = {str(one): one for one in (replace(row, options={**other, **row.options}) for other in others or [{}])}
    return [rows[name] for name in sorted(rows)]


def _seeds(found: Recommendation, attention: str, lacking: Sequence[Ability]) -> int:
    """Return the number of seeds to run: twice as many as recorded if the recorded ones left the verdict on a task undecided,
    because the same seeds would give the same scores again."""
    names = {ability.name for ability in lacking}
    undecided = [one.row for one in found.at_deciding(attention) if one.ability.name in names and one.verdict == "unclear"]
    return max([SEEDS_NEEDED, *(2 * len(row.by_seed) for row in undecided if row)])


def measure_command(required: Requirements, taken: Candidate) -> str | None:
    """Return the command that measures a candidate and softmax at the required length. Return None for causal attention and
    cross-attention, which ``attn-zoo measure`` does not time."""
    if required.reads_past or required.cross:
        return None
    rows = f"{BASELINE},{RowName(taken.attention, taken.options)}"
    sizes = {"dim": (required.width, 256), "heads": (required.heads, 4), "device": (required.device, "cpu")}
    changed = [f"{name}={value}" for name, (value, default) in sizes.items() if value != default]
    return with_plugins(" ".join(["attn-zoo measure", f"attention={rows}", f"lengths={required.length}", *changed]))
