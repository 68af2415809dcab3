"""``attn-zoo data`` and what is said of data before a run begins."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest

from attn_zoo import registry
from attn_zoo.cli import main
from attn_zoo.cli.data import _known
from attn_zoo.contract import DataSet

MNIST = {
    "train-images-idx3-ubyte": (60_000, 28, 28),
    "train-labels-idx1-ubyte": (60_000,),
    "t10k-images-idx3-ubyte": (10_000, 28, 28),
    "t10k-labels-idx1-ubyte": (10_000,),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A data folder with files of MNIST's form."""
    root = tmp_path_factory.mktemp("root")
    (root / "mnist").mkdir()
    random = np.random.RandomState(0)
    for name, shape in MNIST.items():
        body = random.randint(0, 10 if len(shape) == 1 else 256, shape).astype(np.uint8)
        head = bytes([0, 0, 8, len(shape)]) + b"".join(size.to_bytes(4, "big") for size in shape)
        (root / "mnist" / f"{name}.gz").write_bytes(gzip.compress(head + body.tobytes(), 1))
    return root


def test_every_data_set_is_listed_with_its_tasks_and_whether_it_is_there(folder, capsys):
    assert main(["data", "list", "--root", str(folder)]) == 0
    said = capsys.readouterr().out
    lines = {line.split()[0]: line for line in said.splitlines() if line and not line.startswith(" ")}
    for name, (_, tasks) in _known().items():
        assert name in lines
        assert tasks[0] in said
        assert ("missing" in lines[name]) == (name != "mnist")
    head = said.splitlines()[0]
    assert "download" in head and "fetched" not in head, "the column says what can be downloaded, not what is there"


def test_damage_and_absence_are_named(folder, tmp_path, capsys):
    (tmp_path / "mnist").mkdir()
    for name in MNIST:
        (tmp_path / "mnist" / f"{name}.gz").write_bytes((folder / "mnist" / f"{name}.gz").read_bytes())
    broken = tmp_path / "mnist" / "t10k-images-idx3-ubyte.gz"
    broken.write_bytes(broken.read_bytes()[:-100])
    assert main(["data", "prepare", "mnist", "--root", str(tmp_path)]) == 1
    assert "t10k-images-idx3-ubyte.gz" in capsys.readouterr().out
    assert main(["data", "prepare", "imbd", "--root", str(tmp_path)]) == 2
    assert "no data set is called 'imbd'; did you mean 'imdb'?" in capsys.readouterr().err


def test_preparing_fetches_what_is_missing_once_and_says_what_it_cannot(folder, tmp_path, capsys, monkeypatch):
    fetched = []

    def fetch(root: Path) -> None:
        fetched.append(root)
        (root / "mnist").symlink_to(folder / "mnist")

    known = _known()
    card = registry.task_card("mnist")
    (real,) = card.datasets
    fake = DataSet(real.name, real.title, real.source, real.licence, real.layouts, fetch)
    broken = DataSet("broken", "Broken", "nowhere", "none", real.layouts, lambda root: (_ for _ in ()).throw(OSError("no network")))
    by_hand = DataSet("by_hand", "By Hand", "somebody", "none", known["imdb"][0].layouts, None, "ask somebody")
    monkeypatch.setattr("attn_zoo.cli.data._known", lambda: {d.name: (d, ["mnist"]) for d in (fake, broken, by_hand)})
    root = tmp_path / "new"
    assert main(["data", "prepare", "mnist", "--root", str(root)]) == 0
    assert "mnist: sound" in capsys.readouterr().out
    assert main(["data", "prepare", "mnist", "--root", str(root)]) == 0
    assert fetched == [root]
    assert main(["data", "prepare", "broken", "by_hand", "--root", str(tmp_path / "other")]) == 1
    said = capsys.readouterr().out
    assert "broken: not fetched: OSError: no network" in said
    assert "by_hand: By Hand: no data found" in said and "ask somebody" in said


@pytest.mark.parametrize("sweep", [[], ["-m", "seed=1,2"]])
def test_damaged_or_missing_data_end_a_run_before_it_begins(folder, sweep, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    words = ["run", *sweep, "task=mnist", "level=smoke", f"data.root={tmp_path}"]
    assert main(words) == 2
    assert "MNIST" in capsys.readouterr().err
    (tmp_path / "mnist").mkdir()
    for name in MNIST:
        (tmp_path / "mnist" / f"{name}.gz").write_bytes((folder / "mnist" / f"{name}.gz").read_bytes()[:-50])
    assert main(words) == 2
    assert "train-images-idx3-ubyte.gz" in capsys.readouterr().err
    assert not list(tmp_path.rglob("*.json"))
