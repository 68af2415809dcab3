"""``attn-zoo compare``: train new mechanisms, and compare them with the recorded mechanisms of the quickstart."""

from __future__ import annotations

import argparse
import hashlib
import inspect
from collections.abc import Sequence
from pathlib import Path

from attn_zoo import reference
from attn_zoo.cli.check import prove
from attn_zoo.cli.config import in_words
from attn_zoo.cli.run import carry_out, plan
from attn_zoo.cli.search import refusal
from attn_zoo.contract import AttentionCard
from attn_zoo.escapes import terminal
from attn_zoo.leaderboard import Row, Table, render, tables
from attn_zoo.leaderboard.metrics import estimated, unit, verdict_sentence
from attn_zoo.leaderboard.reproduce import hydra_value
from attn_zoo.plugin_files import exported_plugins, package_of
from attn_zoo.records import RunRecord, Store
from attn_zoo.registry import card, load_plugin
from attn_zoo.rows import RowName, rows_of
from attn_zoo.terminal import colours_here, wrap

FOLDER = "compare"
"""Default folder of the records. It has a subfolder for each version of the compared code."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``attn-zoo compare``."""
    parser.description = (
        "Train mechanisms with the network, data, budget and seeds of the quickstart, a small comparison whose records come with "
        "the package, and compare them with these records. The conformance tests run first, with the default options. Training "
        "takes a minute or two on two cores. Run the same command again to continue; finished runs are skipped unless the code has "
        "changed."
    )
    words = "file or folder that registers mechanisms, or a configuration: NAME, NAME:IMPLEMENTATION or NAME[OPTION=VALUE,...]"
    parser.add_argument("targets", nargs="+", metavar="PATH | ROW", help=words)
    default = f"folder of the new records (default: {FOLDER}/NAME-DIGEST, with a digest of the source code)"
    parser.add_argument("--records", metavar="FOLDER", help=default)
    parser.add_argument("--no-check", action="store_true", help="train at once, without the conformance tests")
    parser.set_defaults(handler=_compare)


def _compare(parsed: argparse.Namespace) -> int:
    if "quickstart" not in reference.shipped():
        raise ValueError(
            "attn-zoo compare needs the records of the quickstart, but this installation lacks them. Install attn-zoo again"
        )
    rows = named_rows(parsed.targets)
    folder = Path(parsed.records or _folder(rows))
    words = [f"attention={','.join(map(str, rows))}", f"records={hydra_value(str(folder))}", "report=false", "device=cpu"]
    with in_words():
        planned = plan(["-m", "experiment=quickstart", *words])
    names = [] if parsed.no_check else list(dict.fromkeys(name for row in rows for name in row.turn))
    if names:
        print(wrap(f"Checking {', '.join(names)} before training; --no-check leaves this out."), flush=True)
    proved = [_check(card(name)) for name in names]
    refusals = {(job.spec.attention, job.spec.task): refusal(job) for job in planned.jobs}
    for (attention, task), reason in refusals.items():
        if reason:
            print(wrap(terminal(f"{attention} does not support {task}: {reason}")), flush=True)
    status = carry_out(planned, ["attn-zoo", *parsed.command])
    made = tables(with_reference(Store(folder).load()[0]))
    print(f"\n{render(made, 'terminal', overview=True, colours=colours_here())}\n")
    compared = {row.attention for row in rows}
    places = [place(row, table) for table in made for row in table.rows if row.attention in compared]
    print("\n".join(map(wrap, places)))
    print(wrap(f"Records: {folder}. Costs and learning curves: attn-zoo leaderboard --records {folder}"))
    if not all(proved):
        print(wrap("A check failed (see above): the mechanism does not do what its card declares, which may explain its scores."))
    return status or int(not all(proved))


def named_rows(targets: Sequence[str]) -> list[RowName]:
    """Return the mechanisms that the targets name, each with its options. A target is a mechanism or the path of a plugin. If all
    targets are paths, return every mechanism that the plugins register, with default options.

    Raises:
        FileNotFoundError: a path does not exist.
        UnknownNameError: no such mechanism, implementation or option.
        ValueError: a file cannot be loaded, or registers no mechanism.
    """
    paths = [target for target in targets if target.endswith(".py") or "/" in target or Path(target).is_dir()]
    loaded = [entry for path in paths for entry in load_plugin(Path(path))]
    if rows := [target for target in targets if target not in paths]:
        return rows_of(rows, hybrids=True)
    names = [entry.name for entry in loaded if isinstance(entry, AttentionCard)]
    if not names:
        raise ValueError(
            f"attn-zoo compare needs at least one mechanism, but {', '.join(paths)} registers only tasks. Name a mechanism"
        )
    return rows_of(dict.fromkeys(names))


def with_reference(records: Sequence[RunRecord]) -> list[RunRecord]:
    """Return the given records, and the records of the quickstart that come with the package. A quickstart record is left out if
    a given record is of the same run."""
    anew = {record.run_id for record in records}
    shipped = Store(reference.packed_file("quickstart")).load()[0]
    return [*(record for record in shipped if record.run_id not in anew), *records]


def place(row: Row, table: Table) -> str:
    """Return one line of text about a mechanism (``row``) in a table: its test score on the task, and the verdict of the comparison
    with other mechanisms. If the mechanism has no score, the line says why."""
    start = f"{row.label} on {table.task['title']}: "
    if row.test is None:
        return start + "; ".join(map(str, row.failures))
    score = f"{estimated(row.test, table)}{unit(table, ' %')}"
    told = verdict_sentence(row, table)
    return f"{start}{score}{', ' * bool(told)}{told}"


def _folder(rows: Sequence[RowName]) -> str:
    """Return the default folder, named after the mechanisms and a digest of the files that define them."""
    names = list(dict.fromkeys(name for row in rows for name in row.turn))
    files = dict.fromkeys(file for name in names for file in _files(card(name)))
    source = b"".join(file.read_bytes() for file in files)
    return f"{FOLDER}/{'-'.join(names)}-{hashlib.sha256(source).hexdigest()[:8]}"


def _files(entry: AttentionCard) -> list[Path]:
    """Return the Python files that define a mechanism: its own file or, if it is not ours, all files of its package or folder."""
    file = Path(inspect.getfile(entry.build))
    if entry.origin.startswith("attn_zoo."):
        return [file]
    root = package_of(file.resolve())
    if root.is_file():
        root = next((path for path in exported_plugins() if root.is_relative_to(path)), root)
    return sorted(root.rglob("*.py")) if root.is_dir() else [root]


def _check(entry: AttentionCard) -> bool:
    """Run the conformance tests with the default options, print the report without skipped checks, and return True if all
    passed."""
    report = prove(entry, defaults=True)
    print(wrap("\n".join(line for line in str(report).split("\n") if not line.startswith("  skipped"))), flush=True)
    return report.ok
