"""Options of the suite (``--all``), and what all tests share.

Tests run in two processes where pytest-xdist is installed: one thread each, since threads that wait for each other cost more than
they give. Without a GPU, Triton's kernels run in its interpreter, which is decided when they are first imported.
"""

from __future__ import annotations

import atexit
import gc
import importlib.util
import os
import shutil
import signal
import tempfile
from collections import Counter
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"  # before torch is imported, and for the processes that tests start
os.environ["COLUMNS"] = "100"  # the width of tables, wherever the suite runs
os.environ["OPENBLAS_NUM_THREADS"] = "1"  # numpy's threads, which the interpreter uses, and torch's fight over the cores

if "ATTN_ZOO_CACHE" not in os.environ:  # what a user's cache holds may come of another version; workers share this one
    os.environ["ATTN_ZOO_CACHE"] = tempfile.mkdtemp(prefix="attn-zoo-tests-")
    atexit.register(shutil.rmtree, os.environ["ATTN_ZOO_CACHE"], ignore_errors=True)

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # so a shell starts what it puts in the background, and what that starts
    signal.signal(signal.SIGINT, signal.default_int_handler)

import pytest
import torch
from extras import missing, of_absent
from tiers import COLLECTED, NAMED, TIERS, tier_of, tier_of_path

torch.set_num_threads(1)
gc.set_threshold(20_000)  # among all that tests have imported, looking for garbage at every 700 objects takes a tenth of their time
if importlib.util.find_spec("triton") is None:
    collect_ignore = ["benchmarks", "kernels"]
elif not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # before anything imports Triton, as timm does
    import interpreter

    interpreter.repair()


WORKERS = 2


def pytest_addoption(parser: pytest.Parser) -> None:
    """The option that adds the tiers."""
    tiers = "; ".join(f"{name}: {meaning}" for name, meaning in TIERS.items())
    parser.addoption(
        "--all", action="store_true", dest="all_tiers", help=f"run every tier of the suite, not the plain one alone ({tiers})"
    )


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> None:
    """Divide the tests between processes where pytest-xdist can and the command line does not say how."""
    given = config.option
    worker = "PYTEST_XDIST_WORKER" in os.environ  # which must not start workers of its own
    if not worker and config.pluginmanager.hasplugin("xdist") and given.numprocesses is None and not given.usepdb:
        given.numprocesses = WORKERS


def pytest_configure(config: pytest.Config) -> None:
    """Register the tiers as markers; tests that were named, or selected by marker, are all wanted."""
    for name, meaning in TIERS.items():
        config.addinivalue_line("markers", f"{name}: {meaning}")
    config.addinivalue_line("markers", "extra(name): needs the packages of an extra, and is skipped without them")
    if (given := getattr(config, "workerinput", None)) is not None:
        config.stash[NAMED], config.option.all_tiers = given["named"], given["all_tiers"]
        return
    config.stash[NAMED] = named = config.args_source is pytest.Config.ArgsSource.ARGS
    config.option.all_tiers = config.option.all_tiers or named or bool(config.option.markexpr)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Tell a worker of pytest-xdist which tests are wanted."""
    node.workerinput.update(named=node.config.stash[NAMED], all_tiers=node.config.option.all_tiers)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out folders and files whose tests are all in a tier that is not wanted; their imports take seconds."""
    return True if not config.option.all_tiers and tier_of_path(collection_path) else None


@pytest.hookimpl(tryfirst=True)  # markers are in place before -m chooses by them
def pytest_collection_modifyitems(config: pytest.Config, items: list[Any]) -> None:
    """Mark each test with its tier; leave the tiers out unless they are wanted."""
    tiers = [tier_of(item) for item in items]
    config.stash[COLLECTED] = Counter(tiers)
    for item, tier in zip(items, tiers, strict=True):
        if tier is not None:
            item.add_marker(tier)
    if config.option.all_tiers:
        return
    left_out = [item for item, tier in zip(items, tiers, strict=True) if tier is not None]
    if left_out:
        items[:] = [item for item, tier in zip(items, tiers, strict=True) if tier is None]
        config.hook.pytest_deselected(items=left_out)


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Skip a file that imports a package of an extra that is not installed."""
    report = yield
    info = getattr(report, "call", None)
    if isinstance(collector, pytest.Module) and info is not None and info.excinfo is not None:
        cause: BaseException | None = info.excinfo.value
        while cause is not None and of_absent(cause) is None:
            cause = cause.__cause__ or cause.__context__
        if cause is not None:
            report.outcome, report.longrepr = "skipped", (str(collector.path), 1, f"Skipped: {of_absent(cause)}")
    return report


@pytest.fixture(autouse=True)
def _no_plugin_of_another_test(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands name the plugins that they load in the environment; here it is as it was after each test."""
    monkeypatch.setenv("ATTN_ZOO_PLUGIN", "")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, None, None]:
    """Skip a test whose extra, or a package that its fixtures import, is not installed."""
    for mark in item.iter_markers("extra"):
        if (reason := missing(*mark.args)) is not None:
            pytest.skip(reason)
    with skipped_without_packages():
        yield


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None, None, None]:
    """Skip a test that imports a package of an extra that is not installed."""
    with skipped_without_packages():
        yield


@contextmanager
def skipped_without_packages() -> Iterator[None]:
    """Turn the error of a missing optional package into a skip."""
    try:
        yield
    except ModuleNotFoundError as error:
        if (reason := of_absent(error)) is None:
            raise
        pytest.skip(reason)
