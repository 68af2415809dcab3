"""``attn-zoo records``: check a folder of records, pack it into one file, or repeat some of its runs and compare the scores."""

from __future__ import annotations

import argparse
import os
import random
import shlex
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from attn_zoo.checks import check_number
from attn_zoo.cli.records_of import FOLDER, add_records, name_left_out, records_of, records_root
from attn_zoo.escapes import terminal
from attn_zoo.leaderboard.reproduce import command, hydra_value
from attn_zoo.records import PROTOCOLS, RunRecord, Store
from attn_zoo.records.files import NAME
from attn_zoo.records.verify import Finding, verify
from attn_zoo.terminal import wrap

_CELLS = 10
_DECIDE = ("cpu", "gpu", "threads", "denormals_flushed", "torch", "numpy")
"""Keys of a record's ``environment`` whose values can change the last bits of a score."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``attn-zoo records``."""
    parser.description = "Check, pack or unpack a folder of records, or repeat some of its runs."
    actions = parser.add_subparsers(required=True, metavar="ACTION")
    checking = actions.add_parser(
        "verify",
        help="find files that are damaged, duplicate, edited or foreign",
        description="Read every record, and name files that are damaged, duplicate, edited by hand, made with other data or "
        "another protocol, or left by an interrupted write. Nothing is changed. Exit status: 0 if nothing is wrong, else 1. To "
        "merge folders, copy their files into one folder.",
    )
    add_records(checking)
    checking.set_defaults(handler=_verify)
    packing = actions.add_parser(
        "pack",
        help=f"put all records of a folder into one compressed file, {NAME}",
        description=f"Put all records of a folder into one compressed file in it, {NAME}, and remove their files. Every command "
        "reads the folder as before, and new runs are recorded beside the file. Damaged files stay as they are.",
    )
    add_records(packing, or_packed="")
    packing.set_defaults(handler=_pack)
    unpacking = actions.add_parser(
        "unpack",
        help="write each packed record to its own JSON file again",
        description="Write each record of the packed files of a folder to a JSON file of its own, and remove the packed files.",
    )
    add_records(unpacking, or_packed="")
    unpacking.set_defaults(handler=_unpack)
    again = actions.add_parser(
        "rerun",
        help="repeat some of the runs, and compare scores bit for bit",
        description="Draw runs at random from a folder of records, and repeat each with the command that attn-zoo show prints. "
        "Compare all scores bit for bit or, with --within, the test scores. Exit status: 0 if all are equal, 1 if one differs or a "
        "run fails. Equal bits need the same processor, versions and number of threads; the number of threads is set as recorded. "
        "Data are found as attn-zoo run finds them.",
    )
    add_records(again)
    again.add_argument("--cells", type=int, default=_CELLS, metavar="N", help=f"number of runs to draw (default: {_CELLS})")
    again.add_argument("--seed", type=int, default=0, help="seed of the draw (default: 0)")
    within = (
        "test scores that differ by at most this, such as 0.02, count as equal, because machines round differently (default: 0)"
    )
    again.add_argument("--within", type=float, default=0.0, metavar="DIFFERENCE", help=within)
    again.add_argument("--into", type=Path, required=True, metavar="FOLDER", help="new or empty folder for the new records")
    again.set_defaults(handler=_rerun)


def _verify(parsed: argparse.Namespace) -> int:
    root = FOLDER if parsed.records is None else parsed.records
    verdict = verify(root)
    wrong = sum(not finding.harmless for finding in verdict.findings)
    said = "nothing is wrong" if verdict.clean else f"{wrong} finding{'' if wrong == 1 else 's'}"
    counts = f"{_records(verdict.records)} of {verdict.runs} run{'s' * (verdict.runs != 1)}"
    print(wrap(terminal(f"{root}: {counts}; {said}")))
    for finding in verdict.findings:
        print(wrap(_told(finding)))
    return 0 if verdict.clean else 1


def _pack(parsed: argparse.Namespace) -> int:
    store = Store(records_root(parsed))
    path = store.pack()
    records, damaged = store.load()
    name_left_out(damaged)
    print(wrap(terminal(f"{_records(len(records))} in {path}, {path.stat().st_size:,} bytes")))
    return 0


def _unpack(parsed: argparse.Namespace) -> int:
    root = records_root(parsed)
    print(wrap(terminal(f"{_records(len(Store(root).unpack()))} written to {root}")))
    return 0


def _records(count: int) -> str:
    return f"{count} record{'s' * (count != 1)}"


