"""One verdict for all readers: every command leaves out what ``records verify`` calls damaged, and states the reason."""

from __future__ import annotations

import json
import os
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from make import make_record
from page_data import data_of

from attn_zoo.cli import main
from attn_zoo.records import RecordError, RunRecord, Store, read_record
from attn_zoo.records.record import BOUNDS, MOST_BYTES
from attn_zoo.records.spec import digest_of
from attn_zoo.records.verify import verify
from attn_zoo.runner.metrics import MEASURES


def signed(data: dict[str, Any]) -> str:
    """Return the JSON text of a record with the digest of its content."""
    rest = {name: value for name, value in data.items() if name != "digest"}
    return json.dumps({**rest, "digest": digest_of(rest)})


def put(*path: str | int, value: Any) -> Any:
    """Return a function that changes one field of a record and renews its digest."""

    def change(data: dict[str, Any]) -> str:
        part: Any = data
        for name in path[:-1]:
            part = part[name]
        part[path[-1]] = value
        return signed(data)

    return change


SHAPES = {
    "a curve point of text": put("curve", 0, "valid", value="high"),
    "a curve point without a step": put("curve", 0, value={"valid": 0.9}),
    "an unknown curve key": put("curve", 0, "loss", value=1.0),
    "a curve that is a mapping": put("curve", value={"step": 1}),
    "text for a count": put("counted", "flops_per_example", value="many"),
    "a truth value for a count": put("counted", "flops_per_example", value=True),
    "1e308": put("measured", "train_seconds", value=1e308),
    "a negative time": put("measured", "train_seconds", value=-1.0),
    "no time at all": put("measured", "examples_per_second", value=0.0),
    "an accuracy of 500 %": put("scores", "test", value=5.0),
    "a part of the test below 0 %": put("scores", "test: rare", value=-0.1),
    "a chance level of -100 %": put("chance", value=-1.0),
    "a validation score of 110 %": put("curve", 0, "valid", value=1.1),
    "a network without parameters": put("counted", "parameters", value=0),
    "a forward pass without FLOPs": put("counted", "flops_per_example", value=0),
    "more parameters in attention than in the network": put("counted", "attention_parameters", value=80_000),
    "10^400": put("counted", "flops_per_example", value=10**400),
    "an empty card of the task": put("task_card", value={}),
    "an empty card of the attention": put("attention_card", value={}),
    "a card of lists": put("attention_card", "title", value=["Softmax"]),
    "options that are a list": put("spec", "options", value=[1]),
    "an option that is a list": put("spec", "options", "dial", value=[1]),
    "a protocol that is a list": put("protocol", value=["2.0"]),
    "a schema that is a list": put("schema", value=[5]),
    "a true schema": put("schema", value=True),
    "a status that is a mapping": put("status", value={}),
    "a status that does not exist": put("status", value="splendid"),
    "a warning that is a number": put("warnings", value=[1]),
    "a tuning that is text": put("tuning", value="best"),
    "an unknown field": put("extra", value=1),
    "a hostile field": put("\x1b[31m", value=1),
    "half of a surrogate pair": put("task_card", "title", value="\ud800"),
    "100,000 brackets": lambda data: "[" * 100_000,
    "100,000 pairs of brackets": lambda data: "[" * 100_000 + "]" * 100_000,
    "a value nested 20 deep": lambda data: json.dumps({**data, "warnings": json.loads("[" * 20 + "]" * 20)}),
    "NaN": lambda data: json.dumps(data).replace("0.9", "NaN"),
    "1e400": lambda data: json.dumps(data).replace("0.9", "1e400"),
    "5,000 digits": lambda data: json.dumps(data).replace("2400000", "9" * 5000),
    "a list": lambda data: "[1, 2]",
    "a beginning": lambda data: json.dumps(data)[:100],
    "nothing": lambda data: "",
    "null": lambda data: "null",
}


@pytest.mark.parametrize("change", SHAPES.values(), ids=SHAPES)
def test_valid_json_of_the_wrong_shape_is_left_out_by_every_command_with_its_reason(tmp_path, capsys, change):
    records = tmp_path / "runs"
    whole = [Store(records).add(make_record(seed=seed)) for seed in (1, 2)]
    damaged = whole[0].with_name(f"copy-{whole[0].name}")
    damaged.write_text(change(json.loads(whole[0].read_text(encoding="utf-8"))), encoding="utf-8")
    (finding,) = verify(records).findings
    assert finding.kind in ("damaged", "edited")
    assert finding.files == (damaged.name,)
    reason = finding.words.split("; tables leave it out")[0]
    assert len(reason) < 400 and "\x1b" not in reason
    loaded, left_out = Store(records).load()
    assert len(loaded) == 2 and [(item.path, item.reason) for item in left_out] == [(damaged, reason)]
    assert main(["leaderboard", "--records", str(records)]) == 0
    assert f"{damaged.name}: {reason}" in capsys.readouterr().out
    assert main(["show", str(damaged)]) == 2
    assert reason in capsys.readouterr().err


