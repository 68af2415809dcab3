"""A recommendation follows from its evidence, says what it rests on, and is softmax where softmax wins."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from make import make_record

from attn_zoo.cli import main
from attn_zoo.cli.recommend import memory_bytes
from attn_zoo.cost.bench import Subject
from attn_zoo.cost.measurement import Cell, Measurement
from attn_zoo.cost.timing import quartiles
from attn_zoo.leaderboard import Table, tables
from attn_zoo.recommend import Need, Recommendation, recommend
from attn_zoo.recommend.candidates import candidate
from attn_zoo.recommend.evidence import Figure, Machine, read_at, read_figures
from attn_zoo.recommend.measuring import measure_now
from attn_zoo.recommend.text import as_json, as_text, verdict
from attn_zoo.records import RunRecord, Store

HERE = Machine("Some CPU, 2 cores, 2 threads", "cpu", "fp32")
GROWTH = Path(__file__).parents[2] / "results" / "growth.json"


def name_of(label: str) -> str:
    return re.split(r"[\[: ]", label)[0]


def figure(attention: str, length: int, seconds: float | None, **changes: Any) -> Figure:
    spread = None if seconds is None else (0.99 * seconds, seconds, 1.02 * seconds)
    made = Figure(attention, {}, "eager", None, "forward", length, 1, 256, 4, spread, 1000 * length, None, HERE, "some.json")
    return replace(made, **changes)


def quadratic_and_linear() -> list[Figure]:
    """Softmax is quadratic, Performer linear; they cross at 1,000 tokens, Longformer is linear and slower."""
    factors = {"softmax": lambda n: n * n / 1000, "performer": lambda n: n, "longformer": lambda n: 2 * n}
    return [figure(name, n, 1e-6 * of(n)) for name, of in factors.items() for n in (256, 1024, 4096, 16384)]


def scored(attention: str, scores: Sequence[float], length: int = 4096, **changes: Any) -> list[RunRecord]:
    base = make_record(attention, spec_options={}, **changes)
    card = {**base.task_card, "length": length}
    return [make_record(attention, seed=s, test=t, task_card=card, spec_options={}, **changes) for s, t in enumerate(scores, 1)]


def board(**scores: Sequence[float]) -> list[Table]:
    return tables([record for name, values in scores.items() for record in scored(name, values)])


def asked(figures: Sequence[Figure], made: Sequence[Table], **need: Any) -> Recommendation:
    return recommend(Need(**{"length": 4096, **need}), figures, made, here=HERE.name)


def order(found: Recommendation) -> list[str]:
    return [choice.layer.attention for choice in found.ranked]


SOFTMAX = (0.80, 0.81, 0.79, 0.80)
AS_GOOD = (0.81, 0.80, 0.80, 0.79)
WORSE = (0.70, 0.71, 0.69, 0.70)


def test_the_faster_one_of_equal_accuracy_is_recommended():
    found = asked(quadratic_and_linear(), board(softmax=SOFTMAX, performer=AS_GOOD, longformer=AS_GOOD))
    assert order(found)[:3] == ["performer", "longformer", "softmax"]
    best = found.ranked[0]
    assert best.standing == "holds"
    assert best.times_softmax == pytest.approx(4.096)
    assert verdict(found).startswith("Take performer: 4.1 ± 0.1 ms for a forward pass, measured on this machine (Some CPU")
    assert "4.1 times as fast as softmax" in verdict(found)
    assert "+0.0 ± " in verdict(found) and "points against softmax on Digits (4 seeds)" in verdict(found)


def test_softmax_is_recommended_where_it_is_faster():
    found = asked(quadratic_and_linear(), board(softmax=SOFTMAX, performer=AS_GOOD, longformer=AS_GOOD), length=512)
    assert order(found)[:3] == ["softmax", "performer", "longformer"]
    assert "nothing that is measured beside it costs less" in verdict(found)


def test_softmax_is_recommended_where_the_faster_ones_score_worse_or_are_not_recorded():
    found = asked(quadratic_and_linear(), board(softmax=SOFTMAX, performer=WORSE))
    assert order(found)[0] == "softmax"
    assert [c.standing for c in found.ranked if c.reading] == ["holds", "unknown", "falls"]
    assert "those that cost less fall below it in accuracy or have no accuracy recorded beside it" in verdict(found)


def test_what_may_be_lost_can_be_said():
    made = board(softmax=SOFTMAX, performer=WORSE)
    assert order(asked(quadratic_and_linear(), made, accept=0.05))[0] == "softmax"
    assert order(asked(quadratic_and_linear(), made, accept=0.11))[0] == "performer"


def test_without_records_cost_alone_decides_and_the_doubt_is_said():
    found = asked(quadratic_and_linear(), [])
    assert order(found)[0] == "performer"
    assert "no records were given, so accuracy had no part in this" in verdict(found)


def test_without_any_evidence_counted_flops_decide_and_the_doubt_is_said():
    found = asked([], [])
    flops = [choice.counted.flops for choice in found.ranked]
    assert flops == sorted(flops)
    assert found.machine is None
    assert all(choice.reading is None for choice in found.ranked)
    assert verdict(found).startswith(f"By counted FLOPs alone {found.ranked[0].layer.label} comes first, with ")
    assert ": an order and no recommendation, as it was not measured. In doubt: " in verdict(found)
    assert "not measured: placed by counted FLOPs" in verdict(found)
    assert "give --measured FILE, or --measure" in as_text(found)


def test_one_seed_and_another_length_are_doubts():
    made = tables([*scored("softmax", [0.8], 64), *scored("performer", [0.7], 64)])
    found = asked(quadratic_and_linear(), made)
    assert order(found)[0] == "softmax"
    assert "rests on one seed and other lengths (64 tokens)" in verdict(found)
    performer = next(c for c in found.ranked if c.layer.attention == "performer")
    assert {"scored with one seed, which may be chance", "scored at 64 tokens, not 4,096"} <= set(performer.doubts)


def test_the_task_of_the_nearest_length_is_taken():
    near = [
        *scored("softmax", SOFTMAX, 2048, spec_task_options={"size": 1}),
        *scored("performer", WORSE, 2048, spec_task_options={"size": 1}),
    ]
    far = [*scored("softmax", SOFTMAX, 64), *scored("performer", AS_GOOD, 64)]
    found = asked(quadratic_and_linear(), tables([*near, *far]))
    assert next(c for c in found.ranked if c.layer.attention == "performer").standing == "falls"


def test_a_score_no_better_than_a_control_and_other_options_are_doubts():
    records = [*scored("softmax", SOFTMAX), *scored("performer", AS_GOOD), *scored("none", [0.9] * 4)]
    records = [replace(r, spec=replace(r.spec, options={"features": 8})) if r.spec.attention == "performer" else r for r in records]
    found = asked(quadratic_and_linear(), tables(records))
    doubts = found.ranked[0].doubts
    assert found.ranked[0].layer.attention == "performer"
    assert {"scored no better than a control that does not attend", "scored with features=8"} <= set(doubts)


def test_controls_are_never_recommended_even_when_measured():
    found = asked([*quadratic_and_linear(), figure("none", 4096, 1e-9), figure("uniform", 4096, 1e-9)], [])
    assert not {"none", "uniform"} & set(order(found))
    assert "controls are never recommended: convolution, frozen_random, none, uniform" in found.notes


@pytest.mark.parametrize(
    ("need", "refused"),
    [
        ({"causal": True}, {"linformer": "no causal form", "kernelized_linformer": "no causal form"}),
        ({"cross": True}, {"reformer": "its own tokens", "longformer": "its own tokens"}),
        ({"memory": 2_000_000}, {"softmax": "a step holds 4 MiB (measured, some.json), more than 2 MiB"}),
    ],
)
def test_what_cannot_be_had_is_refused_with_its_reason(need, refused):
    found = asked(quadratic_and_linear(), [], **need)
    reasons = {name_of(item.label): item.reason for item in found.refused}
    assert set(refused) <= set(reasons)
    assert all(words in reasons[name] for name, words in refused.items())
    assert not set(refused) & set(order(found))


def test_a_plain_need_refuses_nobody_and_a_small_length_refuses_what_would_be_full_rank():
    assert asked([], []).refused == ()
    tiny = asked([], [], length=1)
    assert "linformer" in {name_of(item.label) for item in tiny.refused}


def test_running_out_of_memory_at_a_smaller_length_refuses():
    figures = [figure("softmax", 1024, 1e-3), figure("softmax", 2048, None, failure="forward: OOM: not enough")]
    found = asked([*figures, figure("performer", 4096, 1e-3)], [])
    assert [item.reason for item in found.refused] == ["ran out of memory at 2,048 tokens (some.json)"]
    assert "softmax was not measured beside it" in verdict(found)


def test_memory_that_was_only_counted_is_a_bound_in_training():
    found = asked([], [], memory=30 * 2**20, direction="training", length=16384)
    reason = {name_of(i.label): i.reason for i in found.refused}["softmax"]
    assert reason.startswith("autograd alone keeps ") and "and 16 MiB of tokens (counted), more than 30 MiB" in reason
    assert "pooling" in order(found), "it keeps almost nothing of its own"


def test_times_of_another_machine_are_said_and_those_of_two_never_ranked_together():
    elsewhere = Machine("Another", "cpu", "fp32")
    moved = [replace(f, machine=elsewhere, file="other.json") for f in quadratic_and_linear()]
    found = asked(moved, [])
    assert (found.machine, found.here) == (elsewhere, False)
    assert "the times are not of this machine" in verdict(found)
    ours = [figure("softmax", 4096, 1e-9)]
    found = asked([*moved, *ours], [])
    assert (found.machine, found.here) == (HERE, True)
    assert [c.layer.attention for c in found.ranked if c.reading] == ["softmax"]
    assert f"other.json: times of {elsewhere} are left out, as those of {HERE} are ranked" in found.notes


def test_other_sizes_devices_and_strangers_are_left_out_with_a_note():
    gpu = Machine("Some GPU", "cuda", "bf16")
    others = [
        figure("performer", 4096, 1e-9, width=512),
        figure("performer", 4096, 1e-9, machine=gpu),
        figure("stranger", 4096, 1e-9),
    ]
    found = asked([figure("softmax", 4096, 1e-3), *others], [])
    assert [c.layer.attention for c in found.ranked if c.reading] == ["softmax"]
    assert "some.json: measured at width 512 with 4 heads, asked for 256 with 4; left out" in found.notes
    assert "some.json: measured on cuda, asked for cpu; left out" in found.notes
    assert any("stranger is left out" in note for note in found.notes)


def test_causal_figures_are_distinguished():
    plain = asked(quadratic_and_linear(), [], causal=True)
    assert "timed without causality" in plain.ranked[0].doubts
    causal = asked([replace(f, causal=True) for f in quadratic_and_linear()], [], causal=True)
    assert not any("timed without" in doubt for choice in causal.ranked for doubt in choice.doubts)


def test_times_that_overlap_are_told():
    found = asked([figure("softmax", 4096, 1.0), figure("performer", 4096, 1.005)], board(softmax=SOFTMAX, performer=AS_GOOD))
    assert "its time cannot be told apart from performer" in verdict(found)


def test_readings_between_and_beyond_lengths():
    figures = [figure("softmax", n, 1e-9 * n**2) for n in (1024, 4096)]
    exact, between, beyond = (read_at(figures, n, 1) for n in (4096, 2048, 16384))
    assert exact is not None and between is not None and beyond is not None
    assert exact.middle == pytest.approx(1e-9 * 4096**2)
    assert (exact.basis, exact.doubts) == ("measured", ())
    assert between.middle == pytest.approx(1e-9 * 2048**2)
    assert (between.basis, between.doubts) == ("interpolated from 1,024 and 4,096", ())
    assert between.bytes == pytest.approx(2_048_000)
    assert beyond.middle == pytest.approx(1e-9 * 16384**2)
    assert beyond.doubts == ("extrapolated in log-log from 1,024 and 4,096 tokens",)
    assert read_at(figures[:1], 4096, 1) is None, "one length says nothing of another"
    assert read_at([figure("softmax", 4096, None)], 4096, 1) is None
    batched = read_at(figures, 4096, 8)
    assert batched is not None
    assert batched.middle == pytest.approx(8 * exact.middle)
    assert batched.doubts == ("scaled from a batch of 1 to 8",)


def test_the_figures_of_growth_are_read():
    figures = read_figures(json.loads(GROWTH.read_text(encoding="utf-8")), "growth.json")
    point = next(f for f in figures if (f.attention, f.length, f.direction) == ("linformer", 8192, "training"))
    cells = Measurement.from_dict(json.loads(GROWTH.read_text(encoding="utf-8"))).cells
    raw = cells[Cell("linformer[projected_length=256]", "training", 8192)]
    assert point.seconds == pytest.approx(quartiles(raw.all("seconds")))
    assert (point.bytes, point.width, point.heads, point.machine.device) == (raw.one("peak_bytes"), 256, 4, "cpu")
    assert point.options["projected_length"] == 256


ENVIRONMENT = {"cpu": "Some CPU", "cores": 2, "threads": 2, "gpu": None, "torch": "2.15.0"}


@pytest.mark.parametrize("experiment", ["crossover", "cost"])
def test_figures_are_read_as_measurements_are_written(experiment):
    grid = {"dim": 32, "heads": 2, "precision": "fp32", **({"level": "layer"} if experiment == "cost" else {})}
    found = Measurement(experiment, grid, None, ENVIRONMENT)
    performer = Subject("performer", {"features": 16})
    training = found.of(Cell("performer", "training", 64, subject=performer))
    training.values = {"seconds": [0.1, 0.3, 0.2], "held_bytes": [24], "peak_bytes": [1000]}
    found.of(Cell("performer", "training", 64, batch=8, subject=performer)).values = {"seconds": [1.6]}
    found.of(Cell("performer", "forward", 64, subject=performer)).failures = {"seconds": "OOM: too much"}
    data = json.loads(json.dumps(found.to_dict()))
    figures = {(f.direction, f.batch): f for f in read_figures(data, "c.json")}
    one, many, other = figures["training", 1], figures["training", 8], figures["forward", 1]
    assert one.seconds == pytest.approx((0.15, 0.2, 0.25))
    assert (one.bytes, one.machine, one.options) == (1024, HERE, {"features": 16})
    assert (many.seconds, many.bytes) == ((1.6, 1.6, 1.6), None)
    assert (other.seconds, other.failure) == (None, "OOM: too much")
    if experiment == "cost":
        with pytest.raises(ValueError, match="level=block; figures of layers are needed"):
            read_figures({**data, "grid": {**grid, "level": "block"}}, "c.json")


def test_the_figures_of_the_committed_crossover_are_read():
    data = json.loads((GROWTH.parent / "crossover.json").read_text(encoding="utf-8"))
    figures, cells = read_figures(data, "crossover.json"), Measurement.from_dict(data).cells
    assert len(figures) == len(cells) == 84
    for figure_, (cell, found) in zip(figures, cells.items(), strict=True):
        assert (figure_.direction, figure_.length, figure_.bytes) == (cell.kind, cell.length, found.one("peak_bytes"))
        assert (figure_.seconds is None) == (not found.all("seconds"))
        assert figure_.failure == found.failures.get("seconds")


@pytest.mark.parametrize(
    ("found", "message"),
    [
        ([], "f.json is no measurement of attn-zoo"),
        ({"schema": 1}, "f.json is no measurement of attn-zoo"),
        ({"experiment": "peers"}, "holds experiment 'peers'; give what .* NAME growth, crossover or cost"),
        ({"experiment": "growth", "setting": {}}, "is not a whole measurement: KeyError: .*; measure it again"),
    ],
)
def test_files_of_another_kind_are_refused(found, message):
    with pytest.raises(ValueError, match=message):
        read_figures(found, "f.json")


def test_candidates_are_measured_now_as_they_are_asked_for():
    torch.set_num_threads(1)
    need = Need(length=32, width=16, heads=2, batch=2, direction="training", causal=True)
    layers = [candidate("softmax", {}, "sdpa"), candidate("performer", {"features": 8}, "eager")]
    told: list[str] = []
    figures = measure_now(need, layers, rounds=2, tell=told.append)
    assert told == ["memory", "round 1 of 2", "round 2 of 2"]
    assert [f.attention for f in figures] == ["softmax", "performer"]
    assert all(f.seconds and 0 < f.seconds[0] <= f.seconds[2] and f.bytes and f.failure is None for f in figures)
    found = recommend(need, figures, [], here=figures[0].machine.name)
    assert found.here
    assert {c.layer.attention for c in found.ranked if c.reading} == {"softmax", "performer"}
    assert not any("batch" in doubt or "timed without" in doubt for c in found.ranked for doubt in c.doubts)


def test_the_command_says_what_it_recommends_in_two_sentences_with_its_evidence(tmp_path, capsys):
    for record in [*scored("softmax", SOFTMAX), *scored("linformer", AS_GOOD)]:
        Store(tmp_path).add(record)
    words = ["recommend", "--length", "8192", "--measured", str(GROWTH), "--records", str(tmp_path), "--device", "cpu"]
    assert main(words) == 0
    said = capsys.readouterr().out
    first = said.splitlines()[0]
    assert first.startswith("Take linformer[projected_length=256]: ")
    assert first.count(". ") == 1 and first.endswith("."), "two sentences"
    assert "times: measured, growth.json; accuracy: linformer in linformer-digits-s1-" in said
    assert main([*words, "--format", "json", "--task", "digits"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["verdict"] == first
    assert data["ranked"][0]["attention"] == "linformer"
    assert len(data["ranked"][0]["accuracy"]["files"]) == 4


def test_rows_are_chosen_among_where_they_are_named(capsys):
    words = ["recommend", "--length", "8192", "--measured", str(GROWTH), "--device", "cpu", "--format", "json"]
    assert main([*words, "--attention", "softmax", "linformer[projected_length=64|256]"]) == 0
    ranked = {choice["label"]: choice for choice in json.loads(capsys.readouterr().out)["ranked"]}
    by_name = {label.partition(":")[0]: label for label in ranked}
    assert set(by_name) >= {"softmax", "linformer[projected_length=256]"} and any(
        "projected_length=64]" in label for label in ranked
    )
    assert {choice["attention"] for choice in ranked.values()} == {"softmax", "linformer"}


def test_nothing_fits_is_status_1(capsys):
    words = ["recommend", "--length", "8192", "--memory", "1KiB", "--direction", "training", "--device", "cpu"]
    assert main(words) == 1
    assert "Nothing in the zoo holds what is needed." in capsys.readouterr().out
    found = asked([figure(c.layer.attention, 4096, 1.0) for c in asked([], []).ranked], [], memory=1000)
    assert found.ranked == ()
    assert verdict(found).startswith("Nothing in the zoo holds what is needed.")
    assert "softmax: a step holds 4 MiB (measured, some.json), more than " in as_text(found)
    assert json.loads(as_json(found))["ranked"] == []


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--length", "0"], "length counts something"),
        (["--length", "64", "--heads", "3"], "width must be divisible by heads; got width 256 and 3 heads"),
        (["--length", "64", "--memory", "lots"], "--memory takes a size such as 4GiB"),
        (["--length", "64", "--causal", "--cross"], "ask for one of both"),
        (["--length", "64", "--accept", "-1"], "at least 0 and less than 100 points; got -1"),
        (["--length", "64", "--measured", "nowhere.json"], "No such file"),
        (["--length", "64", "--measured", __file__], "is not JSON"),
        (["--length", "64", "--task", "digits"], "give --records FOLDER as well"),
        (["--length", "64", "--records", "nowhere"], "there is no folder of records 'nowhere'"),
        (["--length", "64", "--records", "."], "'.' holds no records"),
        (["--length", "64", "--attention", "linfromer"], "did you mean 'linformer'?"),
        (["--length", "64", "--attention", "linformer[k=8]"], "no option of attention linformer is called 'k'"),
        (["--length", "64", "--attention", "softmax", "uniform"], "controls are never recommended; leave uniform out"),
    ],
)
def test_bad_input_is_refused_in_words(words, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["recommend", *words]) == 2
    assert message in capsys.readouterr().err


def test_a_task_without_records_is_refused_by_name(tmp_path, capsys):
    Store(tmp_path).add(make_record())
    assert main(["recommend", "--length", "64", "--records", str(tmp_path), "--task", "text"]) == 2
    assert "holds no records of task 'text', only of digits" in capsys.readouterr().err


@pytest.mark.parametrize(("words", "size"), [("4GiB", 4 * 2**30), ("512 mib", 2**29), ("1.5GB", 1_500_000_000), ("77", 77)])
def test_sizes_of_memory(words, size):
    assert memory_bytes(words) == size
