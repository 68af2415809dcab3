"""Next steps after a recommendation: the command that gathers missing evidence, and the code that uses the mechanism."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace

import torch

from attn_zoo.grouping import grouped
from attn_zoo.leaderboard.advise.abilities import Ability
from attn_zoo.leaderboard.compare import BASELINE
from attn_zoo.recommend.candidates import Candidate, build
from attn_zoo.recommend.ranking import Recommendation
from attn_zoo.recommend.requirements import Requirements
from attn_zoo.registry import task_card, task_names
from attn_zoo.rows import RowName

CONTROL = "uniform"
"""Control that the suggested commands run beside a mechanism."""


def evidence_command(found: Recommendation) -> str | None:
    """Return the command that gathers evidence on the mechanism of ``Recommendation.untried``. Return None if no command could
    change the recommendation."""
    untried = found.untried()
    if untried is None:
        return None
    each, lacking = untried
    if found.required.trained:
        encoder = not (found.required.reads_past or found.required.cross)
        row = RowName(each.attention, each.options)
        return f"attn-zoo transplant attention={row},{CONTROL} seed=1,2,3 output=transplant.json" if encoder else None
    tasks = [str(ability.table.task["name"]) for ability in lacking] or list(found.answer.missing)
    known = [name for name in dict.fromkeys(tasks) if name in task_names()]
    groups = grouped((_reading(name, found.required.reads_past), name) for name in known)
    if not groups:
        return None
    how, names = max(groups.items(), key=lambda group: ("profile" in group[0], len(group[1])))
    row = RowName(each.attention, each.options if _fit(found.required, each, lacking) else {})
    return f"attn-zoo run -m {how} attention={BASELINE},{CONTROL},{row} task={','.join(names)} seed=1,2,3"


def _fit(required: Requirements, each: Candidate, tasks: Sequence[Ability]) -> bool:
    """Return True if the candidate's options, chosen for the required length, also fit the lengths of the tasks."""
    try:
        with torch.device("meta"):
            for length in {int(task.table.task["length"]) for task in tasks}:
                build(replace(required, length=length), RowName(each.attention, each.options))
    except ValueError:
        return False
    return True


def _reading(task: str, causal: bool) -> str:
    """Return settings that run a task in the required direction, at its profile preset if it has one."""
    entry = task_card(task)
    profile = "profile_decoder" if causal else "profile_encoder"
    if profile in entry.levels:
        return f"level={profile}"
    can_choose = any(field.name == "causal" for field in fields(entry.options))
    return "level=cpu task.causal=true" if causal and can_choose else "level=cpu"


def code(found: Recommendation, taken: Candidate) -> str:
    """Return Python code that uses a candidate: it builds a layer or, for a trained model, replaces softmax."""
    required = found.required
    options = "".join(f", {name}={value!r}" for name, value in taken.options.items())
    if required.trained:
        return f'replace_attention(model, "{taken.attention}"{options})'
    causal = ", causal=True" if required.reads_past else ""
    cross = f", context_length={required.length}" if required.cross else ""
    sizes = f'{required.width}, {required.heads}, "{taken.attention}", length={required.length}'
    return f"MultiHeadAttention({sizes}{cross}{causal}{options})"


def listed(names: Sequence[str], most: int = 4) -> str:
    """Return names as text, such as ``a, b, c and 2 more``. At most ``most`` names are written out."""
    shown = list(names[:most])
    return ", ".join(shown) + (f" and {len(names) - most} more" if len(names) > most else "")
