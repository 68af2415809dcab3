"""Tables and sentences that the README, the page on choosing and the page of the profile make from the profile's records."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from axes_tables import all_of, length_sentence
from committed import boards_of, measured, newer_records, profile_boards, task_place, titled
from scipy.stats import fisher_exact
from tabulate import tabulate

from attn_zoo.leaderboard import Table
from attn_zoo.leaderboard.compare import BASELINE, SEEDS_NEEDED, is_above_control
from attn_zoo.leaderboard.heatmap import LENGTH
from attn_zoo.leaderboard.metrics import score, written
from attn_zoo.leaderboard.statistics import CONFIDENCE
from attn_zoo.leaderboard.table import Verdict
from attn_zoo.recommend.answer import use_cases
from attn_zoo.recommend.candidates import percentage
from attn_zoo.recommend.text import use_line, use_table
from attn_zoo.recommend.verdicts import Ability, abilities, judge, recorded_shares
from attn_zoo.records import RunRecord
from attn_zoo.registry import card

SEARCH_SEED = 0
"""First seed of every search."""


def uses() -> str:
    """Return the answers of ``attn-zoo recommend`` to every use case."""
    return use_table(use_cases(profile_boards(), measured("transplant")), format="github")


def choice() -> str:
    """Return each use case with the mechanism to use and the lengths of the tested inputs."""
    lines = [(use, name, tokens) for use, name, _, _, tokens in map(use_line, use_cases(profile_boards(), measured("transplant")))]
    return tabulate(lines, ("use case", "use", "length of the tested inputs (tokens)"), tablefmt="github", disable_numparse=True)


def finding(tables: Sequence[Table]) -> str:
    """Return for each direction (bidirectional, causal) how many mechanisms that take fewer FLOPs than softmax match it on all
    tasks, and which of them match it on the most.

    A mechanism counts in a direction if it was run on at least half of its tasks. If none counts, the text is empty.
    """
    by_direction = {causal: [one for one in abilities(tables) if one.causal == causal] for causal in (False, True)}
    said = [_finding("causal" if causal else "bidirectional", some) for causal, some in by_direction.items()]
    return " ".join(filter(None, said))


def _finding(direction: str, some: Sequence[Ability]) -> str:
    rivals = {name for ability in some for name, row in ability.rows.items() if not row.control} - {BASELINE}
    ran = {name: {one.name: judge(one, name).matches for one in some if name in one.rows} for name in sorted(rivals)}
    shares = {name: recorded_shares(name, some) for name, tasks in ran.items() if len(tasks) >= len(some) / 2}
    cheap = {name: ran[name] for name, known in shares.items() if known and all(share is not None and share < 1 for share in known)}
    if not cheap:
        return ""
    most = max(sum(tasks.values()) for tasks in cheap.values())
    names = [name for name, tasks in cheap.items() if sum(tasks.values()) == most]
    named = all_of([f"`{name}`" for name in names])
    text = (
        f"{len(cheap)} mechanism{'s' * (len(cheap) > 1)} with fewer FLOPs than softmax {'were' if len(cheap) > 1 else 'was'} run "
        f"on at least half of the {len(some)} {direction} task{'s' * (len(some) != 1)}. "
    )
    if most == len(some):
        text += f"{named} {'match' if names[1:] else 'matches'} softmax on all of these tasks"
    else:
        text += "None of them matches softmax on all of these tasks"
        text += f": {named} {'match' if names[1:] else 'matches'} it on {most}, the most" if most else ""
    if most and not names[1:]:
        known = [share for share in shares[names[0]] if share is not None]
        ends = dict.fromkeys(percentage(share) for share in (min(known), max(known)))
        text += f". With the sizes of these runs, it takes {' to '.join(ends)} % of softmax's FLOPs at {LENGTH:,} tokens"
    clear = [one.name for one in some if judge(one, BASELINE).verdict == "above controls"]
    at = {task: [tasks[task] for tasks in cheap.values() if task in tasks] for task in clear}
    share = {task: sum(matches) / len(matches) for task, matches in at.items() if matches}
    hardest = [task for task in share if share[task] == min(share.values()) and share[task] < 1]
    if not hardest:
        return f"{text}."
    counts = all_of([f"{sum(at[task])} of {len(at[task])}" for task in hardest])
    return f"{text}. Softmax is hardest to match on {all_of(hardest)}: {counts} mechanisms match it there."


def regime() -> str:
    """Return the sizes and lengths of the runs in the picture."""
    tables = profile_boards()
    ((dim, depth),) = {(table.model["dim"], table.model["depth"]) for table in tables}
    lengths = sorted(table.task["length"] for table in tables)
    told = (
        f"All networks in the picture have {depth} layers of width {dim}. Their inputs have {lengths[0]} to {lengths[-1]} tokens. "
        "Larger networks and longer inputs may change the ranking. "
    )
    if ahead := length_sentence(boards_of("length")):
        told += f"{ahead} "
    newer = [titled(table) for table in tables if table.budget.get("until") == "criterion"]
    if newer:
        these = "these tasks" if newer[1:] else "this task"
        told += f"On {all_of(newer)}, a run ended when it had learned the task. On {these}, some mechanisms were not run yet. "
        told += "On the other tasks, training"
    else:
        told += "Training"
    told += " had a fixed number of steps, so a mechanism that learns late looks like one that never learns."
    if older := _older(tables):
        told += f" {older}"
    if late := late_learners(tables, boards_of("profile3")):
        learned = [f"of {' and '.join(names)} learned {task}" for task, names in late.items()]
        told += (
            " Some white cells only mean that training was too short. With [more steps]"
            f"(docs/explanation/profile.md#trained-until-a-criterion), every seed {', and every seed '.join(learned)}."
        )
    return told


def _older(tables: list[Table]) -> str:
    """Return the sentence that names the mechanisms that have changed what they compute since one of their runs; empty without
    any."""
    ran = {(row.attention, row.card["version"]) for table in tables for row in table.rows}
    names = sorted({f"`{name}`" for name, version in ran if version < card(name).version})
    said = f"Some results of {all_of(names)} come from an earlier version of the mechanism, which computed something different."
    return said if names else ""


def late_learners(fixed: Sequence[Table], criterion: Sequence[Table]) -> dict[str, list[str]]:
    """Return by task the mechanisms that are no better than a control after a fixed budget, but meet the criterion with every
    seed in a longer training. Earlier versions of a mechanism, which compute something else, do not count.
    """
    white = {
        (titled(table), row.attention, row.card["version"]): table.budget["steps"]
        for table in fixed
        for row in table.rows
        if row.verdict in (Verdict.NO_BETTER, Verdict.NOT_TRAINED)
    }
    found: dict[str, list[str]] = {}
    for table in criterion:
        for row in table.rows:
            budget = white.get((titled(table), row.attention, row.card["version"]))
            if budget and row.learned and row.learned.order == 1 and all(run.curve[-1]["step"] > budget for run in row.runs):
                found.setdefault(titled(table), []).append(f"`{row.attention}`")
    return found


def learned() -> str:
    """Return which mechanisms learned each task of the profile until a criterion: with every seed, with some, with none."""
    head = ("task", "tokens", "learned with every seed", "with some seeds", "with none")
    lines = []
    for table in boards_of("profile3"):
        every, some, none = list[str](), list[str](), list[str]()
        for row in table.rows:
            if row.control or row.unjudged or not row.learned:
                continue
            group = every if row.learned.order == 1 else some if row.learned.count else none
            group.append(f"`{row.label}`" + (f" ({row.learned.count} of {row.learned.of})" if group is some else ""))
        lines.append((titled(table, "title"), table.task["length"], *(", ".join(group) for group in (every, some, none))))
    return tabulate(lines, head, tablefmt="github", disable_numparse=True)


def repeated() -> str:
    """Return how many of the cells that were trained again agree with the printed ones, then both side by side."""
    printed = {(titled(table), row.label): (row, table) for table in boards_of("profile3") for row in table.rows}
    lines, agree, differ, fewer = [], 0, 0, []
    for table in boards_of("profile3_again"):
        for row in table.rows:
            first, of = printed[titled(table), row.label]
            assert row.learned and first.learned and not set(row.seeds) & set(first.seeds)
            agree += first.learned.low <= row.learned.order <= first.learned.high
            counts = [(each.count, each.of - each.count) for each in (first.learned, row.learned)]
            differ += fisher_exact(counts).pvalue < 1 - CONFIDENCE
            again = f"{row.learned.count} of {row.learned.of}"
            fewer += [f"{again} for `{row.label}` on {titled(table)}"] if row.learned.order < first.learned.order else []
            lines.append((titled(table), f"`{row.label}`", str(first.learned), again, score(first, of), score(row, table)))
    said = (
        f"**In {agree} of {len(lines)} cells, the share of the new seeds that learned the task is within the 95 % interval of the "
        f"first seeds. Fisher's exact test finds a difference in {differ or 'none'} of the cells.**"
    )
    said += f" A smaller share of the new seeds learned the task: {', '.join(fewer)}." if fewer else ""
    head = ("task", "mechanism", "learned", "learned again", "score (%)", "score again (%)")
    return f"{said}\n\n{tabulate(lines, head, tablefmt='github', disable_numparse=True)}"


def searched() -> str:
    """Return, by task and configuration, what each learning rate of the search reached with the first seed.

    A cell holds the steps to 90 % of the ceiling; without them, the validation score and the steps of the trial. The chosen rate is
    bold.
    """
    labels = {run.run_id: row.label for table in boards_of("profile3") for row in table.rows for run in row.runs}
    chosen: dict[tuple[Any, ...], tuple[float, str]] = {}
    longest: dict[tuple[Any, ...], dict[float, RunRecord]] = defaultdict(dict)
    for record in sorted(newer_records(), key=lambda record: record.spec.budget.steps):
        spec, rate = record.spec, record.spec.budget.learning_rate
        row = (*task_place(record), spec.attention, json.dumps(spec.options))
        if not record.is_trial:
            chosen[row] = rate, labels[record.run_id]
        elif spec.seed == SEARCH_SEED:
            longest[row][rate] = record
    rates = sorted({rate for row in chosen for rate in longest[row]})
    lines = [
        (f"{row[0]} ({row[1]})", f"`{label}`", *(_trial(longest[row].get(rate), rate == best) for rate in rates))
        for row, (best, label) in sorted(chosen.items())
    ]
    return tabulate(lines, ("task", "mechanism", *map(str, rates)), tablefmt="github", disable_numparse=True)


def _trial(record: RunRecord | None, chosen: bool) -> str:
    if record is None:
        return "-"
    if record.reached and record.reached["90"]:
        text = f"{record.reached['90']['steps']:,} steps"
    elif record.status != "done":
        text = record.status
    else:
        text = f"{written(record.scores['valid'], record.task_card['metric'])} after {record.spec.budget.steps:,}"
    return f"**{text}**" if chosen else text


def trust() -> str:
    """Return what the verdicts of the profile rest on: lengths, width, seeds, controls, data, device and versions."""
    tables = profile_boards()
    ((dim, depth, heads),) = {tuple(table.model[name] for name in ("dim", "depth", "heads")) for table in tables}
    rows = [row for table in tables for row in table.rows]
    lengths = sorted(table.task["length"] for table in tables)
    seeds = sorted({len(row.seeds) for row in rows if row.test and not row.control})
    controls = sorted({row.attention for row in rows if row.control})
    above = sum(any(row.attention == "softmax" and is_above_control(row) for row in table.rows) for table in tables)
    tested = sorted(table.data["test"]["examples"] for table in tables)
    failed, runs = sum(len(row.failures) for row in rows), sum(row.attempts for row in rows)
    facts = {
        "Lengths": f"The inputs have {lengths[0]} to {lengths[-1]} tokens. No network of the profile was trained on longer inputs.",
        "Width": f"The networks have {depth} layers of width {dim}, with {heads} heads of width {dim // heads}.",
        "Seeds": f"Mechanisms were trained with {seeds[0]} to {seeds[-1]} seeds per task. A verdict needs {SEEDS_NEEDED} or more.",
        "Failures": f"{failed or 'None'} of the {runs:,} runs failed.",
        "Controls": f"The controls are {', '.join(f'`{name}`' for name in controls)}. They cannot select tokens by content. "
        f"Softmax is better than the best control on {above} of {len(tables)} tasks.",
        "Data": f"The data of the tasks are {' or '.join(sorted({table.data_title for table in tables}))}. Each score was computed "
        f"on {tested[0]:,} to {tested[-1]:,} test examples.",
        "Device": f"All runs used {' and '.join(sorted({f'{t.precision} on the {t.device.upper()}' for t in tables}))}.",
        "Versions": _older(tables),
    }
    return "\n".join(f"- **{name}**: {fact}" for name, fact in facts.items() if fact)
