"""Rounds of a measurement: what is asked of which process, what fails or goes on, time limits, and resumption."""

from __future__ import annotations

import itertools
import json
import math
import time
from collections import Counter
from types import SimpleNamespace

import psutil
import pytest
import torch
from patience import HANG
from scripted import LINFORMER, Scripted, at, crossover, empty, growth, measured

from attn_zoo import cli
from attn_zoo.bench.experiment import largest_batch
from attn_zoo.bench.experiments import EXPERIMENTS
from attn_zoo.bench.experiments.growth import GrowthExperiment
from attn_zoo.bench.measurement import Cell, Measurement
from attn_zoo.bench.session import Session, expected_seconds
from attn_zoo.bench.workers import WorkerError
from attn_zoo.records import describe_environment


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"precision": "fp8"}, "precision must be one of fp32, bf16, fp16"),
        ({"dim": 15}, "dim= must be a multiple of heads="),
        ({"lengths": []}, "lengths must be a list of different integers"),
        ({"lengths": [64, 64]}, "lengths must be a list of different integers"),
        ({"memory_gib": 0.0}, "memory_gib must be above 0"),
        ({"sequences": 0}, "sequences must be an integer >= 1"),
        ({"time_limit": 0.0}, "time_limit must be above 0"),
        ({"repeat_seconds": -1.0}, "repeat_seconds must be at least 0"),
        ({"rounds": 0}, "rounds must be an integer >= 1"),
        ({"device": "tpu"}, "device must be auto, cpu or cuda"),
        ({"attention": ["softmax:xformers"]}, "softmax:xformers cannot run here: .* xformers runs only on a CUDA GPU"),
    ],
)
def test_bad_input_is_refused_before_work(wrong, message):
    with pytest.raises(ValueError, match=message):
        growth(**wrong)


def test_without_a_gpu_cuda_is_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ValueError, match="device=cuda needs a GPU, but PyTorch finds none"):
        growth(device="cuda")


# What is measured


def test_every_value_is_there(scripted):
    found, _ = measured(growth())
    for kind in ("forward", "training"):
        softmax = at(found, "softmax", kind)
        assert not softmax.failures
        assert [softmax.one(f"{what}_bytes") for what in ("peak", "held")] == [16 * 1024, 0]
        assert softmax.one("largest_batch") == 64, "of 16 KiB each in 1 MiB"
    training = at(found, LINFORMER, "training")
    assert (training.all("seconds"), training.all("backward_seconds")) == ([0.016] * 3, [0.012] * 3)
    assert "backward_seconds" not in at(found, LINFORMER, "forward").values


def test_a_step_has_as_many_sequences_as_asked_for_and_the_largest_batch_is_the_same(scripted):
    found, _ = measured(growth(sequences=8, memory_gib=2**-15))
    softmax = at(found, "softmax", "forward", batch=8)
    assert softmax.all("seconds") == [0.128] * 3 and softmax.one("peak_bytes") == 128 * 1024
    assert softmax.one("largest_batch") == 2, "also where eight sequences do not fit into 32 KiB"
    assert "8 sequences, fp32, implementation auto; the largest batch fits into" in GrowthExperiment.report(found)


@pytest.mark.parametrize(("budget", "most"), [(2000, 10), (1999, 9), (900, 0)])
def test_the_line_gives_the_largest_batch_within_the_budget(budget, most):
    """Of 1,000 bytes and 100 for each of 4 and 8 sequences."""

    def ask(method: str, kind: str, batch: int, length: int) -> int:
        return 500 + 50 * batch

    assert largest_batch(budget, "cpu", 64, ask, Cell("a", "forward", 16)) == {"largest_batch": most}
    with pytest.raises(WorkerError, match="8 examples need 2 bytes, which is not more"):
        largest_batch(budget, "cpu", 64, lambda *asked: 1, Cell("a", "forward", 16))


