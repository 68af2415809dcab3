"""Intervals and what they are of: the truth lies in 95 of 100, margins are over the best control, gaps and averages have theirs."""

from __future__ import annotations

import random
from collections.abc import Mapping
from statistics import fmean

import pytest
from make import PERPLEXITY, make_record, records_of

from attn_zoo.leaderboard import ordered, render, tables
from attn_zoo.leaderboard.averages import averages, interquartile_mean
from attn_zoo.records import RunRecord


@pytest.mark.simulations
@pytest.mark.parametrize("seeds", [3, pytest.param(5, marks=pytest.mark.exhaustive)])
def test_scores_margins_and_gaps_of_simulated_records_cover_the_truth(seeds):
    """Accuracies of 2,000 examples; seeds are lucky or not for the control as well."""
    draw = random.Random(seeds)
    truth = {"test": 0.8, "margin": 0.3, "over_chance": 0.7, "train_gap": 0.05}
    hits = dict.fromkeys(truth, 0)
    count, records = 1000, []
    for task in map(str, range(count)):
        for seed in range(seeds):
            luck = draw.gauss(0, 0.03)
            test, control = 0.8 + luck + draw.gauss(0, 0.01), 0.5 + luck + draw.gauss(0, 0.01)
            train = test + 0.05 + draw.gauss(0, 0.01)
            scores = {name: round(2000 * value) / 2000 for name, value in {"test": test, "valid": test, "train": train}.items()}
            records.append(make_record("linformer", task, seed, scores=scores))
            records.append(make_record("uniform", task, seed, test=round(2000 * control) / 2000))
    for table in tables(records):
        for name, true in truth.items():
            found = getattr(table.rows[0], name)
            hits[name] += abs(found.mean - true) <= found.half_width
    assert hits.pop("margin") / count >= 0.95, "what a seed does to both rows widens the interval"
    assert all(0.93 <= hit / count <= 0.97 for hit in hits.values()), hits


def test_a_margin_is_over_the_best_control_over_all_seeds_of_both():
    records = [make_record("softmax", seed=seed, test=test) for seed, test in ((1, 0.80), (2, 0.90), (3, 0.85))]
    records += [make_record("uniform", seed=seed, test=test) for seed, test in ((2, 0.60), (3, 0.57), (4, 0.70))]
    records += [make_record("none", seed=seed, test=0.1) for seed in (1, 2, 3)]
    (table,) = tables(records)
    softmax = table.rows[0]
    assert table.control == "uniform"
    assert softmax.margin is not None and softmax.margin.mean == pytest.approx(0.85 - 1.87 / 3) and softmax.margin.count == 3
    assert [row.margin for row in table.rows[1:]] == [None, None]
    assert "best control uniform 62.3 %" in render([table], "terminal")


def test_a_margin_over_one_seed_has_no_interval_and_without_a_control_there_is_none():
    (table,) = tables([make_record(seed=1), make_record("uniform", seed=2)])
    assert table.rows[0].margin and table.rows[0].margin.half_width is None
    (table,) = tables([make_record(seed=1)])
    assert table.rows[0].margin is None


def test_a_score_that_is_no_number_is_a_failure():
    scores = {"test": float("nan"), "valid": 0.5, "train": 0.5}
    (table,) = tables([make_record(), make_record("linformer", scores=scores)])
    assert table.rows[1].test is None
    assert [str(failure) for failure in table.rows[1].failures] == ["done with seed 1: its test score is not a number"]


def grid(**cells: Mapping[str, tuple[float, ...]]) -> list[RunRecord]:
    return [record for task, rows in cells.items() for record in records_of(rows, task)]


FULL = {
    "digits": {"softmax": (0.9, 0.8), "linformer": (0.7, 0.7), "uniform": (0.5, 0.5)},
    "listops": {"softmax": (0.4, 0.5), "linformer": (0.3, 0.3), "uniform": (0.2, 0.2)},
}


def test_an_average_is_the_interquartile_mean_over_tasks_and_seeds():
    found = averages(tables(grid(**FULL)))
    assert found.reason is None and found.chance == pytest.approx(0.1)
    softmax = found.rows["softmax"]
    assert softmax.count == 2 and softmax.mean == pytest.approx(0.65)
    assert "average (%)" in render(tables(grid(**FULL)), "github", overview=True)


def test_the_interquartile_mean_and_its_interval_are_those_of_a_direct_computation():
    draw = random.Random(7)
    scores = [[draw.random() for _ in range(5)] for _ in range(3)]
    found = interquartile_mean(scores)
    every = sorted(score for task in scores for score in task)
    assert found.mean == pytest.approx(fmean(every[3:12])), "15 scores without 3 at each end"
    samples = sorted(fmean(sorted(draw.choice(task) for task in scores for _ in task)[3:12]) for _ in range(20_000))
    assert found.low == pytest.approx(samples[500], abs=0.01) and found.high == pytest.approx(samples[-500], abs=0.01)
    assert interquartile_mean([[0.2], [0.4]]).half_width is None, "one seed tells no spread"
    assert interquartile_mean([[0.5, 0.5], [1.0, 1.0]]).ends == (0.75, 0.75)


def test_a_task_on_which_a_row_fails_hardly_moves_its_average_and_an_interval_stays_within_0_and_1():
    found = interquartile_mean([[1.0, 1.0, 0.99]] * 4 + [[0.0, 0.1, 1.0]])
    assert found.mean > 0.99 and found.low >= 0 and found.high <= 1


def test_a_row_that_lacks_a_cell_or_a_seed_or_failed_has_no_average():
    lacking = grid(**FULL) + [make_record("performer", "digits", seed) for seed in (1, 2)]
    lacking += [make_record("reformer", "digits", seed) for seed in (1, 2)] + [make_record("reformer", "listops", 1)]
    lacking += [make_record("longformer", task, seed) for task in ("digits", "listops") for seed in (1, 2)]
    lacking += [make_record("longformer", "listops", 3, status="out_of_memory")]
    found = averages(tables(lacking))
    assert set(found.rows) == {"softmax", "linformer", "uniform"}
    line = next(line for line in render(tables(lacking), "github", overview=True).splitlines() if line.startswith("| performer"))
    assert line.split("|")[-2].strip() == "-"


def test_rows_of_an_overview_are_in_the_order_of_their_averages():
    cells = {
        "digits": {"longformer": (0.90, 0.90), "performer": (0.88, 0.88), "softmax": (0.89, 0.89), "uniform": (0.95, 0.95)},
        "listops": {"longformer": (0.40, 0.40), "performer": (0.70, 0.70), "uniform": (0.95, 0.95)},
    }

    def order(by: str) -> list[str]:
        made = [ordered(table, by) for table in tables(grid(**cells))]
        rows = render(made, "github", overview=True, by=by).split("|---")[-1].splitlines()[1:5]
        return [row.split("|")[1].split()[0] for row in rows]

    assert order("score") == ["performer", "longformer", "softmax", "uniform"], "softmax has no average, uniform is a control"
    assert order("parameters")[:2] == ["longformer", "performer"], "equal costs leave the rows in the order of their scores"


def test_only_shares_are_averaged():
    novels = records_of({"softmax": (30.0, 30.0), "uniform": (30.0, 30.0)}, "novels", card=PERPLEXITY)
    made = tables(grid(**FULL) + novels)
    assert averages(made).rows["softmax"].mean == pytest.approx(0.65)
    assert "The average leaves out Novels." in render(made, "github", overview=True)
