"""Options ``--all`` and ``--exhaustive`` of the suite, and hooks and fixtures of all tests.

If pytest-xdist is installed, tests run in two processes with one thread each, because the waiting of threads for each other costs
more than they save. Without a GPU, Triton kernels run in Triton's interpreter, which must be set before Triton is first imported.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import importlib.util
import os
import re
import shutil
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"  # before torch is imported, and for the processes that tests start
os.environ["COLUMNS"] = "100"  # fixes the width of tables
os.environ["OPENBLAS_NUM_THREADS"] = "1"  # numpy's threads, which Triton's interpreter uses, compete with torch's

if "ATTN_ZOO_CACHE" not in os.environ:  # a user's cache may be from another version; xdist workers share this one
    os.environ["ATTN_ZOO_CACHE"] = tempfile.mkdtemp(prefix="attn-zoo-tests-")
    atexit.register(shutil.rmtree, os.environ["ATTN_ZOO_CACHE"], ignore_errors=True)

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a shell starts background processes with SIGINT ignored
    signal.signal(signal.SIGINT, signal.default_int_handler)

import pytest
import torch
from extras import of_absent
from tiers import COLLECTED, EXHAUSTIVE, NAMED, PLAIN, TIERS, in_halves, leave_out, selected, tier_of, tier_of_path

from attn_zoo import deaths, registry

torch.set_num_threads(1)
mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
if mallopt is not None:  # glibc returns large tensors to the kernel at once, and their page faults take a tenth of the tests' time
    for parameter, size in ((-1, 2**31 - 1), (-3, 2**30)):  # M_TRIM_THRESHOLD and M_MMAP_THRESHOLD
        mallopt(parameter, size)
gc.set_threshold(20_000)  # with so many imports, garbage collection at every 700 objects takes a tenth of the tests' time
if importlib.util.find_spec("triton") is None:
    collect_ignore = ["benchmarks", "kernels"]
elif not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # before anything imports Triton, as timm does
    import interpreter

    interpreter.repair()


WORKERS = 2
MOVE = "a test that needs an extra is in the tier extras, or of peers"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options ``--all`` and ``--exhaustive``, which select tiers beyond the plain one."""
    tiers = "; ".join(f"{name}: {meaning}" for name, meaning in TIERS.items())
    parser.addoption(
        "--all",
        action="store_const",
        const="all",
        default=PLAIN,
        dest="level",
        help=f"run every tier but {EXHAUSTIVE}, not {PLAIN} alone ({tiers})",
    )
    parser.addoption("--exhaustive", action="store_const", const=EXHAUSTIVE, dest="level", help="run every test")


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> None:
    """Distribute the tests over ``WORKERS`` processes if pytest-xdist is installed, without a given number or --pdb.

    Each process gets one half of the tests, so that it makes most fixtures of a file alone, and takes from the other when done.
    """
    given = config.option
    worker = "PYTEST_XDIST_WORKER" in os.environ  # a worker must not start workers
    if not worker and config.pluginmanager.hasplugin("xdist") and given.numprocesses is None and not given.usepdb:
        given.numprocesses = WORKERS
        given.dist = "worksteal" if given.dist == "no" else given.dist


def pytest_configure(config: pytest.Config) -> None:
    """Register the tiers as markers; select every tier if the command line names tests or a marker."""
    for name, meaning in TIERS.items():
        config.addinivalue_line("markers", f"{name}: {meaning}")
    if (given := getattr(config, "workerinput", None)) is not None:
        config.stash[NAMED], config.option.level = given["named"], given["level"]
        return
    config.stash[NAMED] = named = config.args_source is pytest.Config.ArgsSource.ARGS
    if named or config.option.markexpr:
        config.option.level = EXHAUSTIVE


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Pass the selection of tests to a worker of pytest-xdist."""
    node.workerinput.update(named=node.config.stash[NAMED], level=node.config.option.level)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Do not collect folders and files whose tests are all in a tier that is not selected; their imports take seconds."""
    tier = tier_of_path(collection_path)
    return True if tier is not None and not selected(tier, config.option.level) else None


@pytest.hookimpl(tryfirst=True)
def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Make no tests of cases of the kit that do not run, which are more than half of all tests."""
    leave_out(metafunc, metafunc.config.option.level)


@pytest.hookimpl(tryfirst=True)  # before -m selects by markers
def pytest_collection_modifyitems(config: pytest.Config, items: list[Any]) -> None:
    """Mark each test with its tier, deselect tiers that do not run, and put long tests first in both halves."""
    tiers = [tier_of(item) for item in items]
    config.stash[COLLECTED] = Counter(tiers)
    for item, tier in zip(items, tiers, strict=True):
        item.add_marker(tier)
    level = config.option.level
    config.hook.pytest_deselected(items=[item for item, tier in zip(items, tiers, strict=True) if not selected(tier, level)])
    chosen = [(item, tier) for item, tier in zip(items, tiers, strict=True) if selected(tier, level)]
    order = in_halves([item.path for item, _ in chosen], [tier for _, tier in chosen])
    items[:] = [chosen[at][0] for at in order]
    gc.freeze()  # a million objects of imports and tests, which each full collection would search again


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Skip a file that imports a package of an extra that is not installed, unless it may have tests of the plain tier."""
    report = yield
    info = getattr(report, "call", None)
    if isinstance(collector, pytest.Module) and info is not None and info.excinfo is not None:
        cause: BaseException | None = info.excinfo.value
        while cause is not None and of_absent(cause) is None:
            cause = cause.__cause__ or cause.__context__
        if cause is not None and tier_of_path(collector.path) is not None:
            report.outcome, report.longrepr = "skipped", (str(collector.path), 1, f"Skipped: {of_absent(cause)}")
    return report


@pytest.fixture(autouse=True)
def _no_command_of_another_test(monkeypatch: pytest.MonkeyPatch) -> None:
    """Restore, after each test, the environment variables in which a command names its plugins and remembers rows that died."""
    for name in ("ATTN_ZOO_PLUGIN", deaths.VARIABLE):
        monkeypatch.setenv(name, "")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, None, None]:
    """Skip a test whose fixtures import a package of an extra that is not installed."""
    with skipped_without_packages(item):
        yield


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, None, None]:
    """Skip a test that imports a package of an extra that is not installed."""
    with skipped_without_packages(item):
        yield


@contextmanager
def skipped_without_packages(item: pytest.Item) -> Iterator[None]:
    """Turn the error of a missing optional package into a skip, and in the plain tier, which must need none, into a failure."""
    try:
        yield
    except ModuleNotFoundError as error:
        if (reason := of_absent(error)) is None:
            raise
        pytest.fail(f"{reason}; {MOVE}") if item.get_closest_marker(PLAIN) else pytest.skip(reason)
    except pytest.skip.Exception as skipped:
        if item.get_closest_marker(PLAIN) and re.search("could not import|not installed", str(skipped)):
            pytest.fail(f"{skipped}; {MOVE}")
        raise


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder to work in; what is registered and imported there is forgotten afterwards."""
    registry.load_plugins()  # before the copies are made, since the built-in entries register once
    for name in ("_ATTENTIONS", "_TASKS", "_LOADED", "_FAILURES"):
        monkeypatch.setattr(registry, name, getattr(registry, name).copy())
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    before = set(sys.modules)
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    for name in set(sys.modules) - before:
        if str(tmp_path) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]