def test_on_cuda_the_largest_batch_is_found_by_trying(scripted, monkeypatch):
    facts = SimpleNamespace(L2_cache_size=50 * 2**20, total_memory=80 * 2**30)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: facts)
    experiment = growth(device="cuda", memory_gib=3.0)
    found, _ = measured(experiment)
    assert at(found, "softmax", "forward").one("largest_batch") == 3 + 16
    assert not any(bounded for _, bounded in scripted.made), "CUDA reserves far more addresses than it uses"
    protocol = experiment.protocol
    assert (experiment.torch_device.type, protocol.rotate_bytes, protocol.warmup) == ("cuda", 50 * 2**20, 2)
    assert GrowthExperiment.report(found).count("fits into 3 GiB.") == 1


def test_each_mechanism_has_a_process_of_its_own_that_stays_for_all_lengths(scripted):
    measured(growth(lengths=[16, 32]))
    assert Counter(scripted.made) == {("softmax", True): 1, ("linformer", True): 1}


def test_the_rounds_visit_all_timings_of_all_mechanisms_in_changing_order(scripted):
    measured(growth())
    timings = [(name, kind) for name, method, kind, *_ in scripted.asked if method == "parts"]
    rounds = [timings[at : at + 4] for at in range(0, 12, 4)]
    assert len(timings) == 12 and len({frozenset(visited) for visited in rounds}) == 1 and len(set(rounds[0])) == 4
    assert len({tuple(visited) for visited in rounds}) > 1


def test_what_fails_is_a_cell_with_its_reason_and_the_others_go_on(scripted):
    scripted.wrong |= {
        ("softmax", "peak", "forward"): "OOM",
        ("softmax", "parts", "training"): "time limit",
        ("linformer", "peak", "training", 16, 512): "OOM",
    }
    found, _ = measured(growth())
    assert at(found, "softmax", "forward").failures == dict.fromkeys(("peak_bytes", "largest_batch", "seconds"), "OOM: scripted")
    assert at(found, "softmax", "training").failures == {"seconds": "time limit: scripted"}
    assert ("softmax", "parts", "forward", 16, 1) not in scripted.asked, "what cannot be held is not timed"
    linformer = at(found, LINFORMER, "training")
    assert linformer.failures == {"largest_batch": "OOM: scripted"} and linformer.one("peak_bytes") == 16 * 1024
    assert len(linformer.all("seconds")) == 3


def test_a_mechanism_that_cannot_be_built_is_not_asked(scripted):
    found, _ = measured(growth(lengths=[8, 16]))
    for kind in ("forward", "training"):
        refused = at(found, LINFORMER, kind, length=8)
        assert not refused.values and all(why.startswith("refused: ") for why in refused.failures.values())
        assert not at(found, LINFORMER, kind).failures
    assert not [asked for asked in scripted.asked if asked[0] == "linformer" and asked[3] == 8]


@pytest.mark.parametrize(("available", "most"), [(0.9, 2), (0.1, 1)])
def test_with_little_memory_one_worker_makes_room_for_the_next(available, most, scripted, monkeypatch):
    alive, counts = set(), []

    class Counted(Scripted):
        def ask(self, *asked, **limit):
            alive.add(self)
            counts.append(len(alive))
            return super().ask(*asked, **limit)

        def stop(self) -> None:
            alive.discard(self)

    monkeypatch.setattr("attn_zoo.bench.session.Worker", Counted)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=available * 2**34, total=2**34))
    found, _ = measured(growth(lengths=[16, 32], rounds=2))
    assert max(counts) == most and not alive
    assert len(found.cells) == 8 and all(len(cell.all("seconds")) == 2 for cell in found.cells)


# Time


def test_without_time_nothing_is_begun_and_it_is_said_and_measured_later(scripted):
    found, _ = measured(crossover(), ends=time.monotonic() - 1.0)
    assert not scripted.asked and len(found.cells) == 18
    assert {cell.failures["seconds"].partition(":")[0] for cell in found.cells} == {"no time left", "refused"}
    later = empty(crossover())
    later.take_over(found)
    assert [cell.label for cell in later.cells if cell.failures] == [LINFORMER] * 2, "what is refused stays refused"
    assert measured(crossover(), later.to_dict())[0].to_dict() == measured(crossover())[0].to_dict()


