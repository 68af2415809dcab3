"""``attn-zoo data``: list, download and check the data sets that tasks use."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from attn_zoo import registry
from attn_zoo.contract import DamagedDataError, DataSet, MissingDataError, UnknownNameError
from attn_zoo.data import data_root
from attn_zoo.escapes import terminal
from attn_zoo.terminal import WIDE, fit, wrap


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``attn-zoo data``."""
    parser.description = "List, fetch or verify the data sets that tasks read."
    actions = parser.add_subparsers(required=True, metavar="ACTION")
    for action, run, said, count in (
        ("list", _list, "list the data sets that tasks read, and which of them are present", None),
        ("prepare", _prepare, "fetch the named data sets if they can be downloaded, and check every file", "+"),
        ("verify", _verify, "read and check data sets file by file (default: all that are present)", "*"),
    ):
        below = actions.add_parser(action, help=said, description=f"{said[0].upper()}{said[1:]}.")
        below.add_argument("--root", default="", metavar="FOLDER", help="data folder (default: $ATTN_ZOO_DATA, else data)")
        if action == "list":
            below.add_argument("--wide", action="store_true", help=WIDE)
        if count:
            below.add_argument("names", nargs=count, metavar="NAME", help="name of a data set, as attn-zoo data list prints it")
        below.set_defaults(handler=run)


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
    return _read(_chosen(parsed.names), data_root(parsed.root), fetch=True)


def _verify(parsed: argparse.Namespace) -> int:
    folder = data_root(parsed.root)
    chosen = _chosen(parsed.names) or [dataset for dataset, _ in _known().values() if dataset.layout(folder)]
    if not chosen:
        print(f"no data set that a task reads is in {folder}; see 'attn-zoo data list'")
    return _read(chosen, folder, fetch=False)


def _read(datasets: Sequence[DataSet[Any]], folder: Path, *, fetch: bool) -> int:
    """Read and check data sets, and print their state. If ``fetch``, download missing ones first. Return 1 if one failed, otherwise
    0."""
    failed = 0
    for dataset in datasets:
        try:
            if fetch and dataset.layout(folder) is None and dataset.download is not None:
                print(f"{dataset.name}: fetching into {folder}", flush=True)
                folder.mkdir(parents=True, exist_ok=True)
                dataset.download(folder)
            said = _read_through(dataset, folder)
        except (MissingDataError, DamagedDataError) as error:
            failed, said = 1, str(error)
        except (OSError, RuntimeError, ImportError, ValueError) as error:  # a library gave up the download
            failed, said = 1, f"not {'fetched' if fetch else 'read'}: {type(error).__name__}: {error}"
        print(terminal(f"{dataset.name}: {said}"), flush=True)
    return failed


def _read_through(dataset: DataSet[Any], folder: Path) -> str:
    """Read and check every file of a data set, and return its layout in words."""
    content = dataset.load(folder)
    layout = dataset.layout(folder)
    assert layout is not None
    if layout.read_rest is not None:
        layout.read_rest(content)
    return f"sound ({layout.title})"


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
