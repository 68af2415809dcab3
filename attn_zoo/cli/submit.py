"""``attn-zoo submit``: check your records, compare them with the results, and write a folder for a pull request that adds them."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

from attn_zoo import plugin_files, reference
from attn_zoo.cli.check import prove
from attn_zoo.cli.compare import place
from attn_zoo.escapes import terminal
from attn_zoo.leaderboard import render
from attn_zoo.leaderboard.community import CODE, COMMUNITY, FILE, TEXT, Submission, folder_name, write_submission
from attn_zoo.leaderboard.refusals import Refusal, beside, is_submitted, refusals
from attn_zoo.records import RecordError, RunRecord, Store
from attn_zoo.records.files import NAME
from attn_zoo.records.verify import verify
from attn_zoo.registry import attentions, card, load_plugin
from attn_zoo.rows import RowName
from attn_zoo.terminal import colours_here, wrap

_WHAT_TO_DO = (
    "What to do: mend what each line names. attn-zoo compare ./mine.py, with the file of your mechanism, makes runs that can be "
    "submitted, and prints the folder of their records. Then give attn-zoo submit again, with this folder and --plugin ./mine.py."
)
"""Last line of a refusal: how to make records that keep the rules."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``attn-zoo submit``."""
    parser.description = (
        "Check the records of a folder by the rules for results of other people, and run the conformance tests on the mechanisms. "
        "Print how they compare with our results, and write a folder with the records, the code and the text of a pull request. "
        "If FOLDER was written by this command, only check it again. Exit status: 1 if a rule is broken."
    )
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="folder of records, or a folder that this command wrote")
    parser.add_argument("--name", help="your name, which the tables print")
    parser.add_argument("--paper", help="paper of the mechanism, such as 'Doe 2026, arXiv:2601.00001', or 'none'")
    where = f"new folder to write (default: {COMMUNITY}/DATE-MECHANISMS)"
    parser.add_argument("--output", type=Path, metavar="FOLDER", help=where)
    parser.set_defaults(handler=_submit)


def _submit(parsed: argparse.Namespace) -> int:
    """Check the submission, show where its rows would stand, and write its folder.

    Raises:
        ValueError: an option is missing or has no use, or there is no record.
        FileExistsError: the folder to write is there already.
        OSError: a folder cannot be read or written.
    """
    written = (parsed.folder / FILE).exists()
    about, paths = _read(parsed) if written else _given(parsed)
    shipped = [record for name in reference.shipped() for record in Store(reference.packed_file(name)).load()[0]]
    try:
        records, found = _judged(parsed.folder / NAME if written else parsed.folder, shipped)
    except RecordError as error:  # of a packed file
        records, found = [], [Refusal(error.kind, str(error))]
    found += _of_files(parsed.folder) if written else ()
    output = parsed.output or COMMUNITY / folder_name(about, records)
    if not written and output.exists():
        raise FileExistsError(f"--output must name a new folder, because nothing is overwritten; {str(output)!r} exists already")
    if found := [*found, *_of_code(records, paths)]:
        lines = [terminal(f"{refusal.kind}: {refusal.words}") for refusal in found]
        lines += [f"Not accepted: {len(found)} rule{'s are' if len(found) > 1 else ' is'} broken.", _WHAT_TO_DO]
        print(wrap("\n".join(lines)))
        return 1
    made = beside(records, shipped)
    places = [place(row, table) for table in made for row in table.rows if is_submitted(row)]
    print(f"{render(made, 'terminal', overview=True, colours=colours_here())}\n")
    print("\n".join(map(wrap, map(terminal, places))))
    print(wrap(f"Every rule is kept: {len(records)} records. Not checked: whether somebody else gets these scores."))
    if not written:
        write_submission(output, about, records, paths, places)
        print(wrap(terminal(f"Written: {output}. Open a pull request that adds it to {COMMUNITY}; {TEXT} in it is the text.")))
    return 0


