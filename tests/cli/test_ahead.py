"""``--plan``: the time of a step and the hours of a command, from records."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from make import make_record

from attn_zoo.cli.ahead import ahead, step_seconds
from attn_zoo.cli.main import main
from attn_zoo.cli.run import plan
from attn_zoo.records import Store
from attn_zoo.registry import build_task
from attn_zoo.runner.count import count_per_example, counted_implementation

SMALL = ["task=mqar", "level=smoke"]


def spec_of(*words):
    (spec,) = plan([*SMALL, *words]).specs
    return spec


def recorded(seconds, *words):
    """Record of a run whose steps took ``seconds``."""
    spec = spec_of(*words)
    counted = count_per_example(spec, build_task(spec.task, **spec.task_options).spec, counted_implementation(spec))
    record = make_record(spec.attention, spec.task, measured={"step_seconds_median": seconds})
    return replace(record, spec=spec, counted={**record.counted, **counted})


def work(record):
    return record.counted["training_flops_per_example"] * record.spec.budget.batch_size


def test_a_step_takes_as_long_as_the_fastest_record_of_the_same_row_and_sizes():
    known = [recorded(seconds, "attention=linear") for seconds in (0.2, 0.1, 0.6)] + [recorded(9.0, "attention=softmax")]
    assert step_seconds(spec_of("attention=linear", "seed=5", "task.train=900"), known) == 0.1


def test_a_row_without_a_record_takes_the_median_time_of_other_mechanisms_per_flop():
    rows = {"softmax": (0.5, 4.0), "performer": (0.2,), "longformer": (9.0,)}
    known = [recorded(each, f"attention={name}") for name, seconds in rows.items() for each in seconds]
    linear = recorded(1.0, "attention=linear")
    rates = [min(seconds) / work(recorded(1.0, f"attention={name}")) for name, seconds in rows.items()]
    assert step_seconds(linear.spec, known) == pytest.approx(sorted(rates)[1] * work(linear))


@pytest.mark.parametrize("word", ["task.length=64", "model.dim=64", "budget.batch_size=8"])
def test_a_step_of_other_sizes_takes_as_many_times_longer_as_it_has_flops(word):
    known, larger = recorded(0.5, "attention=softmax"), recorded(1.0, "attention=softmax", word)
    assert work(known) != work(larger)
    assert step_seconds(larger.spec, [known]) == pytest.approx(0.5 * work(larger) / work(known))


def test_a_step_is_unknown_if_only_a_control_is_recorded():
    control = recorded(0.5, "attention=none")
    control = replace(control, attention_card={**control.attention_card, "control": True})
    assert step_seconds(spec_of("attention=linear"), [control]) is None


def test_runs_of_equal_time_take_this_time_and_that_of_their_validations(tmp_path):
    words = ["budget.seconds=3600", "budget.schedule=constant", "budget.batch_size=10", "budget.evaluate_every=10"]
    planned = plan(["-m", *SMALL, "attention=softmax", "seed=1,2", *words, "task.valid=150", f"records={tmp_path}"])
    assert "1 cell, at most 2 runs and 3.0 core hours" in ahead([planned])


def test_hours_that_no_record_tells_are_not_printed_as_zero(tmp_path):
    planned = plan(["-m", "task=adding", "level=smoke", "attention=softmax", "seed=1,2", f"records={tmp_path}"])
    said = ahead([planned])
    assert "1 cell, at most 2 runs. The core hours are unknown" in said and "0.0 core hours" not in said


@pytest.mark.parametrize("planned_only", [True, False])
def test_a_search_reads_texts_in_a_folder_of_ones_own(planned_only, tmp_path, capsys):
    letters, texts = random.Random(1), tmp_path / "texts"
    texts.mkdir()
    for at in range(6):
        (texts / f"{at}.txt").write_text(" ".join("".join(letters.choices("abcdefgh", k=5)) for _ in range(600)))
    words = ["task=causal_language", "task.files=folder", f"task.path={texts}", "task.tokens=bytes", "task.vocabulary=0"]
    words += ["task.length=32", "task.train=20", "model.dim=16", "model.heads=2", "model.depth=1"]
    words += ["budget.steps=12", "budget.evaluate_every=12", "tuning.sampler=grid", "budget.learning_rate=choice(0.01,0.02)"]
    words += ["seeds=1", f"records={tmp_path / 'runs'}", "report=false"]
    assert main(["tune", "attention=softmax", *words]) == 0
    if planned_only:  # softmax is recorded, so the time of another row follows from counts, which need the task
        assert main(["tune", "attention=none", *words, "--plan"]) == 0
        assert "1 cell, at most 3 runs and 0.0 core hours" in capsys.readouterr().out
    else:
        assert len(Store(tmp_path / "runs").load()[0]) == 3 and str(texts) not in capsys.readouterr().out
