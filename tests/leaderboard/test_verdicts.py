"""Verdicts: the best row, rows that differ from it or do not, controls, flat rows, and none where seeds do not suffice."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
from make import PERPLEXITY, make_record, records_of, until_criterion
from scipy import stats

from attn_zoo.leaderboard import render, tables
from attn_zoo.leaderboard.metrics import verdict_sentence
from attn_zoo.leaderboard.statistics import resolution
from attn_zoo.leaderboard.table import Table
from attn_zoo.records import RunRecord

CLEAR = {
    "softmax": (0.90, 0.91, 0.92, 0.90, 0.91),
    "linformer": (0.89, 0.92, 0.91, 0.91, 0.90),
    "performer": (0.60, 0.62, 0.61, 0.60, 0.62),
    "reformer": (0.40, 0.41, 0.43, 0.41, 0.42),
    "uniform": (0.30, 0.30, 0.31, 0.30, 0.30),
}


def verdicts(table: Table) -> dict[str, str | None]:
    return {row.label: row.verdict for row in table.rows if not row.control}


def test_one_row_is_best_and_others_are_compared_with_it():
    (table,) = tables(records_of(CLEAR | {"longformer": (0.31, 0.30, 0.30, 0.32, 0.30)}))
    assert verdicts(table) == {
        "softmax": "best",
        "linformer": "not distinguishable from the best",
        "performer": "worse",
        "reformer": "worse",
        "longformer": "no better than the best control",
    }
    assert table.judgement.best == "softmax" and table.judgement.reason is None
    assert all(row.verdict is None for row in table.rows if row.control)
    text = render([table], "terminal", wide=True)
    assert "worse, -29.8 ± " in text and "not distinguishable from the best, -0.2 ± " in text


def test_every_row_is_compared_with_the_best_softmax_and_the_best_control_by_welch_with_holms_correction():
    (table,) = tables(records_of({"linear": (0.97, 0.95, 0.96), **CLEAR}, data={"test": {"examples": 1000, "digest": "0"}}))
    rows = {row.label: row for row in table.rows}
    contenders = ["linear", "softmax", "linformer", "performer", "reformer"]
    pairs = [(c.row, c.against) for c in table.judgement.comparisons]
    wanted = {frozenset((one, other)) for other in ("linear", "softmax", "uniform") for one in contenders if one != other}
    assert set(map(frozenset, pairs)) == wanted and len(pairs) == len(wanted), "each pair once"
    p_values = {(a, b): welch_by_scipy([*rows[a].by_seed.values()], [*rows[b].by_seed.values()], 1000) for a, b in pairs}
    ascending, most = sorted(p_values, key=p_values.__getitem__), 0.0
    found = {(c.row, c.against): c.p for c in table.judgement.comparisons}
    for passed, pair in enumerate(ascending):
        most = max(most, min(1.0, (len(pairs) - passed) * p_values[pair]))
        assert found[pair] == pytest.approx(most, rel=1e-9)
    turned = rows["linear"].against_softmax
    assert turned and turned.row == "linear" and turned.difference.mean == pytest.approx(0.96 - 0.908)


def welch_by_scipy(these: Sequence[float], those: Sequence[float], examples: int) -> float:
    parts = []
    for scores in (these, those):
        mean, count = math.fsum(scores) / len(scores), len(scores)
        deviation = math.sqrt(math.fsum((score - mean) ** 2 for score in scores) / (count - 1))
        parts += [mean, max(deviation, math.sqrt(mean * (1 - mean) / examples)), count]
    return float(stats.ttest_ind_from_stats(*parts, equal_var=False).pvalue)


def test_rows_of_auto_and_of_eager_have_names_of_their_own():
    scores = {"auto": 0.9, "eager": 0.7}
    records = [make_record(seed=seed, test=test, spec_implementation=kind) for kind, test in scores.items() for seed in (1, 2, 3)]
    (table,) = tables(records)
    assert {row.label: row.verdict for row in table.rows} == {"softmax": "best", "softmax (eager)": "worse"}
    assert [row.against_softmax and row.against_softmax.against for row in table.rows] == [None, "softmax"]
    (alone,) = tables(records[3:])
    assert [row.label for row in alone.rows] == ["softmax"]


def test_verdicts_on_a_metric_of_which_less_is_better():
    (table,) = tables(records_of({name: [100 * v for v in values] for name, values in CLEAR.items()}, card=PERPLEXITY))
    assert verdicts(table) == dict.fromkeys(("reformer", "performer", "linformer", "softmax"), "no better than the best control")
    low = {name: [100 * (1 - v) for v in values] for name, values in CLEAR.items()}
    (table,) = tables(records_of(low, card=PERPLEXITY))
    assert verdicts(table)["softmax"] == "best" and verdicts(table)["performer"] == "worse"
    assert all(row.against_best is None or row.against_best.difference.mean > 0 for row in table.rows if row.verdict)


def test_noise_makes_no_row_the_best():
    """A row whose seeds differ more and whose mean is lower is not distinguishable at most; a sure one with this mean is worse."""
    best = {"softmax": (0.97, 0.98, 0.99, 0.98, 0.98), "uniform": (0.3, 0.3, 0.31, 0.3, 0.29)}
    words = []
    for spread in (0.002, 0.02, 0.1, 0.21):
        scores = tuple(0.74 + spread * step for step in (-1.2, -0.6, 0.0, 0.6, 1.2))
        (table,) = tables(records_of(best | {"performer": scores}))
        found = verdicts(table)
        assert found["softmax"] == "best"
        words.append(found["performer"])
    assert words[0] == words[1] == "worse" and words[-1] == "not distinguishable from the best"


def test_a_noisy_row_with_the_greatest_mean_is_not_the_best_unless_it_is_better_than_the_controls():
    lucky = (1.0, 1.0, 0.6, 1.0, 0.5)
    (table,) = tables(
        records_of({"softmax": (0.8, 0.8, 0.81, 0.8, 0.79), "performer": lucky, "uniform": (0.6, 0.6, 0.61, 0.6, 0.6)})
    )
    assert [row.label for row in table.rows] == ["performer", "softmax", "uniform"]
    assert verdicts(table) == {"performer": "not distinguishable from the best", "softmax": "best"}


def test_the_order_of_rows_and_of_seeds_changes_nothing():
    draw = random.Random(4)
    (table,) = tables(records_of(CLEAR))
    for _ in range(5):
        turned = {name: draw.sample(scores, len(scores)) for name, scores in draw.sample(list(CLEAR.items()), len(CLEAR))}
        (again,) = tables(draw.sample(records_of(turned), 5 * len(CLEAR)))
        assert verdicts(again) == verdicts(table)
        for one, other in zip(again.judgement.comparisons, table.judgement.comparisons, strict=True):
            assert (one.row, one.against) == (other.row, other.against) and one.p == pytest.approx(other.p, rel=1e-9)


def test_seeds_need_not_be_the_same():
    others = [make_record("linformer", seed=seed + 10, test=score) for seed, score in enumerate(CLEAR["linformer"])]
    scores = {name: values for name, values in CLEAR.items() if name != "linformer"}
    (table,), (same,) = tables([*records_of(scores), *others]), tables(records_of(CLEAR))
    assert verdicts(table) == verdicts(same)


def test_three_equal_scores_are_no_surer_than_the_test_set_allows():
    close = {"softmax": [0.90] * 3, "linformer": [0.88] * 3, "uniform": [0.3] * 3}
    (table,) = tables(records_of(close, data={"test": {"examples": 100, "digest": "0"}}))
    assert verdicts(table)["linformer"] == "not distinguishable from the best", "100 examples: two answers more or less"
    (table,) = tables(records_of(close, data={"test": {"examples": 1_000_000, "digest": "0"}}))
    assert verdicts(table)["linformer"] == "worse"


def test_a_difference_below_one_point_does_not_count_whatever_the_test_says():
    near = {"softmax": (0.900, 0.9001, 0.9002), "linformer": (0.892, 0.8921, 0.8922), "uniform": (0.5, 0.5001, 0.5002)}
    (table,) = tables(records_of(near, data={"test": {"examples": 10_000_000, "digest": "0"}}))
    found = table.rows[1].against_best
    assert found and found.p < 0.05 and table.rows[1].verdict == "not distinguishable from the best"
    for value, word in ((8.07, "not distinguishable from the best"), (8.2, "worse")):
        scores = {"softmax": (8.0, 8.001, 8.002), "linformer": (value, value + 0.001, value + 0.002)}
        (table,) = tables(records_of(scores, card=PERPLEXITY))
        assert verdicts(table) == {"softmax": "best", "linformer": word}


@pytest.mark.parametrize(("seeds", "missing"), [(1, 2), (2, 1)])
def test_under_three_seeds_there_is_no_verdict_and_it_is_said_how_many_are_missing(seeds, missing):
    (table,) = tables(records_of({name: scores[:seeds] for name, scores in CLEAR.items()}))
    assert set(verdicts(table).values()) == {None} and not table.judgement.comparisons
    text = render([table], "terminal", wide=True)
    assert f"no verdicts with fewer than 3 seeds; {missing} more needed" in text and "Holm" not in text


def test_a_row_with_too_few_seeds_takes_no_part():
    (table,) = tables(records_of(CLEAR | {"softmax": (0.99, 0.99)}))
    assert verdicts(table)["softmax"] is None and table.judgement.best == "linformer"
    assert "softmax: no verdict with fewer than 3 seeds; 1 more needed" in render([table], "terminal", wide=True)


def test_a_row_of_which_a_seed_failed_has_no_verdict():
    (table,) = tables([*records_of(CLEAR), make_record("linformer", seed=6, status="diverged")])
    assert verdicts(table)["linformer"] is None and verdicts(table)["performer"] == "worse"
    told = "linformer: no verdict, because not every seed has a score (diverged with seed 6)"
    assert told in render([table], "terminal", wide=True)


def test_one_contender_alone_has_no_verdict():
    (table,) = tables(records_of({name: CLEAR[name] for name in ("softmax", "uniform")}))
    assert table.judgement.reason == "no verdicts, because there is only one contender"


def test_if_the_best_row_is_no_better_than_a_control_no_row_is():
    (table,) = tables(records_of({"softmax": (0.30, 0.31, 0.32), "linformer": (0.3, 0.2, 0.4), "uniform": (0.31, 0.30, 0.31)}))
    assert set(verdicts(table).values()) == {"no better than the best control"}


def test_a_control_with_too_few_seeds_does_not_stand_for_one_that_can_be_compared():
    scores = {"softmax": (0.505, 0.506, 0.504), "linear": (0.5, 0.501, 0.499), "none": (0.5,) * 5}
    (table,) = tables(records_of(scores))
    (more,) = tables(records_of({**scores, "uniform": (0.52,)}))
    assert verdicts(more) == verdicts(table) == dict.fromkeys(("softmax", "linear"), "no better than the best control")
    assert more.control == "none"


def test_a_row_that_succeeds_at_some_seeds_only_is_not_called_one_without_success():
    scores = {
        "softmax": (1.0, 1.0, 1.0),
        "linformer": (1.0, 1.0, 0.25),
        "performer": (0.20, 0.3, 0.25),
        "uniform": (0.25, 0.24, 0.26),
    }
    (table,) = tables(records_of(scores))
    assert verdicts(table) == {
        "softmax": "best",
        "linformer": "not distinguishable from the best",
        "performer": "no better than the best control",
    }


def test_a_row_with_flat_losses_at_the_level_of_the_controls_is_not_trained():
    records = records_of(CLEAR | {"longformer": (0.30, 0.31, 0.30, 0.29, 0.30)})
    curve = ({"step": 10, "train_seconds": 1.5, "train_loss": 0.5, "valid": 0.3},)
    flat = [
        replace(record, stopped="cap", flat=True, curve=curve) if record.spec.attention in ("longformer", "reformer") else record
        for record in records
    ]
    (table,) = tables(flat)
    assert verdicts(table)["longformer"] == "not trained"
    assert verdicts(table)["reformer"] == "worse", "its validation is 12 points above the best control's"
    (table,) = tables([*flat[:-1], records[-1]])
    assert verdicts(table)["longformer"] == "no better than the best control", "the loss fell at a seed"


def learned(steps: Mapping[str, Sequence[int | None]]) -> list[RunRecord]:
    """Records of runs until a criterion, by attention."""
    at_cap = {name: 0.2 if name == "uniform" else 0.6 for name in steps}
    return [record for name, soon in steps.items() for record in until_criterion(name, soon, at_cap=at_cap[name], flat=False)]


def test_rows_that_reached_the_criterion_at_all_seeds_are_compared_by_the_logarithm_of_their_steps():
    steps: dict[str, Sequence[int | None]] = {
        "linear": (600, 700, 650, 650, 600),
        "softmax": (150, 150, 200, 150, 200),
        "nystrom": (200, 150, 200, 200, 250),
        "performer": (900, None, None, None, None),
        "uniform": (None,) * 5,
    }
    (table,) = tables(learned(steps))
    assert [row.label for row in table.rows] == ["softmax", "nystrom", "linear", "performer", "uniform"], "the soonest first"
    rows = {row.label: row for row in table.rows}
    assert verdicts(table) == {
        "softmax": "best",
        "nystrom": "not distinguishable from the best",
        "linear": "worse",
        "performer": "worse",
    }
    found = rows["linear"].against_best
    assert found and found.ratio
    logs = {name: [math.log(step) for step in steps[name] if step] for name in ("linear", "softmax")}
    floored = []
    for values in (logs["linear"], logs["softmax"]):
        mean = math.fsum(values) / 5
        deviation = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / 4)
        floored += [mean, max(deviation, 50 / math.exp(mean)), 5]
    p = stats.ttest_ind_from_stats(*floored, equal_var=False).pvalue
    assert p <= found.p <= len(table.judgement.comparisons) * p * (1 + 1e-9)
    assert found.ratio.mean == pytest.approx(floored[0] - floored[3])
    assert rows["performer"].against_best and rows["performer"].against_best.ratio is None, "it is compared by its scores"
    text = render([table], "terminal", wide=True)
    assert "worse, 3.8 (2.64 to 5.46) times the steps" in text
    said = verdict_sentence(rows["linear"], table)
    assert said == "worse than the best (softmax): it needs 3.8 (2.64 to 5.46) times softmax's steps to 90 % of the ceiling"
    data = json.loads(render([table], "json"))[0]
    assert {row["label"]: row["verdict"] for row in data["rows"]}["linear"] == "worse"


def test_equal_steps_are_no_surer_than_one_interval_of_validation():
    (table,) = tables(learned({"softmax": (100,) * 3, "linear": (150,) * 3, "nystrom": (2000,) * 3, "uniform": (None,) * 3}))
    assert verdicts(table)["linear"] == "not distinguishable from the best" and verdicts(table)["nystrom"] == "worse"


def test_the_resolution_of_a_test_set():
    measured = resolution({"metric": "accuracy"}, {"test": {"examples": 400}})
    assert (
        measured.floor(0.5) == pytest.approx(0.025)
        and measured.floor(1.0) == pytest.approx(1e-6)
        and measured.bounds == (-1.0, 1.0)
    )
    assert resolution({"metric": "perplexity"}, {"test": {"examples": 400}}).floor(8.0) == pytest.approx(8e-6), "not a count"


def test_verdicts_and_margins_stay_those_among_all_where_one_attention_is_shown():
    records = records_of(CLEAR)
    (whole,), (part,) = tables(records), tables(records, attention="performer")
    (shown,), (same,) = part.rows, (row for row in whole.rows if row.attention == "performer")
    assert (shown.label, shown.verdict, shown.margin) == (same.label, same.verdict, same.margin)
    assert shown.verdict == "worse" and part.best_control == whole.best_control


def test_rows_that_reached_the_criterion_are_compared_by_their_scores_if_the_test_has_other_inputs():
    steps = {"linear": (100, 100, 150, 100, 100), "softmax": (300, 350, 300, 300, 350), "uniform": (None,) * 5}
    longer = [
        replace(
            record,
            task_card={**record.task_card, "criterion": "validation, with 4 to 16 pairs"},
            scores={**record.scores, "test": 0.6} if record.spec.attention == "linear" else record.scores,
        )
        for record in learned(steps)
    ]
    (same,), (table,) = tables(learned(steps)), tables(longer)
    assert verdicts(same) == {"linear": "best", "softmax": "worse"}, "both are at the top, and linear needs fewer steps"
    assert verdicts(table) == {"softmax": "best", "linear": "worse"}
    assert [row.label for row in table.rows] == ["softmax", "linear", "uniform"]
    assert all(found.ratio is None for found in table.judgement.comparisons)
