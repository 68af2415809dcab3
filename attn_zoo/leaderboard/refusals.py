"""Rules for submitted records. A message about a broken rule begins with the name of the rule."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any, NamedTuple

from attn_zoo.escapes import terminal
from attn_zoo.grouping import grouped
from attn_zoo.leaderboard.rank import key_of, shared_task_options, tables
from attn_zoo.leaderboard.table import Row, Table
from attn_zoo.records import FINAL_STATUSES, PROTOCOLS, RunRecord
from attn_zoo.records.verify import Verdict

LONGEST = 200
"""Longest name or title in characters."""
SUBMITTED = "submitted/"
"""Prefix in the field ``source`` of submitted records, by which tables distinguish them from our records."""


class Refusal(NamedTuple):
    """Message about a rule that a submission breaks."""

    kind: str
    """Name of the rule: ``conformance``, ``data``, ``known``, ``names``, ``plugin``, ``protocol``, ``seeds``, or the kind of a
    finding of ``attn-zoo records verify``, such as ``edited``."""
    words: str


def refusals(submitted: Sequence[RunRecord], shipped: Sequence[RunRecord], verdict: Verdict) -> list[Refusal]:
    """Return a message for each rule that submitted records break.

    The conformance tests of the mechanism are not run, because they need its code.

    Args:
        submitted: complete records of the submission.
        shipped: records of our own results, into whose tables the submitted records must fit.
        verdict: result of ``verify`` for the folder of the submission.
    """
    found = [Refusal(f.kind, f"{', '.join(f.files)}: {f.words}") for f in verdict.findings if not f.harmless]
    found += _names(submitted)
    ids = {record.run_id for record in shipped}
    known = [record for record in submitted if record.run_id in ids]
    found += _told("known", known, "must be new, but it is among our results; report a different score as a disputed number")
    other = [record for record in submitted if record not in known and _has_other_data(record, shipped)]
    found += _told("data", other, "must read the data of our results, but the digest of a split differs; get the data again")
    rest = [record for record in submitted if record not in known]
    made = beside(rest, shipped)
    found += _other_protocol(rest, other, shipped, made)
    for table in made:
        theirs = next(run for row in table.rows for run in row.runs if _is_submitted_run(run))
        found += _of_rows(table, _seeds_of(table) or _seeds_like(theirs, shipped))
    return found


def beside(submitted: Iterable[RunRecord], shipped: Iterable[RunRecord]) -> list[Table]:
    """Return leaderboard tables of the submitted records together with our records of the same tasks.

    The card and the chance level of a task are taken from our records if one of our runs of the task finished.
    """
    submitted = list(submitted)
    tasks = {record.spec.task for record in submitted}
    ours = [record for record in shipped if record.spec.task in tasks]
    known = {_shared_task_of(record): record for record in ours if record.status == "done"}
    named = []
    for record in submitted:
        like = known.get(_shared_task_of(record), record)
        named.append(replace(record, source=SUBMITTED + str(record.source), task_card=like.task_card, chance=like.chance))
    return [table for table in tables([*ours, *named]) if any(map(is_submitted, table.rows))]


def is_submitted(row: Row) -> bool:
    """Return True if a row of a table from the function ``beside`` has a submitted record."""
    return any(map(_is_submitted_run, row.runs))


def _is_submitted_run(run: RunRecord) -> bool:
    return str(run.source).startswith(SUBMITTED)


def check_printed_name(text: str) -> str | None:
    """Return the rule that a name, title or paper breaks, or None if it breaks none.

    The text must have 1 to ``LONGEST`` characters on one line, all of them visible, and neither ``<`` nor ``>``.
    """
    if not text.strip() or len(text) > LONGEST:
        return f"must have 1 to {LONGEST} characters"
    return "must be one line of visible characters, without < and >" if terminal(text) != text or set(text) & set("<>") else None


def _names(submitted: Iterable[RunRecord]) -> Iterator[Refusal]:
    """Yield a refusal for each name or title that could be taken for markup."""
    texts = dict[str, str]()
    for record in submitted:
        card = record.attention_card
        given = {"attention": record.spec.attention, **{f"{part} of a card": card.get(part) for part in ("title", "paper")}}
        given |= {f"option {name}": value for name, value in record.spec.options.items() if value != ""}
        texts |= {text: what for what, text in given.items() if isinstance(text, str) and text}
    for text, what in texts.items():
        if rule := check_printed_name(text):
            yield Refusal("names", f"the {what} {rule}; got {text!a}")


def _task_of(record: RunRecord) -> tuple[str, ...]:
    return record.spec.task, str(record.task_card.get("version")), key_of(record.spec.task_options)


def _shared_task_of(record: RunRecord) -> tuple[str, ...]:
    """Return what the task of a record shares with all seeds of its table: if each seed draws its own data, all but their seed."""
    return record.spec.task, str(record.task_card.get("version")), key_of(shared_task_options(record))


def _has_other_data(record: RunRecord, shipped: Iterable[RunRecord]) -> bool:
    known = next((other.data for other in shipped if other.data and _task_of(other) == _task_of(record)), record.data)
    return bool(record.data) and key_of(record.data) != key_of(known)


def _other_protocol(
    submitted: Sequence[RunRecord], other_data: Sequence[RunRecord], shipped: Sequence[RunRecord], made: Iterable[Table]
) -> Iterator[Refusal]:
    """Yield refusals for records that do not fit into any of our tables. Those of ``other_data`` are refused only if their settings
    differ, too."""
    fitting = {file for table in made if not all(map(is_submitted, table.rows)) for row in table.rows for file in row.files}
    strange = [record for record in submitted if not record.is_trial and SUBMITTED + str(record.source) not in fitting]
    for words, records in grouped((_difference(record, shipped), record) for record in strange).items():
        if not words:
            records = [record for record in records if record not in other_data]
            words = "the splits of its data must have as many examples as ours"
        yield from _told("protocol", records, f"must have the settings of one of our tables: {words}")


def _difference(record: RunRecord, shipped: Iterable[RunRecord]) -> str:
    """Return the settings in which a record differs from the most similar record of ours; empty if there is none."""
    if record.protocol not in PROTOCOLS:
        return f"the protocol must be {' or '.join(PROTOCOLS)}; got {record.protocol}. Train again with this version"
    like = _like(record, shipped)
    if not like:
        return f"our results have no table of its task, only of {', '.join(sorted({other.spec.task for other in shipped}))}"
    mine = _settings(record)
    return ", ".join(f"{name} must be {value}; got {mine.get(name)}" for name, value in _apart(mine, _settings(like[0])).items())


def _like(record: RunRecord, shipped: Iterable[RunRecord]) -> list[RunRecord]:
    """Return our records of the task of a record whose settings are the most similar ones. All of them have the same settings."""
    of_task = [(other, _settings(other)) for other in shipped if other.spec.task == record.spec.task and not other.is_trial]
    mine = _settings(record)
    nearest = min((settings for _, settings in of_task), key=lambda settings: len(_apart(mine, settings)), default=None)
    return [other for other, settings in of_task if settings == nearest]


def _apart(mine: Mapping[str, Any], ours: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return our values of the settings that differ."""
    return {name: value for name, value in {**dict.fromkeys(mine), **ours}.items() if mine.get(name) != value}


