"""``attn-zoo data``: which data sets tasks read, whether they are there, whole and sound, and fetching those that can be."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from attn_zoo import registry
from attn_zoo.contract import DamagedDataError, DataSet, MissingDataError, UnknownNameError
from attn_zoo.data import data_root, sha256
from attn_zoo.terminal import WIDE, fit, wrap


def fill(parser: argparse.ArgumentParser) -> None:
    """Say what the command takes."""
    actions = parser.add_subparsers(required=True, metavar="ACTION")
    for action, said, count in (
        ("list", "every data set that a task reads, and whether it is there", None),
        ("prepare", "fetch the named ones that can be fetched, and read them through", "+"),
        ("verify", "read data through, file by file; without names all that is there", "*"),
    ):
        below = actions.add_parser(action, help=said)
        below.add_argument("--root", default="", metavar="FOLDER", help="data folder (default: $ATTN_ZOO_DATA, else data)")
        if action == "list":
            below.add_argument("--wide", action="store_true", help=WIDE)
        if count:
            below.add_argument("names", nargs=count, metavar="NAME")
        below.set_defaults(handler=_data, action=action)


def _data(parsed: argparse.Namespace) -> int:
    if parsed.action == "list":
        return data_list(parsed.root, parsed.wide)
    return (data_prepare if parsed.action == "prepare" else data_verify)(parsed.names, parsed.root)


def data_list(root: str, wide: bool = False) -> int:
    """Print every data set, the tasks that read it, and where it stands. Returns the exit status."""
    folder = data_root(root)
    rows = []
    for dataset, tasks in _known().values():
        layout = dataset.layout(folder)
        state = layout.title if layout else "missing"
        rows.append(
            [dataset.name, state, "yes" if dataset.download else "by hand", ", ".join(tasks), dataset.licence, dataset.source]
        )
    head = ["data set", f"in {folder}", "fetched", "tasks", "licence", "source"]
    print(fit(rows, head, optional=["source", "licence"], whole=["data set"], wide=wide))
    print("\n" + wrap("'attn-zoo data prepare NAME' fetches one that can be fetched, and says of any other what to put where."))
    return 0


def data_prepare(names: Sequence[str], root: str) -> int:
    """Fetch the named data sets unless they are there, and read each one through. Returns the exit status.

    Raises:
        UnknownNameError: no task reads a data set of this name.
    """
    folder = data_root(root)
    failed = 0
    for dataset in _chosen(names):
        try:
            if dataset.layout(folder) is None and dataset.download is not None:
                print(f"{dataset.name}: fetching into {folder}", flush=True)
                folder.mkdir(parents=True, exist_ok=True)
                dataset.download(folder)
            print(f"{dataset.name}: {_read_through(dataset, folder)}", flush=True)
        except (MissingDataError, DamagedDataError) as error:
            failed += 1
            print(f"{dataset.name}: {error}", flush=True)
        except (OSError, RuntimeError, ImportError, ValueError) as error:  # a download that libraries gave up
            failed += 1
            print(f"{dataset.name}: not fetched: {type(error).__name__}: {error}", flush=True)
    return 1 if failed else 0


def data_verify(names: Sequence[str], root: str) -> int:
    """Read data sets through, all that are there unless some are named. Returns the exit status.

    Raises:
        UnknownNameError: no task reads a data set of this name.
    """
    folder = data_root(root)
    chosen = _chosen(names) if names else [dataset for dataset, _ in _known().values() if dataset.layout(folder)]
    failed = 0
    for dataset in chosen:
        try:
            print(f"{dataset.name}: {_read_through(dataset, folder)}", flush=True)
        except (MissingDataError, DamagedDataError) as error:
            failed += 1
            print(f"{dataset.name}: {error}", flush=True)
    if not chosen:
        print(f"no data set that a task reads is in {folder}; see 'attn-zoo data list'")
    return 1 if failed else 0


def _read_through(dataset: DataSet[Any], folder: Path) -> str:
    """What is there, every file of it read and checked."""
    dataset.load(folder)
    layout = dataset.layout(folder)
    assert layout is not None
    known = {path: layout.sha256.get(path.relative_to(folder).as_posix()) for path in layout.paths(folder) if path.is_file()}
    same = sum(digest == sha256(path) for path, digest in known.items() if digest)
    stated = sum(digest is not None for digest in known.values())
    digests = f"; {same} of {stated} files have the usual digest" if stated else ""
    return f"sound ({layout.title}{digests})"


def _known() -> dict[str, tuple[DataSet[Any], list[str]]]:
    """Every data set on a task's card, and the tasks that name it."""
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
