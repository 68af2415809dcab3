"""Bracketed search of the learning rate: which trials follow from results, without training, and one whole search."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
from make import make_record
from run_helpers import zoo

from attn_zoo.cli import run, tune
from attn_zoo.cli.bracket import LOWER, UPPER, Result, Trial, most, next_trials, ranking, seeds_wanted
from attn_zoo.cli.job import Command, Job
from attn_zoo.records import RunRecord, Store
from attn_zoo.records.store import CHECKPOINT
from attn_zoo.registry import task_card

RATES = (0.0003, 0.001, 0.003, 0.01, 0.03)
CAP = 2400


def searched(outcome: Callable[[Trial], Result]) -> tuple[dict[Trial, Result], list[list[Trial]]]:
    """Results of a search in which each trial ends as ``outcome`` says, and the trials in the sets that were asked for."""
    results: dict[Trial, Result] = {}
    asked = []
    while trials := next_trials(results, CAP, RATES):
        assert not set(trials) & set(results), "no trial is repeated"
        asked.append(trials)
        results |= {trial: outcome(trial) for trial in trials}
    return results, asked


def learner(soonest: dict[float, int]) -> Callable[[Trial], Result]:
    """Outcome in which rates learn after so many steps, others never."""

    def outcome(trial: Trial) -> Result:
        steps = soonest.get(trial.rate, 10**9)
        return Result(1.0, True, steps) if steps <= trial.steps else Result(0.05)

    return outcome


def test_a_rate_that_succeeds_early_ends_those_that_are_later():
    results, asked = searched(learner({0.003: 200, 0.01: 250, 0.001: 1000}))
    assert asked[0] == [Trial(rate, 300) for rate in RATES]
    assert asked[1:] == [[Trial(0.003, CAP, second=True), Trial(0.01, CAP, second=True)]], "the others cannot be sooner"
    assert ranking(results, CAP)[:2] == [0.003, 0.01]


def test_rates_that_learn_late_go_through_all_rungs():
    results, asked = searched(learner({0.001: 2000, 0.003: 900}))
    assert asked[1] == [Trial(rate, 1200) for rate in RATES], "on a plateau no rate is hopeless"
    assert asked[2:] == [[Trial(0.003, CAP, second=True), Trial(0.0003, CAP, second=True)]], (
        "the one that learned, and the best other"
    )
    assert ranking(results, CAP)[0] == 0.003


def test_a_score_far_below_the_best_of_the_first_rung_ends_a_rate():
    def outcome(trial: Trial) -> Result:
        if trial.rate == 0.03:
            return Result(None)
        return Result({0.0003: 0.1, 0.001: 0.42, 0.003: 0.5, 0.01: 0.45}[trial.rate] + trial.steps / 10**5)

    results, asked = searched(outcome)
    assert asked[1] == [Trial(rate, 1200) for rate in (0.001, 0.003, 0.01)], "0.0003 is hopeless, 0.03 diverged"
    assert asked[2] == [Trial(rate, CAP) for rate in (0.003, 0.01)], "two go on to the whole cap"
    assert asked[3] == [Trial(rate, CAP, second=True) for rate in (0.003, 0.01)]
    assert ranking(results, CAP) == [0.003, 0.01, 0.001, 0.0003, 0.03]


@pytest.mark.parametrize(("best", "beyond"), [(0.03, UPPER), (0.0003, LOWER)])
def test_a_search_is_extended_while_the_best_rate_is_at_an_edge_and_never_beyond_the_limits(best, beyond):
    results, asked = searched(learner({best: 200}))
    assert [Trial(beyond, 300)] in asked and ranking(results, CAP)[0] == best
    results, asked = searched(learner({best: 250, beyond: 100}))
    assert ranking(results, CAP)[0] == beyond and {trial.rate for trial in results} == {*RATES, beyond}
    assert Trial(beyond, CAP, second=True) in results


def test_with_two_seeds_successes_come_first_then_the_time_then_the_score():
    def outcome(trial: Trial) -> Result:
        if trial.rate == 0.003:
            return Result(0.2) if trial.second else Result(1.0, True, 100)
        return learner({0.01: 250})(trial)

    assert ranking(searched(outcome)[0], CAP)[0] == 0.01, "it succeeds with both seeds"
    assert ranking(searched(learner({0.003: 240, 0.01: 150}))[0], CAP)[0] == 0.01, "sooner"


def test_a_rate_that_reaches_90_percent_with_one_seed_is_better_than_one_that_never_does():
    def outcome(trial: Trial) -> Result:
        if trial.rate == 0.003:
            return Result(0.85) if trial.second else Result(0.97, False, 2000 if trial.steps == CAP else math.inf)
        return Result({0.001: 0.96}.get(trial.rate, 0.1) if trial.steps < CAP else 0.6)

    results, _ = searched(outcome)
    assert {trial.rate for trial in results if trial.second} == {0.001, 0.003}
    assert ranking(results, CAP)[:2] == [0.003, 0.001], "its mean score is higher"


def test_of_rates_as_soon_as_the_best_to_one_interval_of_validation_the_lower_is_chosen():
    assert ranking(searched(learner({0.01: 150, 0.03: 100}))[0], CAP)[:2] == [0.01, 0.03], "an interval of 50 steps"
    assert ranking(searched(learner({0.01: 200, 0.03: 100}))[0], CAP)[:2] == [0.03, 0.01]
    chain = ranking(searched(learner({0.003: 200, 0.01: 150, 0.03: 100}))[0], CAP)
    assert chain[:3] == [0.01, 0.03, 0.003], "0.003 is later than 0.03 by two intervals"


def test_the_chosen_rate_is_never_at_an_edge_unless_at_the_limit_and_searches_are_finite():
    for soonest in product((200, 900, 2000, math.inf), repeat=3):
        for at in range(3):
            found = dict(zip(RATES[at : at + 3], soonest, strict=True))
            results, asked = searched(learner(found))  # type: ignore[arg-type]
            tried = sorted({trial.rate for trial in results})
            best = ranking(results, CAP)[0]
            assert tried[0] < best < tried[-1] or best in (LOWER, UPPER), (found, best)
            assert sum(map(len, asked)) <= most(CAP, RATES)[0]


def test_trials_that_all_diverge_are_few():
    results, asked = searched(lambda trial: Result(None))
    assert len(asked[0]) == 5 and not any(trial.second for trial in results)


def test_seeds_follow_the_rule():
    assert seeds_wanted([], main=True, control=0.2) == 5
    assert seeds_wanted([], main=False, control=0.2) == 3
    assert seeds_wanted([0.2, 0.21, 0.19], main=False, control=0.2) == 3, "within two points of the controls"
    assert seeds_wanted([0.2, 0.9, 0.19], main=False, control=0.2) == 5, "one leaves the controls"
    assert seeds_wanted([0.9, 0.95, 0.92, 0.91, 0.9], main=False, control=0.2) == 5
    assert seeds_wanted([0.9, 0.95, 0.6, 0.91, 0.9], main=True, control=0.2) == 10, "they differ by more than 20 points"
    assert seeds_wanted([0.9, 0.95, 0.9, 0.91, 0.9, 0.1], main=True, control=0.2) == 5, "the first five decide"
    assert seeds_wanted([30.0, 30.1, 30.0], main=False, control=22.0, share=False) == 3, "perplexities"
    assert seeds_wanted([16.0, 16.3, 16.1, 16.0, 16.9], main=True, control=22.0, share=False) == 5


SMALL = ["task=mqar", "task.length=16", "task.pairs=2", "task.vocabulary=16", "task.train=200", "task.valid=40", "task.test=40"]
SMALL += ["model.dim=16", "model.heads=2", "budget.steps=48", "budget.warmup_steps=2", "budget.batch_size=8", "threads=1"]
TUNE = ["tune", "experiment=profile3_encoder", "attention=none,linear", *SMALL]


def fake_launch(monkeypatch, status: Callable[[Job], str]) -> None:
    """Let commands record runs without training. The validation score of a done run is its learning rate."""

    def launched(command: Command, jobs: Sequence[Job]) -> list[RunRecord]:
        store = Store(command.settings.records)
        return [store.find(job.run_id, job.tuning) or recorded(store, job) for job in jobs]

    def recorded(store: Store, job: Job) -> RunRecord:
        made = make_record(job.spec.attention, job.spec.task, status=status(job), run_id=job.run_id, spec_seed=job.spec.seed)
        score, trial = job.spec.budget.learning_rate, job.tuning is not None and job.tuning.trial is not None
        scores = dict.fromkeys(["valid"] if trial else ["valid", "test"], score) if made.status == "done" else {}
        card = {**made.task_card, "version": task_card(job.spec.task).version}
        made = replace(made, spec=job.spec, task_card=card, protocol=job.spec.protocol, scores=scores, curve=(), tuning=job.tuning)
        store.add(made)
        return made

    monkeypatch.setattr(run, "_records", launched)


def trials_by_settings(folder: Path) -> dict[tuple[float, int, int], int | None]:
    records, damaged = Store(folder).load()
    assert damaged == []
    return {
        (record.spec.budget.learning_rate, record.spec.budget.steps, record.spec.seed): record.tuning.trial
        for record in records
        if record.tuning and record.is_trial
    }


@pytest.mark.process
def test_trials_that_are_missing_get_their_own_numbers_again(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    fake_launch(monkeypatch, lambda job: "done")
    words = ["experiment=profile3_encoder", "attention=none", *SMALL]
    assert run.run_command(words) == 0
    numbers = trials_by_settings(tmp_path / "runs")
    assert sorted(map(int, map(str, numbers.values()))) == list(range(len(numbers)))
    for record in Store("runs").load()[0]:
        if record.tuning and record.tuning.trial in (1, 3):  # as after an interruption of several workers
            (tmp_path / "runs" / str(record.source)).unlink()
    assert run.run_command(words) == 0
    assert trials_by_settings(tmp_path / "runs") == numbers


@pytest.mark.process
def test_a_rate_whose_longer_trials_all_fail_is_chosen_by_its_shorter_trial(monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    fake_launch(monkeypatch, lambda job: "timed_out" if job.tuning and job.spec.budget.steps == 24 else "done")
    assert tune.run_command(["experiment=profile3_encoder", "attention=none", "seeds=1", *SMALL]) == 0
    (final,) = (record for record in Store("runs").load()[0] if not record.is_trial)
    assert final.tuning is not None and final.tuning.best_valid == final.spec.budget.learning_rate
    assert final.spec.budget.steps == 48 and f"best of {final.tuning.trials} trials" in " ".join(capsys.readouterr().out.split())


@pytest.mark.process
def test_a_mechanism_whose_trials_all_fail_does_not_end_the_searches_of_others(monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    fake_launch(monkeypatch, lambda job: "diverged" if job.spec.attention == "linear" else "done")
    words = ["experiment=profile3_encoder", "attention=linear,none", "seeds=1", *SMALL]
    assert tune.run_command(words) == 1
    records = Store("runs").load()[0]
    assert {record.spec.attention for record in records if not record.is_trial} == {"none"}
    printed = " ".join(capsys.readouterr().out.split())
    assert "trials of linear on mqar has a score, so nothing is trained. Change the search space, or leave this" in printed


@pytest.mark.process
def test_searches_without_any_score_end_without_tables(monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    fake_launch(monkeypatch, lambda job: "failed")
    assert tune.run_command(["experiment=profile3_encoder", "attention=linear", "seeds=1", *SMALL]) == 1
    assert capsys.readouterr().out.strip().endswith("or leave this mechanism out")


@pytest.mark.process
@pytest.mark.parametrize("rows", ["linear", pytest.param("none,linear", marks=pytest.mark.exhaustive)])
def test_a_bracketed_search_is_recorded_goes_on_and_is_followed_by_as_many_seeds_as_the_rule_says(rows, tmp_path):
    words = ["tune", "experiment=profile3_encoder", f"attention={rows}", *SMALL]
    status, _, errors = zoo(*words, folder=tmp_path)
    assert status == 0, errors
    records, damaged = Store(tmp_path / "runs").load()
    assert damaged == [] and {record.protocol for record in records} == {"3.0"}
    for attention in rows.split(","):
        trials = [record for record in records if record.is_trial and record.spec.attention == attention]
        assert {record.spec.seed for record in trials} == {0, 1000}, "search seeds are never tested"
        assert {record.spec.budget.steps for record in trials} == {6, 24, 48}
        assert {record.tuning.trial for record in trials if record.tuning} == set(range(len(trials)))
        longer = [record for record in trials if record.spec.budget.steps == 24]
        assert all(part["step"] == 6 for record in longer for part in record.environment["resumed"]) and longer
        final = [record for record in records if not record.is_trial and record.spec.attention == attention]
        assert {record.spec.seed for record in final} >= {1, 2, 3, 4, 5} and {record.spec.budget.steps for record in final} == {48}
        assert all(record.spec.task_options["data_seed"] == record.spec.seed for record in [*trials, *final])
    assert not list((tmp_path / "runs").glob(f".*{CHECKPOINT}")), "states that no trial went on from are removed"
    names = {path.name for path in (tmp_path / "runs").glob("*.json")}
    status, _, errors = zoo(*words, folder=tmp_path)
    assert status == 0 and names == {path.name for path in (tmp_path / "runs").glob("*.json")}, "nothing is trained again"
    status, output, errors = zoo(*words, "--plan", folder=tmp_path)
    assert status == 0 and "All runs are recorded" in output, errors
    trial = next(record for record in Store(tmp_path / "runs").load()[0] if record.is_trial and record.spec.attention == "linear")
    for path in (tmp_path / "runs").glob(f"*-s{trial.spec.seed}-{trial.run_id}-*.json"):
        path.unlink()
    status, output, errors = zoo(*words, "--plan", folder=tmp_path)
    assert status == 0 and "1 cell, at most" in output and "linear" in output, errors


@pytest.mark.process
def test_a_plan_prints_runs_and_hours_and_starts_nothing(tmp_path):
    status, output, errors = zoo(
        "tune", "experiment=profile3_encoder", "task=copying", "attention=softmax,mega,linear+softmax", "--plan", folder=tmp_path
    )
    assert status == 0, errors
    assert "copying  softmax" in output and "linear+softmax" in output and "3 cells, at most" in output and "core hours" in output
    assert not list(tmp_path.iterdir())
    status, output, errors = zoo("run", "-m", "experiment=quickstart", "task=mqar", "attention=softmax", "--plan", folder=tmp_path)
    assert status == 0 and "1 cell, at most 3 runs" in output, errors
    assert not list(tmp_path.iterdir())
