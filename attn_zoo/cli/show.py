"""``attn-zoo show``: print the details of one row of the leaderboard, or of one run."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from attn_zoo.cli.parsing import ADVICE
from attn_zoo.cli.records_of import add_reference, loaded, records_of, records_root
from attn_zoo.escapes import terminal_lines
from attn_zoo.leaderboard.show import describe, find, rows_of
from attn_zoo.records import RunRecord
from attn_zoo.terminal import columns


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``attn-zoo show``."""
    parser.description = "Print what a reviewer checks in one configuration of the leaderboard or in one run."
    row = "NAME or NAME[OPTION=VALUE,...], optionally with @TASK; a run id (its first six digits suffice); or the path of a record"
    parser.add_argument("row", metavar="ROW", help=row)
    add_reference(parser)
    parser.add_argument("--json", action="store_true", help="print the records of the runs as JSON, with all that is recorded")
    parser.set_defaults(handler=_show, **{ADVICE: f". ROW is {row}. To see a task, use attn-zoo list haystack"})


def _show(parsed: argparse.Namespace) -> int:
    path = Path(parsed.row)
    found = rows_of(records_of(path)[0]) if path.is_file() else find(parsed.row, _recorded(records_root(parsed)))
    if parsed.json:
        print(json.dumps([record.to_dict() for _, row in found for record in row.runs], indent=1, sort_keys=True))
    else:
        print(terminal_lines(f"\n\n{'=' * columns()}\n\n".join(describe(table, row) for table, row in found)))
        print("\n--json prints all that is recorded.")
    return 0


def _recorded(root: Path) -> list[RunRecord]:
    """Return the records of a folder or packed file.

    Raises:
        FileNotFoundError: the folder does not exist, or holds no records.
    """
    if records := loaded(root):
        return records
    lacks = "holds no records" if root.exists() else "does not exist"
    raise FileNotFoundError(
        f"the folder of records {str(root)!r} {lacks}. Name your own folder with --records FOLDER, or add --reference to read "
        "the records of the package"
    )
