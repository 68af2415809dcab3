"""A row that ends its process is a record after a second try; the other rows run, and the same command does not try it again."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from hostile_plugins import write
from patience import HANG
from test_rows_apart import SMALL

from attn_zoo.records import RunRecord, Store
from attn_zoo.runner.patience import place_of_hang

START = """
import sys
from attn_zoo.cli import main
sys.exit(main())
"""
"""The command as a shell starts it."""

ENDS = {
    "status": ("os._exit(0)", "failed", "the process ended with status 0, 2 times"),
    "segfault": ("os.kill(os.getpid(), signal.SIGSEGV)", "failed", "the process ended by SIGSEGV, 2 times"),
    "killed": (
        "os.kill(os.getpid(), signal.SIGKILL)",
        "out_of_memory",
        "the process was killed, probably for lack of memory, 2 times",
    ),
    "closes": ("os.closerange(0, 256)", "failed", "the process ended with status 1, 2 times"),
    "limits": (
        "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (0, 0))",
        "failed",
        "the process ended with status 1, 2 times",
    ),
    "leaves": ("sys.exit()", "failed", "SystemExit: "),
    "interrupts": ("raise KeyboardInterrupt", "failed", "KeyboardInterrupt: "),
}
"""Code that ends the process of its row, with the status and the beginning of the reason in its record."""
ENDS_NOTHING = {"stops": "os.kill(os.getpid(), signal.SIGSTOP)", "forks": "OPEN or OPEN.append(os.fork()); assert OPEN[0]"}
"""Code that stops the process of its row, or forks one that fails, and goes on."""


def zoo(*words: str, folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", START, *words]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=HANG, check=False)


def recorded(folder: Path) -> dict[str, RunRecord]:
    records, damaged = Store(folder / "runs").load()
    assert damaged == [] and len({record.run_id for record in records}) == len(records)
    return {record.spec.attention: record for record in records}


@pytest.mark.parametrize(
    ("launcher", "ends"),
    [
        ([], ["killed", "leaves"]),
        pytest.param(["launch=joblib", "workers=2"], ["segfault", "interrupts"], marks=pytest.mark.exhaustive),
        pytest.param([], ["status", "closes", "limits"], marks=pytest.mark.exhaustive),
    ],
    ids=["serial", "joblib", "files"],
)
def test_rows_that_end_their_process_are_records_and_the_others_run(launcher, ends, tmp_path):
    plugins = [f"plugin={write(tmp_path, name, ENDS[name][0], 'backward')}" for name in ends]
    fails = f"plugin={write(tmp_path, 'fails', 'raise ValueError', 'attend')}"
    rows, words = ",".join([*ends, "none"]), [*plugins, *SMALL, "budget.max_seconds=1", *launcher]
    first = zoo("run", "-m", f"attention=softmax,fails,{rows}", fails, *words, folder=tmp_path)
    assert first.returncode == 1, first.stderr
    found = recorded(tmp_path)  # once each, also the row that fails, although other processes of the command went on
    assert set(found) == {"softmax", "fails", "none", *ends} and found["fails"].status == "failed"
    assert {found[name].status for name in ("softmax", "none")} == {"done"}
    for name in ends:
        _, status, reason = ENDS[name]
        assert found[name].status == status and str(found[name].reason).startswith(reason), found[name].reason
        assert "the run is tried once more" in first.stdout + first.stderr
    again = zoo("run", "-m", f"attention=softmax,{rows}", *words, folder=tmp_path)
    assert again.returncode == 1 and recorded(tmp_path) == found, again.stderr
    assert again.stdout.count("To try it again, delete its record or give another records=FOLDER") == len(ends)


@pytest.mark.parametrize(
    "launcher", [[], pytest.param(["launch=joblib", "workers=2"], marks=pytest.mark.exhaustive)], ids=["serial", "joblib"]
)
def test_rows_that_stop_or_fork_their_process_are_recorded_once(launcher, tmp_path):
    plugins = [f"plugin={write(tmp_path, name, code, 'init')}" for name, code in ENDS_NOTHING.items()]
    rows = f"attention={','.join(['softmax', *ENDS_NOTHING])}"
    ended = zoo("run", "-m", rows, *plugins, *SMALL, *launcher, folder=tmp_path)
    assert ended.returncode == 0, ended.stderr
    assert {name: record.status for name, record in recorded(tmp_path).items()} == dict.fromkeys(["softmax", *ENDS_NOTHING], "done")


HANGING = """
import sys, time
from pathlib import Path
from attn_zoo import deaths
from attn_zoo.runner.patience import beat, watched
deaths.GRACE = 0.5
def hang():
    time.sleep(1000)
with watched(0.5, Path(sys.argv[1])):
    beat()
    hang()
"""


def test_a_process_whose_call_never_returns_is_ended_and_the_place_is_known(tmp_path):
    ended = subprocess.run([sys.executable, "-c", HANGING, tmp_path / "claim"], timeout=HANG, check=False)
    assert ended.returncode == 1
    assert str(place_of_hang(tmp_path / "claim")).startswith("hang, <string>:")
    assert place_of_hang(tmp_path / "none") is None
