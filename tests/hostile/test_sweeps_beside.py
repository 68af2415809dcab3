"""The scores of softmax are the same, to the bit, alone and beside hostile plugins: with every launcher, and killed often."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from itertools import product
from pathlib import Path

import pytest
from hostile_plugins import HARMS, PLACES, write
from patience import HANG
from test_dying_rows import START, recorded, zoo
from test_rows_apart import SMALL, facts

PAIRS = list(product(HARMS, PLACES))
"""Every kind of harm at every place."""


def words(folder: Path, pairs: list[tuple[str, str]], *launcher: str) -> list[str]:
    """Words of a sweep of softmax after, between and before plugins that do this harm."""
    plugins = {f"{kind}_{place}": write(folder, f"{kind}_{place}", HARMS[kind].code, place) for kind, place in pairs}
    names, half = list(plugins), len(plugins) // 2
    rows = ",".join([*names[:half], "softmax", *names[half:], "reformer"])
    return ["run", "-m", f"attention={rows}", *(f"plugin={path}" for path in plugins.values()), *SMALL, *launcher]


@pytest.fixture(scope="module")
def alone(tmp_path_factory) -> dict[str, object]:
    folder = tmp_path_factory.mktemp("alone")
    assert zoo("run", "-m", "attention=softmax,reformer", *SMALL, folder=folder).returncode == 0
    return {name: facts(record) for name, record in recorded(folder).items()}


LAUNCHERS = {"serial": [], "joblib": ["launch=joblib", "workers=2"]}
LAUNCHERS |= {name: [f"launch={name}", "workers=2"] for name in ("submitit_local", "ray")}
ENOUGH = "joblib"
"""Launcher with which hostile plugins are run before the exhaustive tier; test_dying_rows.py has a serial sweep."""


@pytest.mark.parametrize(
    "launcher", [pytest.param(name, marks=() if name == ENOUGH else pytest.mark.exhaustive) for name in LAUNCHERS]
)
def test_rows_beside_hostile_plugins_score_as_alone(launcher, alone, tmp_path):
    pairs = PAIRS[::35]
    ended = zoo(*words(tmp_path, pairs, *LAUNCHERS[launcher]), folder=tmp_path)
    found = recorded(tmp_path)
    assert set(found) == {f"{kind}_{place}" for kind, place in pairs} | set(alone), ended.stderr
    assert {name: facts(found[name]) for name in alone} == alone


@pytest.mark.exhaustive
def test_kills_of_a_sweep_beside_a_hundred_hostile_plugins_lose_no_row(alone, tmp_path):
    moments, pairs, kept, killed = random.Random(43), PAIRS[:: len(PAIRS) // 100][:100], dict[str, bytes](), 0
    command = [sys.executable, "-c", START, *words(tmp_path, pairs)]
    while killed < 40:
        process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(moments.uniform(0, 20))
        killed += process.poll() is None
        process.kill()
        process.wait(HANG)
        found = {path.name: path.read_bytes() for path in (tmp_path / "runs").glob("*.json")}
        assert kept.items() <= found.items(), "what was recorded is there, to the bit"
        kept = found
    subprocess.run(command, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=10 * HANG, check=False)
    rows = recorded(tmp_path)
    assert set(rows) == {f"{kind}_{place}" for kind, place in pairs} | set(alone)
    assert {name: facts(rows[name]) for name in alone} == alone
