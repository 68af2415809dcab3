"""Check of a folder of records for files that are damaged, repeated, edited, foreign or left over. The check never writes."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from attn_zoo.grouping import grouped
from attn_zoo.records.files import HALF
from attn_zoo.records.record import RunRecord
from attn_zoo.records.spec import OLD_PROTOCOLS, PROTOCOLS
from attn_zoo.records.store import CHECKPOINT, CLAIM, TRY, UNUSED, Damaged, Store, is_claimed


@dataclass(frozen=True, slots=True)
class Finding:
    """Observation about one or more files of records."""

    kind: str
    """Kind of problem: ``damaged``, ``edited``, ``renamed``, ``copied``, ``repeated``, ``data differ`` or ``foreign protocol``; or
    kind of notice: ``checkpoint``, ``leftover``, ``no record``, ``old protocol`` or ``running``."""
    files: tuple[str, ...]
    """Paths of the files relative to the checked folder."""
    words: str
    harmless: bool = False
    """True if the finding is a notice, because nothing is wrong."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """Result of the check of a folder of records."""

    records: int
    """Number of complete records."""
    runs: int
    """Number of different runs among the records."""
    findings: tuple[Finding, ...]

    @property
    def clean(self) -> bool:
        """True if the check found nothing wrong."""
        return all(finding.harmless for finding in self.findings)


def verify(root: str | Path) -> Verdict:
    """Read every file below ``root``. Compare the records with their own ids and with each other, and return what was found.

    Raises:
        FileNotFoundError: ``root`` does not exist.
        NotADirectoryError: ``root`` is a file but not a packed file.
        RecordError: ``root`` is a damaged packed file.
    """
    root = Path(root)
    if not root.exists():
        raise FileNotFoundError(f"the folder {str(root)!r} does not exist. Name the folder that holds the records")
    valid, damaged = Store(root).load()
    findings = [
        *(_unreadable(item, root) for item in damaged),
        *_renamed(valid),
        *_repeated(valid),
        *_different_data(valid),
        *_foreign(valid),
        *_left_over(root),
    ]
    return Verdict(len(valid), len({record.run_id for record in valid}), tuple(findings))


def _files(records: Iterable[RunRecord]) -> tuple[str, ...]:
    return tuple(str(record.source) for record in records)


def _unreadable(item: Damaged, root: Path) -> Finding:
    """Return the finding for a file that tables leave out, or for JSON of another kind, such as the output of ``attn-zoo
    measure``.
    """
    name = (item.path.relative_to(root).as_posix(),)
    if item.kind == "no record":
        return Finding("no record", name, item.reason, harmless=True)
    return Finding(
        item.kind, name, f"{item.reason}; tables leave it out, and the same command repeats a run without another record"
    )


def _renamed(records: Iterable[RunRecord]) -> Iterator[Finding]:
    """Return findings for files whose names ``attn-zoo run`` would not find."""
    for record in records:
        if record.run_id not in Path(str(record.source)).name:
            words = f"the file name lacks the run_id {record.run_id}, so 'attn-zoo run' does not find it and repeats the run"
            yield Finding("renamed", _files([record]), words)


def _repeated(records: Iterable[RunRecord]) -> Iterator[Finding]:
    """Return findings for runs with more than one file. A repetition after a failed attempt does not count."""
    by_run = grouped(((record.run_id, record.tuning and record.tuning.study, record.is_trial), record) for record in records)
    for (run_id, _, _), members in by_run.items():
        distinct = [record for at, record in enumerate(members) if record not in members[:at]]
        if len(distinct) < len(members):
            yield Finding("copied", _files(m for m in members if members.count(m) > 1), f"run {run_id} is here under several names")
        final = [record for record in distinct if record.is_final]
        if len(final) > 1:
            yield Finding("repeated", _files(final), f"run {run_id} was recorded {len(final)} times; {_agreement(final)}")


def _agreement(members: Sequence[RunRecord]) -> str:
    outcomes: dict[str, list[object]] = {"status": [record.status for record in members]}
    outcomes |= {name: [record.scores.get(name) for record in members] for record in members for name in record.scores}
    told = [f"{name} {', '.join(map(str, values))}" for name, values in outcomes.items() if len(set(values)) > 1]
    return f"the results differ: {'; '.join(told)}; tables take the newest" if told else "the scores agree"


def _different_data(records: Iterable[RunRecord]) -> Iterator[Finding]:
    """Return findings for runs of the same task, version and options that read different data."""
    by_split: dict[tuple[str, str, str], list[tuple[str, RunRecord]]] = {}
    for record in records:
        task = json.dumps([record.task_card.get("version"), record.spec.task_options], sort_keys=True, default=str)
        for split, part in record.data.items():
            by_split.setdefault((record.spec.task, task, split), []).append((str(part["digest"]), record))
    for (task, _, split), members in by_split.items():
        usual, *others = sorted(grouped(members).items(), key=lambda found: -len(found[1]))
        if others:
            words = (
                f"the {split} split of {task} is not the same in all records: digest {usual[0][:8]} in {len(usual[1])}, such as "
                f"{usual[1][0].source}, but {', '.join(digest[:8] for digest, _ in others)} in these files"
            )
            yield Finding("data differ", _files(record for _, of_digest in others for record in of_digest), words)


def _foreign(records: Iterable[RunRecord]) -> Iterator[Finding]:
    by_protocol = grouped((record.protocol, record) for record in records if record.protocol not in PROTOCOLS)
    for protocol, members in by_protocol.items():
        words = f"the protocol is {protocol}, but this version has {' and '.join(PROTOCOLS)}; such records get tables of their own"
        old = protocol in OLD_PROTOCOLS
        yield Finding("old protocol" if old else "foreign protocol", _files(members), words, harmless=old)


def _left_over(root: Path) -> Iterator[Finding]:
    """Return findings for files of interrupted writers and runs. No command reads them as records, and ``attn-zoo run`` removes
    what it can.
    """
    for path in sorted(root.rglob(".*")):
        kind, words = "leftover", ""
        if path.name.startswith(TRY) or path.name.endswith(HALF):
            words = "left by a write that was cut short; nothing reads it, and attn-zoo run removes it after an hour"
        elif path.name.endswith(CLAIM) and is_claimed(path):
            kind, words = "running", "a process is doing this run now"
        elif path.name.endswith(CLAIM):
            words = "left by a run that was killed; it has no effect, and the same command repeats the run"
        elif path.name.endswith(CHECKPOINT) and Store(root).is_over(path):
            words = "the checkpoint of a run that is recorded; the next attn-zoo run removes it"
        elif path.name.endswith(CHECKPOINT):
            kind, words = "checkpoint", "left by a run that was cut short; run the same command again to resume"
        elif path.name.endswith(UNUSED):
            words = "a checkpoint that could not be used; nothing reads it, and it may be deleted"
        if words:
            yield Finding(kind, (path.relative_to(root).as_posix(),), words, harmless=True)