def _told(finding: Finding) -> str:
    """Return the line of a finding with its files below. For a harmless finding, name only the number of files and the first."""
    words, files = terminal(finding.words), [terminal(file) for file in finding.files]
    if finding.harmless and len(files) > 1:
        return f"({finding.kind}) {words}: {len(files)} files, such as {files[0]}"
    name = f"({finding.kind})" if finding.harmless else f"{finding.kind}:"
    return "\n".join([f"{name} {words}", *(f"    {file}" for file in files)])


def _rerun(parsed: argparse.Namespace) -> int:
    if parsed.into.exists() and (not parsed.into.is_dir() or any(parsed.into.iterdir())):
        raise ValueError(
            "--into must be a new or empty folder, because runs that are recorded there would not be repeated; "
            f"{str(parsed.into)!r} is not empty"
        )
    check_number("--within", parsed.within, 0)
    records, damaged = records_of(records_root(parsed))
    name_left_out(damaged)
    drawn = draw(records, parsed.cells, parsed.seed)
    equal = 0
    for at, record in enumerate(drawn, 1):
        label = f"{record.spec.attention} on {record.spec.task}, seed {record.spec.seed}, run {record.run_id}"
        print(wrap(terminal(f"repeating run {at} of {len(drawn)}: {label}")), file=sys.stderr, flush=True)
        said = " ".join(rerun(record, parsed.into, parsed.within))
        equal += not said
        test = repr(record.scores["test"])
        same = f"test score within {parsed.within:g} of {test}" if parsed.within else f"scores equal, test {test}"
        print(wrap(terminal(f"{label}: {said or same}")), flush=True)
    print(f"{equal} of {len(drawn)} runs have equal scores{f', within {parsed.within:g}' if parsed.within else ''}")
    return 0 if equal == len(drawn) else 1


def draw(records: Sequence[RunRecord], cells: int, seed: int) -> list[RunRecord]:
    """Return the records of ``cells`` different runs, drawn at random, or of all runs if there are fewer. The same records and seed
    give the same draw.

    Three kinds of runs are excluded: trials of a hyperparameter search, because settings were chosen by their scores; runs without
    a score; and runs with other training rules (``protocol``) than those of this version.

    Raises:
        ValueError: all runs are excluded, or ``cells`` is less than 1.
    """
    if cells < 1:
        raise ValueError(f"--cells must be at least 1, because it is a number of runs; got {cells}")
    known = {
        record.run_id: record
        for record in records
        if record.status == "done" and not record.is_trial and record.protocol in PROTOCOLS
    }
    if not known:
        raise ValueError(
            f"no run can be repeated: at least one record must have status done and protocol {' or '.join(PROTOCOLS)}, and "
            f"must not be a trial; got {len(records)} other record{'s' * (len(records) != 1)}"
        )
    pool = [known[run_id] for run_id in sorted(known)]
    return random.Random(seed).sample(pool, min(cells, len(pool)))


def rerun(record: RunRecord, into: Path, within: float = 0.0) -> Iterator[str]:
    """Repeat the run of a record. Yield lines of text that say which scores differ, or why there is no new score. If all scores are
    equal, yield nothing.

    The command of the run is executed in a subprocess, which writes the new record into the folder ``into``.

    Args:
        within: difference up to which test scores count as equal; 0 compares all scores bit by bit.
    """
    words = [*shlex.split(command(record.spec))[2:], f"records={hydra_value(str(into))}"]
    threads = str(record.environment.get("threads") or "")
    environment = {**os.environ, **({"OMP_NUM_THREADS": threads} if threads else {})}
    done = subprocess.run(
        [sys.executable, "-P", "-m", "attn_zoo.cli", "run", *words], env=environment, capture_output=True, text=True, check=False
    )
    again = next((found for found in Store(into).load()[0] if found.run_id == record.run_id), None)
    if again is None:
        told = done.stderr.strip().rpartition("\n")[2]
        other_run = "its command means another run now, because its attention, its task or an option has changed"
        yield f"NOT DONE: {told if done.returncode else other_run}"
        return
    if again.status != "done":
        yield f"NOT DONE: {again.status}: {again.reason}"
        return
    names = dict.fromkeys([*record.scores, *again.scores])
    differing = [name for name in names if record.scores.get(name) != again.scores.get(name)]
    near = within > 0 and abs(record.scores["test"] - again.scores["test"]) <= within
    if differing and not near:
        yield f"SCORES DIFFER: {', '.join(f'{name} {record.scores.get(name)} → {again.scores.get(name)}' for name in differing)}"
        then, now = record.environment, again.environment
        pairs = {"implementation": (record.implementation, again.implementation)}
        pairs |= {name: (then.get(name), now.get(name)) for name in (*_DECIDE, "commit")}
        changed = [f"{name} {one} → {other}" for name, (one, other) in pairs.items() if one != other]
        yield f"({', '.join(changed) or 'with the same code, processor, threads and versions'})"
