"""The committed list of what can be exported: complete, true for the installed torch, and printed with its reasons."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from attn_zoo import registry
from attn_zoo.cli import main
from attn_zoo.export import survey, table
from attn_zoo.export.reasons import KINDS
from attn_zoo.export.trials import DIM, HEADS, LENGTH, record_of

REST = ["--length", "9", "--dim", "4", "--heads", "2", "--output", "x.onnx"]
QUICK = [("none", False), ("linformer", False), ("fixed", False), ("entmax", False), ("local", True)]
QUICK += [("synthesizer_random", False), ("linformer_causal", False), ("performer", True)]
"""(attention, causal) pairs that are exported again here, chosen among the fastest."""
COMMITTED = json.loads((Path(__file__).parents[2] / "results" / "export.json").read_text(encoding="utf-8"))


def outcome(record: dict[str, Any]) -> tuple[Any, ...]:
    """Return the open sizes and refusals of a record, without its measured numbers."""
    return tuple((record[format]["open"], tuple(record[format]["refused"].items())) for format in ("torch", "onnx"))


def way(record: dict[str, Any]) -> tuple[Any, ...]:
    """Return how the export to ONNX ends: the sizes that stay open, and the kinds of reasons."""
    return record["onnx"]["open"], *sorted({why["kind"] for why in record["onnx"]["refused"].values()})


def test_every_attention_is_on_the_committed_list():
    found = [(record["attention"], record["causal"]) for record in COMMITTED["records"]]
    cards = [registry.card(name) for name in registry.attentions()]
    built_in = [card for card in cards if card.origin.startswith("attn_zoo.")]
    assert found == [(card.name, causal) for card in built_in for causal in ((False, True) if card.can.causal else (False,))]
    assert COMMITTED["setting"] | {"length": LENGTH, "dim": DIM, "heads": HEADS} == COMMITTED["setting"]


def test_every_refusal_on_the_list_has_a_reason():
    for record in COMMITTED["records"]:
        for format in ("torch", "onnx"):
            by_format = record[format]
            assert by_format["open"] is not None or by_format["refused"], record
            assert all(why["kind"] in KINDS and why["line"] for why in by_format["refused"].values())
            if by_format["open"] is not None:
                assert 0 <= by_format["difference"] <= COMMITTED["setting"]["tolerance"]


def listed(name: str, causal: bool) -> dict[str, Any]:
    return next(record for record in COMMITTED["records"] if (record["attention"], record["causal"]) == (name, causal))


@pytest.mark.parametrize(("name", "causal"), QUICK)
def test_the_list_is_what_happens_here(name, causal):
    if torch.__version__.split("+")[0] != COMMITTED["versions"]["torch"]:
        pytest.skip(f"the list was made with torch {COMMITTED['versions']['torch']}")
    here = outcome(record_of(name, causal))
    assert here == outcome(listed(name, causal)), "run attn-zoo export --all --output results/export.json"


def test_those_tried_here_stand_for_every_way_in_which_export_ends():
    assert {way(listed(*form)) for form in QUICK} == {way(record) for record in COMMITTED["records"]}


def test_the_table_names_every_attention_and_every_reason():
    text = table(COMMITTED)
    for record in COMMITTED["records"]:
        assert f"| {record['attention']}{', causal' * record['causal']} " in text
        for format in ("torch", "onnx"):
            for why in record[format]["refused"].values():
                assert why["line"].replace("|", "\\|") in text or why["line"] in text
    assert COMMITTED["versions"]["torch"] in text


def test_a_survey_of_one_attention_is_printed_with_its_reason(monkeypatch, tmp_path, capsys):
    with monkeypatch.context() as patched:
        patched.setattr(registry, "attentions", lambda: ("none",))
        assert main(["export", "--all", "--output", str(tmp_path / "found.json")]) == 0
    out, err = capsys.readouterr()
    assert err.splitlines()[1].startswith("none causal: onnx: batch and length, torch: batch and length (")
    found = json.loads((tmp_path / "found.json").read_text(encoding="utf-8"))
    assert [record["causal"] for record in found["records"]] == [False, True]
    assert table(found, "simple") == out.rstrip("\n")
    assert "Not in ONNX" not in out and "What could not be left open" not in out


def test_an_unknown_attention_is_refused_before_work_starts(monkeypatch):
    monkeypatch.setattr("attn_zoo.export.trials.record_of", lambda *args: pytest.fail("work has started"))
    with pytest.raises(LookupError, match="did you mean 'softmax'"):
        survey(["softmx"])


def test_the_command_writes_a_layer_and_says_what_it_is(tmp_path, capsys):
    file = tmp_path / "layer.onnx"
    words = ["export", "linformer[projected_length=8]", "--length", "32", "--dim", "16", "--heads", "2"]
    assert main([*words, "--output", str(file), "--sizes", "fixed"]) == 0
    said = capsys.readouterr().out
    assert said.startswith(f"{file}: {file.stat().st_size:,} bytes, opset 20, fixed sizes; differs from eager by ")
    assert main([*words, "--output", str(file)]) == 2
    assert "is there already" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "export needs ROW, --length, --dim, --heads, --output; or --all"),
        (["linformer", "--length", "8"], "export needs --dim, --heads, --output"),
        (["--all", "--dim", "8", "--causal"], "--all tries every attention in every format; leave out --dim, --causal"),
        (["linformer", "--all"], "leave out linformer"),
        (["--all", "--output", "nowhere/x.json"], "lies in no folder that exists"),
        (["linformer[frozen]", *REST], "OPTION=VALUE"),
        (["linformer[frozen=1,frozen=0]", *REST], "given twice"),
        (["linformer,softmax", *REST], "attention names one row"),
        (["linformr", *REST], "did you mean 'linformer'"),
        (["linformer:sdp", *REST], "did you mean 'sdpa'"),
        (["linformer", "--causal", *REST], "no causal form"),
        (["softmax", *REST, "--dim", "5"], "dim must be divisible by heads"),
    ],
)
def test_bad_requests_of_the_command_are_refused(words, said, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["export", *words]) == 2
    assert said in capsys.readouterr().err and not list(tmp_path.iterdir())