COMMANDS = {
    "leaderboard": ["leaderboard", "--records"],
    "csv": ["leaderboard", "--format", "csv", "--records"],
    "svg": ["leaderboard", "--format", "svg", "--records"],
    "html": ["leaderboard", "--format", "html", "--records"],
    "separation": ["leaderboard", "--separation", "--records"],
    "published": ["leaderboard", "--published", "--records"],
    "recommend": ["recommend", "--records"],
    "show": ["show", "softmax", "--records"],
    "diff": ["diff", "whole"],
}


@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)
def test_every_command_names_what_it_leaves_out_and_why(tmp_path, monkeypatch, capsys, command):
    monkeypatch.chdir(tmp_path)
    Store("whole").add(make_record())
    path = Store("runs").add(make_record())
    (tmp_path / "runs" / "cut.json").write_bytes(path.read_bytes()[:100])
    assert main([*command, "runs"]) == 0
    said = capsys.readouterr()
    shown = str(data_of(said.out)["damaged"]) if said.out.startswith("<!DOCTYPE html>") else said.out
    named = [line for line in (shown + "\n" + said.err).splitlines() if "cut.json" in line]
    assert len(named) == 1, named
    assert "not readable as JSON" in named[0]


def test_of_200_flipped_bits_none_changes_what_is_read(tmp_path):
    record = make_record(chance=0.1 + 0.2, warnings=("größer als nötig",))
    path = Store(tmp_path).add(record)
    whole, draws, left_out = path.read_bytes(), random.Random(20), 0
    for bit in draws.sample(range(8 * len(whole)), 200):
        flipped = bytearray(whole)
        flipped[bit // 8] ^= 1 << bit % 8
        path.write_bytes(flipped)
        loaded, _ = Store(tmp_path).load()
        assert loaded in ([], [record]), f"bit {bit}: {whole[bit // 8 - 20 : bit // 8 + 20]!r}"
        assert verify(tmp_path).clean == bool(loaded)
        left_out += not loaded
    assert left_out > 190
    path.write_text(json.dumps(json.loads(whole)), encoding="utf-8")
    assert Store(tmp_path).load() == ([record], []), "white space does not matter"


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="the system has no named pipes")
def test_pipes_folders_and_huge_files_are_no_records_and_stop_nothing(tmp_path):
    Store(tmp_path).add(make_record())
    os.mkfifo(tmp_path / "pipe.json")
    (tmp_path / "folder.json").mkdir()
    (tmp_path / "nowhere.json").symlink_to(tmp_path / "gone")
    with (tmp_path / "huge.json").open("wb") as file:
        file.truncate(MOST_BYTES + 1)
    records, left_out = Store(tmp_path).load()
    assert len(records) == 1
    reasons = {item.path.name: item.reason for item in left_out}
    assert reasons["pipe.json"] == reasons["folder.json"] == "a record must be a regular file"
    assert "at most" in reasons["huge.json"] and "cannot be read" in reasons["nowhere.json"]
    assert {Path(name).name for finding in verify(tmp_path).findings for name in finding.files} == set(reasons)
    assert main(["leaderboard", "--records", str(tmp_path)]) == 0


@pytest.mark.parametrize(
    ("metric", "right", "wrong"),
    [
        ("accuracy", (0.0, 1.0), (-1e-9, 1.001)),
        ("f1", (0.0, 1.0), (-0.5, 2.0)),
        ("f1_micro", (0.5,), (1.5,)),
        ("f1_macro", (0.5,), (1.5,)),
        ("r2", (-7.0, 1.0), (1.001,)),
        ("mse", (0.0, 1e6), (-1e-9,)),
        ("perplexity", (1.0, 1e6), (0.999, -3.0)),
    ],
)
def test_scores_are_bounded_by_their_metric(tmp_path, metric, right, wrong):
    def record(score: float) -> RunRecord:
        made = make_record(test=score, chance=score)
        return replace(made, task_card={**made.task_card, "metric": metric}, scores={**made.scores, "train": score})

    for score in right:
        assert read_record(Store(tmp_path).add(record(score))).scores["test"] == score
    for score in wrong:
        with pytest.raises(RecordError, match=f"must be from .* because the metric is {metric}"):
            Store(tmp_path / "wrong").add(record(score))
    assert not (tmp_path / "wrong").exists()


def test_every_metric_of_the_runner_is_bounded():
    assert BOUNDS.keys() == MEASURES.keys()
