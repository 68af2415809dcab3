"""Attention of a third-party package: listed, checked, run and ranked, without an edit of the zoo."""

from __future__ import annotations

from pathlib import Path

import pytest
from stranger import environment, run

PYPROJECT = """
[build-system]
requires = ["setuptools"]
build-backend = "setuptools.build_meta"
[project]
name = "{package}"
version = "0.0.1"
[project.entry-points."attn_zoo.plugins"]
{package} = "{package}"
[tool.setuptools]
py-modules = ["{package}"]
"""

MINE = """
from dataclasses import dataclass

from attn_zoo import Attention, Capabilities, Cost, register_attention


@dataclass
class Options:
    shift: int = 1


@register_attention(
    "mine", title="Neighbour", paper="nobody 2026", equation="y_i = v_(i - shift)", options=Options,
    can=Capabilities(causal=True, key_padding=True, cross=False, any_length=True),
    time="n d", memory="n d", cost=lambda geometry, options: Cost(flops=0, parameters=0), reads=("value",),
)
class Neighbour(Attention):
    def attend(self, query, key, value, key_valid):
        shifted = value.roll(self.options.shift, dims=2)
        shifted[:, :, : self.options.shift] = 0
        return value + shifted
"""

BROKEN = "import attn_zoo\nraise RuntimeError('it was late')\n"


@pytest.fixture(scope="module")
def programs(tmp_path_factory) -> Path:
    """Executables of a fresh environment that sees this one's packages, with two plugins: a good one and one that raises."""
    home = tmp_path_factory.mktemp("stranger")
    found = environment(home)
    for package, source in (("attn_mine", MINE), ("attn_broken", BROKEN)):
        folder = home / package
        folder.mkdir()
        (folder / "pyproject.toml").write_text(PYPROJECT.format(package=package), encoding="utf-8")
        (folder / f"{package}.py").write_text(source, encoding="utf-8")
        outcome = run(found / "pip", "install", folder, cwd=home)
        assert outcome.returncode == 0, outcome.stderr
    return found


def test_list_shows_the_good_one_and_why_the_broken_one_failed(programs, tmp_path):
    listed = run(programs / "attn-zoo", "list", cwd=tmp_path)
    assert listed.returncode == 0, listed.stderr
    assert any(line.split()[:1] == ["mine"] for line in listed.stdout.splitlines())
    told = run(programs / "attn-zoo", "list", "mine", cwd=tmp_path)
    assert told.returncode == 0 and "nobody 2026" in told.stdout, told.stderr
    assert "softmax" in listed.stdout
    assert "attn_broken" in listed.stdout
    assert "RuntimeError: it was late" in listed.stdout


def test_it_runs_and_stands_in_the_leaderboard(programs, tmp_path):
    small = ["task=listops", "task.length=24", "task.train=200", "task.valid=50", "task.test=50"]  # does not import timm
    small += ["budget.steps=8", "budget.evaluate_every=4", "model.dim=16"]
    ran = run(programs / "attn-zoo", "run", "-m", "attention=mine,softmax", "attention.shift=2", *small, cwd=tmp_path)
    assert ran.returncode != 0, "softmax has no option 'shift', so this sweep must be refused as a whole"
    assert "shift" in ran.stderr
    assert not list(tmp_path.glob("runs/*.json")), "a refused sweep must not begin"

    ran = run(programs / "attn-zoo", "run", "-m", "attention=mine,softmax", *small, cwd=tmp_path)
    assert ran.returncode == 0, ran.stderr
    board = ran.stdout[ran.stdout.index("2 runs") :]
    assert "mine" in board
    assert "softmax" in board
    assert len(list(tmp_path.glob("runs/*.json"))) == 2
