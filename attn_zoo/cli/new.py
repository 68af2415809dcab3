"""``attn-zoo new``: write a new Python package that registers a mechanism or a task of your own."""

from __future__ import annotations

import argparse
from pathlib import Path

from attn_zoo.scaffold import Kind, write_package


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``attn-zoo new``."""
    parser.description = (
        "Write an installable package with a mechanism (with --task: a task) and its tests. The package passes every check as it "
        "is; replace its computation by your own. Existing files are not overwritten."
    )
    name = "name of the package and of its mechanism or task: lower-case ASCII letters, digits, underscores"
    parser.add_argument("name", metavar="NAME", help=name)
    parser.add_argument("--task", action="store_true", help="write a task instead of a mechanism")
    parser.add_argument(
        "--class", dest="class_name", metavar="CLASS", help="name of the class (default: from NAME, MyTask for my_task)"
    )
    parser.add_argument("--output", type=Path, metavar="FOLDER", help="new or empty folder for the package (default: ./NAME)")
    parser.set_defaults(handler=_new)


def _new(parsed: argparse.Namespace) -> int:
    """Write the package and say what to do next.

    Raises:
        ValueError: a name is invalid or taken, or the folder is not empty.
        OSError: the folder cannot be written.
    """
    kind: Kind = "task" if parsed.task else "attention"
    folder = parsed.output or Path(parsed.name)
    written = write_package(kind, parsed.name, folder, parsed.class_name)
    overrides = f"task={parsed.name}" if parsed.task else f"attention={parsed.name} task=digits"
    print(f"{kind} {parsed.name} in {folder}:")
    print("\n".join(f"  {path.as_posix()}" for path in written))
    then = [f"pip install -e {folder}", f"attn-zoo check {parsed.name}", f"pytest {folder}", f"attn-zoo run {overrides}"]
    print("\n  ".join(["\nnext:", *then]))
    return 0