def test_no_request_outlives_the_time(scripted):
    measured(crossover(time_limit=10 * HANG), ends=time.monotonic() + HANG)
    limits = [limit for limit in scripted.limits if limit is not None]
    assert limits and max(limits) <= HANG
    assert all(later <= earlier for earlier, later in itertools.pairwise(limits)), "each gets what is left then"


@pytest.mark.parametrize(("named", "first"), [(False, 8), (True, 32)])
def test_of_named_lengths_the_longest_is_measured_first_if_there_is_a_time_limit(named, first, scripted):
    for ends, expected in ((time.monotonic() + 10 * HANG, first), (math.inf, 8)):
        scripted.asked.clear()
        measured(crossover(), ends=ends, longest_first=named)
        assert scripted.asked[0][3] == expected


@pytest.mark.parametrize(
    ("left", "words"),
    [(1e9, "that should suffice"), (13, "fewer rounds will be taken"), (-9, "and 0 s are left: this is too little, so the slow")],
)
def test_before_it_starts_it_says_whether_the_time_suffices(left, words, scripted, monkeypatch):
    experiment = crossover(attention=["linformer[projected_length=4]"])
    monkeypatch.setattr(type(experiment), "flops", lambda self, cell: 2 * 2048**3 / 18)  # a 18th of a second by the script's rate
    made = Session(experiment, empty(experiment))
    made.left = lambda: left  # type: ignore[method-assign]
    assert made.forecast().startswith("18 measurements need at least 12 s for 6 rounds and 14 s for 7, and ")
    assert words in made.forecast()


def stopped(left: float, *steps: float) -> list[str]:
    """Return the failures of cells whose steps take this many seconds. Six rounds, each with one step to warm up and one to time,
    take 12 s for a step of one second."""
    made = Session(crossover(), empty(crossover()), ends=math.inf)
    cells = [Cell(f"cell {at}", "forward", 16) for at in range(len(steps))]
    made._steps = dict(zip(cells, steps, strict=True))
    made.left = lambda: left  # type: ignore[method-assign]
    made._leave_out_slowest(cells)
    return [cell.failures.get("seconds", "") for cell in cells]


def test_the_slowest_are_stopped_first():
    whys = stopped(12 * 3.5, 1.0, 4.0, 2.0)
    assert whys == ["", "no time left: a step takes about 4 s, so 84 s are needed, and 42 s are left", ""]
    assert stopped(12 * 3.0, 1.0, 2.0) == ["", ""]
    assert all(stopped(-1.0, 1.0, 2.0))


@pytest.mark.parametrize(
    ("known", "expected"),
    [({}, 0.0), ({100: 2.0}, 4.0), ({50: 1.0, 100: 4.0}, 16.0), ({50: 1.0, 100: 9.0}, 36.0), ({50: 3.0, 100: 2.0}, 4.0)],
)
def test_growth_goes_on_as_it_was_between_linear_and_quadratic(known, expected):
    steps = {Cell("ours", "forward", n): seconds for n, seconds in {**known, 400: 99.0}.items()}
    assert expected_seconds(steps, Cell("ours", "forward", 200)) == pytest.approx(expected)
    assert expected_seconds(steps, Cell("ours", "training", 200)) == 0.0
    assert expected_seconds(steps, Cell("ours", "forward", 200, group="others")) == 0.0


def test_growth_is_of_a_sequence_whatever_the_batches():
    steps = {Cell("ours", "forward", 100, batch=4): 2.0}
    assert expected_seconds(steps, Cell("ours", "forward", 200, batch=2)) == pytest.approx(2.0)


# Resumption


