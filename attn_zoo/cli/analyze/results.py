"""Output of analyses: tables with notes, CSV, JSON and files in a folder."""

from __future__ import annotations

import argparse
import csv
import io
import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from attn_zoo.escapes import csv_cell
from attn_zoo.terminal import show, table, wrap


def add_results(
    parser: argparse.ArgumentParser, files: str, formats: Sequence[str], handler: Callable[[argparse.Namespace], int]
) -> None:
    """Add the options ``--output`` and ``--format`` to the parser of a command, and set the function that runs the command. The
    folder is made first, so that no work is lost if this fails.

    Args:
        files: description of the files that the command writes, for the help text.
    """

    def run(parsed: argparse.Namespace) -> int:
        if parsed.output is not None:
            parsed.output.mkdir(parents=True, exist_ok=True)
        return handler(parsed)

    parser.add_argument("--output", type=Path, metavar="FOLDER", help=f"folder for {files}")
    parser.add_argument("--format", default="terminal", choices=("terminal", *formats))
    parser.set_defaults(handler=run)


def as_json(found: Mapping[str, Any]) -> str:
    """Return the result of an analysis as JSON."""
    return json.dumps(found, indent=1, sort_keys=True)


def as_csv(rows: Iterable[Sequence[Any]]) -> str:
    """Return the rows as CSV, without a line break at the end."""
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows([csv_cell(value) for value in row] for row in rows)
    return out.getvalue().rstrip("\n")


def as_table(rows: Sequence[Sequence[str]], head: Sequence[str], format: str, notes: Iterable[str], *, left: int = 0) -> str:
    """Return a table as text, with a list of notes below it.

    Args:
        left: how many of the last columns are aligned on the left, besides the first column.
    """
    words = (0, *range(len(head) - left, len(head)))
    return table(head, rows, format, left=words) + "\n\n" + "\n".join(f"- {note}" for note in notes)


def deliver(
    parsed: argparse.Namespace,
    name: str,
    found: Mapping[str, Any],
    text: Callable[[str], str],
    draw: Callable[[Path], Sequence[Path]],
    further: Mapping[str, str] | None = None,
) -> int:
    """Print a result and return the exit status 0. If the option ``--output`` names a folder, also write files into this folder and
    print their names.

    Args:
        name: name of the JSON file, without its suffix.
        found: result of the analysis, which JSON can hold.
        text: function that returns the result in a format other than JSON.
        draw: function that draws pictures into the folder and returns their paths.
        further: further texts to write into the folder, by file name.
    """
    show(as_json(found) if parsed.format == "json" else text(parsed.format), parsed.format)
    if parsed.output is not None:
        drawn, texts = draw(parsed.output), {**(further or {}), f"{name}.json": as_json(found)}
        for name, content in texts.items():
            (parsed.output / name).write_text(content + "\n", encoding="utf-8")
        said = f"written to {parsed.output}: {', '.join([*texts, *(path.name for path in drawn)])}"
        print(wrap(said) if sys.stderr.isatty() else said, file=sys.stderr)
    return 0
