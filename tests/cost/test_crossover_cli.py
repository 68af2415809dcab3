"""``attn-zoo measure`` with experiment=crossover and experiment=aa_test: outputs, plots, refusals and exit statuses."""

from __future__ import annotations

import json
from typing import Any

import pytest

from attn_zoo.cli import main
from attn_zoo.cost import session
from attn_zoo.cost.workers import WorkerError

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
AA_TEST = ["measure", "experiment=aa_test", "length=16", "dim=8", "heads=2", "repeats=2", "rounds=6"]


class Scripted:
    """A worker; steps of the A/A test take as long as their passes, times ``factor`` for one process of three."""

    made = 0
    factor = 1.0

    def __init__(self, make: Any, *arguments: Any, environment: Any, bounded: bool = True) -> None:
        self.number = Scripted.made
        Scripted.made += 1

    def ask(self, method: str, *arguments: Any, limit: float | None = None) -> Any:
        if method == "fastest":
            return 1e-3 * arguments[0] * (Scripted.factor if self.number % 3 == 1 else 1.0)
        return {"held": 0, "peak": arguments[2] ** 2, "parts": (1e-6 * arguments[2],)}[method]

    def stop(self) -> None: ...


@pytest.fixture(autouse=True)
def scripted(monkeypatch, tmp_path):
    monkeypatch.setattr(session, "Worker", Scripted)
    monkeypatch.setattr(Scripted, "made", 0)
    monkeypatch.chdir(tmp_path)


def test_what_was_written_can_be_shown_and_drawn_again(tmp_path, capsys):
    words = [
        "attentions=[linformer[projected_length=128],performer[features=256]]",
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
        ([*CROSSOVER, "read=words.json"], "words.json holds no JSON"),
        ([*CROSSOVER, "lengths=[300]"], "lengths are at least two different whole numbers"),
        ([*CROSSOVER, "attentions=[linfomer]"], "linformer"),
        ([*CROSSOVER, "attentions=[linformer[projected=4]]"], "projected_length"),
        ([*AA_TEST, "rounds=5"], "rounds must be at least 6 for an interval; got 5"),
        ([*AA_TEST, "layer=linformer:cuda"], "implementation of linformer"),
    ],
)
def test_bad_input_is_refused_before_work_starts(words, message, tmp_path, capsys):
    (tmp_path / "list.json").write_text("[]", encoding="utf-8")
    (tmp_path / "words.json").write_text("no", encoding="utf-8")
    assert main(words) == 2
    assert message in capsys.readouterr().err
    assert Scripted.made == 0


@pytest.mark.parametrize(("factor", "status", "count"), [(1.0, 0, "2 of 2"), (1.3, 1, "0 of 2")])
def test_timings_that_cannot_be_believed_end_with_status_1(factor, status, count, monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(Scripted, "factor", factor)
    assert main([*AA_TEST, "output=h.json"]) == status
    row = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("| the same layer twice"))
    assert row.split("|")[3].strip() == count
    assert json.loads((tmp_path / "h.json").read_text(encoding="utf-8"))["complete"]


def test_a_process_that_fails_is_said_and_what_was_found_stays(monkeypatch, capsys):
    def fail(self: Scripted, *arguments: Any, limit: float | None = None) -> float:
        raise WorkerError("failed", "scripted")

    monkeypatch.setattr(Scripted, "ask", fail)
    assert main([*AA_TEST, "output=h.json"]) == 1
    said = capsys.readouterr()
    assert "attn-zoo: failed: scripted" in said.err and said.out.startswith("**Not complete")
