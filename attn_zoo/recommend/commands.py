"""Commands that an answer proposes: runs whose records could change it, and a measurement of the recommended mechanism."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from attn_zoo.contract.options import length_rules
from attn_zoo.leaderboard.compare import BASELINE, SEEDS_NEEDED
from attn_zoo.plugin_files import plugin_words
from attn_zoo.recommend.answer import Answer
from attn_zoo.recommend.candidates import Candidate, Requirements, candidates
from attn_zoo.recommend.needs import Need
from attn_zoo.recommend.verdicts import Judgement
from attn_zoo.registry import build_task, card, stated_options, task_card, task_names
from attn_zoo.rows import RowName

CONTROL = "uniform"
"""Control that the suggested commands run beside a mechanism."""


class Command(NamedTuple):
    """Command that gathers evidence."""

    text: str
    lengths: Sequence[int] = ()
    """Input lengths of the runs in ascending order; empty for ``attn-zoo transplant``."""


def evidence_command(found: Answer) -> Command | None:
    """Return the command that gathers evidence on the mechanism of ``Answer.untried``. Return None if no command could change the
    answer.

    All runs of the command count as evidence for the use case: they have its direction and enough tokens.
    """
    if found.untried is None:
        return None
    each, lacking = found.untried
    judged = [each.judged[one.name] for one in lacking if one.name in each.judged]
    if found.need is None:
        row = RowName(each.attention, each.options)  # students run the implementation auto
        text = f"attn-zoo transplant attention={row},{CONTROL} seed={_seeds(judged)} output=transplant.json"
        return Command(_with_plugins(text))
    words, need = settings(found.need, found.required), found.need
    tasks = dict.fromkeys([one.task for one in lacking] or found.missing)
    lengths = {task: length for task in tasks if (length := evidence_length(task, need, found.required))}
    if not lengths:
        return None
    ends = sorted(set(lengths.values()))
    rows = [_row(each, one) for one in judged] or [_row(each)]
    shorter = [replace(found.required, length=length) for length in ends if each.options]
    if any(candidates(required, rows)[1] for required in shorter):  # the options are too large for these lengths
        rows = [RowName(each.attention)]
    names = ",".join([BASELINE, CONTROL, *sorted(set(map(str, rows)))])
    text = f"attn-zoo run -m {words} attention={names} task={','.join(lengths)} seed={_seeds(judged)}"
    return Command(_with_plugins(text), ends)


def settings(need: Need, required: Requirements) -> str:
    """Return the words of a command with which tasks have enough tokens for a use case, such as ``level=cpu task.length=512``."""
    return need.settings or f"level=profile_{'decoder' if required.reads_past else 'encoder'}"


def evidence_length(task: str, need: Need, required: Requirements) -> int | None:
    """Return the input length of a task with the settings of a use case. Return None if its runs would be no evidence for the use
    case, because the task does not support the settings, or has the other direction or too few tokens."""
    given = dict(word.split("=") for word in settings(need, required).split())
    level, length = given["level"], given.get("task.length")
    if task not in task_names() or level not in task_card(task).levels:
        return None
    try:
        spec = build_task(task, **{**task_card(task).levels[level].options, **({"length": int(length)} if length else {})}).spec
    except ValueError:  # the task does not support this length
        return None
    return spec.length if need.counts(task, spec.causal, spec.length) else None


def own_task_command(found: Answer) -> str:
    """Return the command that trains a mechanism on a task of the user's own."""
    row = _row(found.nearest) if found.nearest else "linear"
    return _with_plugins(f"attn-zoo run -m task={found.required.task or 'NAME'} attention={BASELINE},{CONTROL},{row} seed=1,2,3")


def measure_command(required: Requirements, taken: Candidate) -> str | None:
    """Return the command that measures a candidate and softmax at the required length. Return None for causal attention and
    cross-attention, which ``attn-zoo measure`` does not time."""
    if required.reads_past or required.cross:
        return None
    sizes = {"dim": (required.width, 256), "heads": (required.heads, 4), "device": (required.device, "cpu")}
    changed = [f"{name}={value}" for name, (value, default) in sizes.items() if value != default]
    return _with_plugins(" ".join([f"attn-zoo measure attention={BASELINE},{_row(taken)} lengths={required.length}", *changed]))


def _row(each: Candidate, judged: Judgement | None = None) -> RowName:
    """Return the row of a candidate, with the recorded options that are not defaults if a verdict has some."""
    entry, recorded = card(each.attention), judged.row.options if judged and judged.row else {}
    defaults, by_length = stated_options(entry, {}), length_rules(entry.options)
    other = {name: value for name, value in recorded.items() if name not in by_length and value != defaults.get(name)}
    return RowName(each.attention, {**other, **each.options}, each.requested)


def _seeds(judged: Sequence[Judgement]) -> str:
    """Return the seeds to run: twice as many as recorded if the recorded ones left a verdict undecided, because the same seeds
    would give the same scores again."""
    undecided = [2 * (len(one.row.by_seed) if one.row else SEEDS_NEEDED) for one in judged if one.verdict == "unclear"]
    return ",".join(map(str, range(1, max([SEEDS_NEEDED, *undecided]) + 1)))


def _with_plugins(text: str) -> str:
    """Return a command with the words that load the plugins of this process, without which it would not know their names."""
    return " ".join([text, *map(shlex.quote, plugin_words())])