@pytest.mark.parametrize(("make", "saves"), [(growth, 4 + 3 + 1), (crossover, 18 + 3 * (7 + 1))])
def test_it_goes_on_from_wherever_it_was_stopped_and_measures_nothing_again(make, saves, scripted):
    whole, saved = measured(make())
    assert len(saved) == saves, "after each cell is prepared, after each round, and at the end of each group"
    timings = [asked[1] for asked in scripted.asked].count("parts")
    for moment in saved:
        scripted.asked.clear()
        assert measured(make(), moment)[0].to_dict() == whole.to_dict()
        rows = [row for row in moment["rows"] if row["quantity"] == "seconds" and "value" in row]
        assert [asked[1] for asked in scripted.asked].count("parts") == timings - len(rows)


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.process] * (name == "models")) for name in EXPERIMENTS])
@pytest.mark.parametrize("reached", ["prepared", "asked once"])
def test_what_an_interrupt_leaves_can_be_read(name, reached, monkeypatch):
    experiment = EXPERIMENTS[name]()
    found = Measurement(name, experiment.identity(), experiment.protocol, describe_environment("cpu"), experiment.facts())
    session = Session(experiment, found)

    def stop(*taken):
        raise KeyboardInterrupt

    monkeypatch.setattr(session, "_take", stop)
    if reached == "prepared":
        for cell in experiment.groups()[0]:
            found.of(cell)
    else:
        with pytest.raises(KeyboardInterrupt):
            session.run()
    assert "|" in experiment.report(Measurement.from_dict(found.to_dict()))


def test_the_command_measures_and_goes_on(tmp_path, capsys):
    """With real processes: everything that is asked of a bench is there, and what no memory could hold is a cell."""
    output = tmp_path / "growth.json"
    words = ["measure", "attention=softmax:eager", "lengths=[64,500000]", "dim=8", "heads=2", "memory_gib=16"]
    words += ["rounds=2", "device=cpu", f"output={output}"]
    assert cli.main(words) == 0
    first = capsys.readouterr().out
    written = json.loads(output.read_text(encoding="utf-8"))
    found = Measurement.from_dict(written)
    forward, training = (at(found, "softmax:eager", kind, length=64) for kind in ("forward", "training"))
    assert written["complete"] and not forward.failures and not training.failures
    seconds, backward = (training.all(name) for name in ("seconds", "backward_seconds"))
    assert len(seconds) == 2 and all(0 < part < whole for part, whole in zip(backward, seconds, strict=True))
    assert (training.one("largest_batch") or 0) > 0
    assert (training.one("peak_bytes") or 0) > (forward.one("peak_bytes") or 0) > 64 * 64 * 2 * 4
    huge = at(found, "softmax:eager", "forward", length=500_000)
    assert not huge.values and huge.failures["seconds"].startswith("OOM: ")
    written["complete"] = False
    output.write_text(json.dumps(written), encoding="utf-8")
    assert cli.main(words) == 0
    again = capsys.readouterr()
    assert again.out == first and "going on from there" in again.err
    for changed, held in (([], "this measurement, which is finished"), (["dim=16"], "a measurement with other settings")):
        kept = output.read_bytes()
        assert cli.main([*words, *changed]) == 2 and output.read_bytes() == kept
        assert f"holds {held}" in capsys.readouterr().err
    output.write_text("my notes", encoding="utf-8")
    assert cli.main(words) == 2 and output.read_text(encoding="utf-8") == "my notes"
    assert "holds something else. Name another file, or delete this one" in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(("now", "kept"), [(1.0, ["time limit"]), (2.0, ["time limit"]), (3.0, [])])
def test_a_higher_limit_of_a_request_measures_again_what_took_longer_than_the_earlier_one(now, kept):
    cell = Cell("softmax", "forward", 16)
    earlier, later = (Measurement("growth", {"time_limit": limit}, None, {}) for limit in (2.0, now))
    earlier.of(cell).failures["seconds"] = "time limit: the request was not done after 2 s"
    for length in (8, 16):
        earlier.of(Cell("linear", "forward", length)).values["seconds"] = [1.0]
    later.take_over(earlier)
    assert [why.partition(":")[0] for why in later.of(Cell("softmax", "forward", 16)).failures.values()] == kept
    times = [later.of(Cell("linear", "forward", length)).all("seconds") for length in (8, 16)]
    assert times == [[1.0], [1.0] if kept else []], "quotients of times are computed within rounds"