def _settings(record: RunRecord) -> Mapping[str, Any]:
    """Return by key the settings that all rows of a table share."""
    spec = record.spec
    found = {"protocol": record.protocol, "version of the task": record.task_card.get("version")}
    found |= {f"task.{name}": value for name, value in spec.task_options.items()}
    found |= {f"model.{name}": value for name, value in asdict(spec.model).items() if name != "heads"}
    found |= {f"budget.{name}": value for name, value in asdict(spec.budget).items()}
    found |= {name: f"searched in {text}" for name, text in (record.tuning.space if record.tuning else {}).items()}
    return found | {"precision": spec.precision, "device": spec.device}


def _seeds_of(table: Table) -> set[int]:
    """Return the seeds that all our rows of a table have."""
    ours = [{run.spec.seed for run in row.runs} for row in table.rows if not is_submitted(row)]
    return set.intersection(*ours) if ours else set()


def _seeds_like(record: RunRecord, shipped: Iterable[RunRecord]) -> set[int]:
    """Return the seeds that all our rows have in the table whose settings are most similar to those of a record."""
    like = _like(record, shipped)
    rows = grouped(((other.spec.attention, key_of(other.spec.options)), other.spec.seed) for other in like)
    return set.intersection(*map(set, rows.values())) if rows else set()


def _of_rows(table: Table, needed: Collection[int]) -> Iterator[Refusal]:
    """Yield a refusal for each row that we already have, and for each row that lacks some of the needed seeds."""
    for row in filter(is_submitted, table.rows):
        where = f"{row.attention} on {table.task['name']}"
        if not all(map(_is_submitted_run, row.runs)):
            yield Refusal(
                "known", f"{where}: the configuration must be new, but it is among our results; submit one with other options"
            )
        elif missing := set(needed) - {run.spec.seed for run in row.runs if run.status in FINAL_STATUSES}:
            seeds = ", ".join(map(str, sorted(missing)))
            rule = f"the row must have a finished run with each seed of our rows; missing: {seeds}"
            yield Refusal("seeds", f"{where}: {rule}. Give the command of the runs again, with these seeds")


def _told(kind: str, records: Sequence[RunRecord], rule: str) -> Iterator[Refusal]:
    if records:
        files = [str(record.source) for record in records]
        more = f" and {len(files) - 3} more" if len(files) > 3 else ""
        yield Refusal(kind, f"{', '.join(files[:3])}{more}: each run {rule}")
