"""``attn-zoo measure`` with experiment=crossover: outputs, plots and refusals."""

from __future__ import annotations

import json
from typing import Any

import pytest

from attn_zoo.bench import session
from attn_zoo.cli import main

CROSSOVER = [
    "measure",
    "experiment=crossover",
    "device=cpu",
    "lengths=[300,600]",
    "rounds=6",
    "repeat_seconds=0",
    "dim=8",
    "heads=2",
]


class Scripted:
    made = 0

    def __init__(self, make: Any, *arguments: Any, environment: Any, bounded: bool = True) -> None:
        Scripted.made += 1

    def ask(self, method: str, *arguments: Any, limit: float | None = None) -> Any:
        return {"held": 0, "peak": arguments[2] ** 2, "parts": (1e-6 * arguments[2],)}[method]

    def stop(self) -> None: ...


@pytest.fixture(autouse=True)
def scripted(monkeypatch, tmp_path):
    monkeypatch.setattr(session, "Worker", Scripted)
    monkeypatch.setattr(Scripted, "made", 0)
    monkeypatch.chdir(tmp_path)


def test_what_was_written_can_be_shown_and_drawn_again(tmp_path, capsys):
    words = [
        "attention=linformer[projected_length=128],performer[features=256]",
        "output=x.json",
        "plot=x.svg",
    ]
    assert main([*CROSSOVER, *words]) == 0
    table = capsys.readouterr().out
    assert "linformer[projected_length=128]" in table and "performer[features=256]" in table
    written = json.loads((tmp_path / "x.json").read_text(encoding="utf-8"))
    assert written["complete"] and len(written["cells"]) == 2 * 4 * 2
    assert written["protocol"]["rounds"] == 6 and written["grid"]["lengths"] == [300, 600]
    assert main(["measure", "experiment=crossover", "read=x.json", "plot=again.svg"]) == 0
    assert capsys.readouterr().out == table
    assert (tmp_path / "again.svg").read_bytes() == (tmp_path / "x.svg").read_bytes()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([*CROSSOVER, "plot=x.pdf"], "plot must end in .svg or .png; got 'x.pdf'"),
        ([*CROSSOVER, "plot=no/x.svg"], "plot must be a file in a folder that exists"),
        ([*CROSSOVER, "read=none.json"], "none.json"),
        ([*CROSSOVER, "read=list.json"], "list.json is a file of another kind"),
        ([*CROSSOVER, "read=words.json"], "words.json is not JSON"),
        ([*CROSSOVER, "read=part.json"], "part.json must be a complete measurement"),
        ([*CROSSOVER, "lengths=[300]"], "lengths must be a list of at least two different integers"),
        ([*CROSSOVER, "rounds=5"], "rounds= must be at least 6, because fewer rounds give no interval; got 5"),
    ],
)
def test_bad_input_is_refused_before_work_starts(words, message, tmp_path, capsys):
    (tmp_path / "list.json").write_text("[]", encoding="utf-8")
    (tmp_path / "words.json").write_text("no", encoding="utf-8")
    (tmp_path / "part.json").write_text('{"experiment": "crossover"}', encoding="utf-8")
    assert main(words) == 2
    assert message in capsys.readouterr().err
    assert Scripted.made == 0
