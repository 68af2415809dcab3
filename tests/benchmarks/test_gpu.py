"""The one GPU command, rehearsed on the CPU: every part runs, its results are files, and it goes on where it stopped."""

from __future__ import annotations

import json

import pytest
import torch
from gpu import HERE, _kernels, _profile, main, profile_words
from zoo_times import ZooTimes

from attn_zoo.bench.measurement import Measurement
from attn_zoo.records import Store, describe_environment


def test_it_asks_for_a_gpu_where_there_is_none(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert main([str(tmp_path / "out")]) == 2
    assert "Use --device cpu to try everything" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.exhaustive
def test_a_rehearsal_writes_its_files_and_measures_nothing_twice(tmp_path, capsys):
    rehearse = [str(tmp_path), "--device", "cpu", "--seconds", "600"]
    kit = [*rehearse, "--attentions", "none", "--parts", "kit"]  # none is proved in a third of the time of linear
    measured = [*rehearse, "--attentions", "none", "linear", "--parts", "times", "table3"]
    assert main(kit) == 0 and main(measured) == 0
    assert json.loads((tmp_path / "kit.json").read_text()) == {"none": "proved"}
    assert "none" in (tmp_path / "kit" / "none.txt").read_text()
    times = Measurement.from_dict(json.loads((tmp_path / "times.json").read_text()))
    groups = list(dict.fromkeys((cell.length, cell.group) for cell in times.cells))
    assert groups == [(n, name) for n in (128, 64) for name in ("none", "linear")]
    assert len(times.cells) == 4 * 4 and all(len(f.all("seconds")) == 1 for f in times.cells.values())
    assert {cell.subject.implementation for cell in times.cells if cell.subject and cell.label == "linear"} == {"tiled"}
    table = [line.split("|")[1:-1] for line in ZooTimes.report(times).splitlines() if line.startswith("| linear")]
    assert [cell.strip() for cell in table[0][:2]] == ["linear", "tiled"] and all(float(cell) > 0 for cell in table[0][2:])
    assert json.loads((tmp_path / "linformer_table3.json").read_text())["complete"]
    assert json.loads((tmp_path / "environment.json").read_text())
    before = (tmp_path / "times.json").read_bytes()
    capsys.readouterr()
    assert main(measured) == 0 and main(kit) == 0
    assert (tmp_path / "times.json").read_bytes() == before
    assert "proved before: 1" in capsys.readouterr().out


def test_what_failed_in_the_kit_is_proved_again(tmp_path, monkeypatch, capsys):
    asked: list[str] = []

    def answer(words, seconds):
        name = words[words.index("check") + 1]
        asked.append(name)
        return (1, f"{name} is wrong") if name == "linear" and len(asked) < 3 else (0, "well")

    monkeypatch.setattr("gpu._python", answer)
    words = [str(tmp_path), "--device", "cpu", "--attentions", "none", "linear", "--parts", "kit"]
    assert main(words) == 1 and "linear is wrong" in capsys.readouterr().out
    assert main(words) == 0 and asked == ["none", "linear", "linear"]
    assert json.loads((tmp_path / "kit.json").read_text()) == {"none": "proved before", "linear": "proved"}


def test_each_cell_of_the_profile_is_trained_once_the_first_tasks_first(tmp_path):
    words = profile_words(tmp_path, "cuda", ["softmax", "linformer"])
    asked = [dict(word.split("=", 1) for word in each if "=" in word) for each in words]
    cells = [(each["level"], each["task"], each["attention"]) for each in asked]
    assert len(set(cells)) == len(cells) and {task for _, task, _ in cells[:3]} == {"mqar"}
    assert {each["device"] for each in asked} == {"cuda"} and {each["budget.until"] for each in asked} == {"criterion"}
    assert not any("budget.steps" in each for each in asked)  # the task's own cap
    assert next(each for each in asked if each["attention"] == "linformer")["dials.linformer.projected_length"] == "16"


def test_a_cell_of_the_profile_is_trained_and_recorded(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("gpu.profile_words", lambda *given: profile_words(*given)[:1])
    assert _profile(tmp_path, "cpu", ["none"], 60.0)
    (record,), _ = Store(tmp_path / "profile").load()
    assert (record.spec.attention, record.status) == ("none", "done") and "trained: 1 of 1 cells" in capsys.readouterr().out
    assert _profile(tmp_path, "cpu", ["none"], 0.0) and "no time left: 1" in capsys.readouterr().out


@pytest.mark.parametrize(("device", "interpreted"), [("cuda", "0"), ("cpu", "1")])
def test_the_benchmark_of_kernels_is_run_from_the_checkout(device, interpreted, tmp_path, monkeypatch):
    asked = []

    def answer(words, seconds, environment):
        asked.append((words, seconds, environment["TRITON_INTERPRET"]))
        return 0, "well"

    monkeypatch.setattr("gpu._python", answer)
    assert _kernels(tmp_path, device, [], 100.0)
    ((words, seconds, environment),) = asked
    assert (HERE / "linformer_kernels.py").is_file() and words[:2] == [
        str(HERE / "linformer_kernels.py"),
        str(tmp_path / "linformer_kernels.json"),
    ]
    assert (words[2:4], seconds, environment) == (["--seconds", "100"], 130.0, interpreted)
    assert words[4:] == ([] if device == "cuda" else ["--device", "interpreter"])


def test_results_of_another_device_are_not_mixed_with_these(tmp_path, capsys):
    (tmp_path / "environment.json").write_text(json.dumps({**describe_environment("cpu"), "device": "cuda"}), encoding="utf-8")
    assert main([str(tmp_path), "--device", "cpu", "--parts", "kit", "--attentions", "none"]) == 2
    assert "already holds results with another device. Name another folder" in capsys.readouterr().err
