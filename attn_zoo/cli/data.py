"""``attn-zoo data``: list the data sets that tasks use, download them and check their files."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from attn_zoo import registry
from attn_zoo.contract import DamagedDataError, DataSet, MissingDataError, UnknownNameError
from attn_zoo.data import data_root
from attn_zoo.escapes import terminal
from attn_zoo.terminal import WIDE, fit, wrap


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``attn-zoo data``."""
    parser.description = "List the data sets that tasks read, or fetch them and check their files."
    actions = parser.add_subparsers(required=True, metavar="ACTION")
    for action, run, said in (
        ("list", _list, "list the data sets that tasks read, and which of them are present"),
        ("prepare", _prepare, "fetch the named data sets if they are missing and can be downloaded, and check every file"),
    ):
        below = actions.add_parser(action, help=said, description=f"{said[0].upper()}{said[1:]}.")
        below.add_argument("--root", default="", metavar="FOLDER", help="data folder (default: $ATTN_ZOO_DATA, else data)")
        below.set_defaults(handler=run)
        if action == "list":
            below.add_argument("--wide", action="store_true", help=WIDE)
        else:
            below.add_argument("names", nargs="+", metavar="NAME", help="name of a data set, as attn-zoo data list prints it")


def _list(parsed: argparse.Namespace) -> int:
    folder = data_root(parsed.root)
    rows = []
    for dataset, tasks in _known().values():
        layout = dataset.layout(folder)
        state, download = layout.title if layout else "missing", "yes" if dataset.download else "by hand"
        rows.append([dataset.name, state, download, ", ".join(tasks), dataset.licence, dataset.source])
    head = ["data set", f"in {folder}", "download", "tasks", "licence", "source"]
    print(fit(rows, head, optional=["source", "licence"], whole=["data set"], wide=parsed.wide))
    print("\n" + wrap("'attn-zoo data prepare NAME' fetches a data set; where it cannot, it says which files to put where."))
    return 0


def _prepare(parsed: argparse.Namespace) -> int:
    """Download data sets that are missing, read and check all files, and print the state of each data set. Return 1 if one
    failed, otherwise 0."""
    folder, failed = data_root(parsed.root), 0
    for dataset in _chosen(parsed.names):
        try:
            if dataset.layout(folder) is None and dataset.download is not None:
                print(f"{dataset.name}: fetching into {folder}", flush=True)
                folder.mkdir(parents=True, exist_ok=True)
                dataset.download(folder)
            content, layout = dataset.load(folder), dataset.layout(folder)
            assert layout is not None
            if layout.read_rest is not None:
                layout.read_rest(content)
            said = f"sound ({layout.title})"
        except (MissingDataError, DamagedDataError) as error:
            failed, said = 1, str(error)
        except (OSError, RuntimeError, ImportError, ValueError) as error:  # a library gave up the download
            failed, said = 1, f"not fetched: {type(error).__name__}: {error}"
        print(terminal(f"{dataset.name}: {said}"), flush=True)
    return failed


def _known() -> dict[str, tuple[DataSet[Any], list[str]]]:
    """Return the data sets on the cards of tasks by name, each with the tasks that name it."""
    registry.load_plugins()
    found: dict[str, tuple[DataSet[Any], list[str]]] = {}
    for name in registry.task_names():
        for dataset in registry.task_card(name).datasets:
            found.setdefault(dataset.name, (dataset, []))[1].append(name)
    return dict(sorted(found.items()))


def _chosen(names: Sequence[str]) -> list[DataSet[Any]]:
    known = _known()
    for name in names:
        if name not in known:
            raise UnknownNameError("data set", name, known)
    return [known[name][0] for name in names]