def _given(parsed: argparse.Namespace) -> tuple[Submission, list[Path]]:
    """Return the submission and the code that the options name.

    Raises:
        ValueError: the name or the paper is missing, or breaks its rule.
    """
    if not (parsed.name and parsed.paper):
        raise ValueError("--name and --paper must be given, because the table prints both. Write --paper none if there is no paper")
    return Submission(parsed.name, parsed.paper, datetime.now(UTC).date()), [Path(path) for path in parsed.plugin or []]


def _read(parsed: argparse.Namespace) -> tuple[Submission, list[Path]]:
    """Return the submission and the code of a folder that the command wrote. The code is loaded.

    Raises:
        ValueError: an option is given as well, the file of the submission is wrong, or the code cannot be loaded.
    """
    if given := [name for name in ("name", "paper", "plugin", "output") if getattr(parsed, name)]:
        raise ValueError(
            f"--{given[0]} must not be given, because {parsed.folder} is a submission and already holds its name, paper and code. "
            "Leave it out"
        )
    about = Submission.read(parsed.folder)
    paths = sorted(path for path in (parsed.folder / CODE).glob("*") if path.name != "__pycache__")
    for path in paths:
        load_plugin(path)
    return about, paths


def _judged(root: Path, shipped: Sequence[RunRecord]) -> tuple[list[RunRecord], list[Refusal]]:
    """Return the records of a folder or packed file, and the rules that they break.

    Raises:
        ValueError: there is no record.
        RecordError: the packed file is damaged or edited.
    """
    verdict, (records, _) = verify(root), Store(root).load()
    if not records and verdict.clean:
        raise ValueError(f"{root} must hold records of runs, but holds none. Make records with attn-zoo compare or attn-zoo run")
    return records, refusals(records, shipped, verdict)


def _of_files(folder: Path) -> Iterator[Refusal]:
    """Yield a refusal if the folder has files that the command did not write."""
    if other := sorted({path.name for path in folder.iterdir()} - {FILE, TEXT, NAME, CODE}):
        yield Refusal("files", f"{folder} must hold what attn-zoo submit wrote and nothing else; remove {', '.join(other)}")


def _of_code(records: Sequence[RunRecord], paths: Sequence[Path]) -> Iterator[Refusal]:
    """Yield refusals of code: each mechanism must be ours, or in a plugin that made the records and passes the conformance
    tests."""
    try:
        names = dict.fromkeys(name for record in records for name in RowName(record.spec.attention).turn)
    except ValueError as error:
        yield Refusal("names", str(error))
        return
    give = "give its file or folder with --plugin PATH. It must also pass attn-zoo check --strict"
    for name in names:
        if name not in attentions():
            yield Refusal("plugin", f"{name} must be registered by the code; {give}")
            continue
        if (entry := card(name)).origin.startswith("attn_zoo."):
            continue
        file = plugin_files.file_of(sys.modules.get(entry.build.__module__))
        homes = [path for path in paths if file and file.is_relative_to(path.resolve())]
        if not file or not homes:
            yield Refusal("plugin", f"the code of {name} must be submitted; {give}")
            continue
        package = plugin_files.package_of(file)  # records of an installed plugin have its digest
        whole = [package for path in homes if package.is_relative_to(path.resolve())]
        now = {plugin_files.digest(path) for path in (*homes, *whole)}
        if any(not now & ran for ran in _plugins_of(records, name)):
            words = "must be the file or folder that the records were made with, but it is another one or has changed since"
            yield Refusal("plugin", f"{homes[0]} {words}; run them again")
        if not (report := prove(entry)).ok or report.unknown:
            print(wrap(str(report)))
            failed = "its definition is missing" if report.ok else "a check fails"
            yield Refusal("conformance", f"{name} must pass attn-zoo check --strict, but {failed}; see the report above")


def _plugins_of(records: Sequence[RunRecord], name: str) -> Iterator[set[str]]:
    """Yield the digests of the plugins of each part of each run of a mechanism."""
    for record in records:
        if name in RowName(record.spec.attention).turn:
            for part in (record.environment, *record.environment.get("resumed", [])):
                if part.get("plugins"):
                    yield set(part["plugins"].values())
