"""Ranks: false ones in at most one table of twenty, true ones found, ties lettered, none where seeds do not suffice."""

from __future__ import annotations

import random
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from make import make_record
from scipy import stats

from attn_zoo.leaderboard import render, tables
from attn_zoo.leaderboard.ranking import _letters
from attn_zoo.leaderboard.statistics import Floats, holm, pair_p_values

TABLES = 5000
SLACK = 2.5 * (0.05 * 0.95 / TABLES) ** 0.5
"""Of a share that is 0.05 in truth, over so many tables."""


def simulated(rows: int, seeds: int, spreads: Any, examples: int | None = None, gaps: Any = 0.0, kind: str = "normal") -> Floats:
    """Scores of shape (tables, rows, seeds) of rows that differ by ``gaps`` alone; seeds are lucky or not for all rows alike."""
    chance = np.random.default_rng(rows * 1000 + seeds)
    luck = chance.normal(0, 0.03, (TABLES, 1, seeds))
    shape = (TABLES, rows, seeds)
    own = chance.exponential(1.0, shape) - 1 if kind == "skewed" else chance.standard_normal(shape)
    scores = 0.7 + luck + own * np.broadcast_to(spreads, (rows,))[:, None] + np.broadcast_to(gaps, (rows,))[:, None]
    return scores if examples is None else np.round(scores * examples) / examples


def share_with_a_rank(scores: Floats, grain: float = 0.0) -> float:
    return float((holm(pair_p_values(scores, grain)) <= 0.05).any(axis=-1).mean())


SIZES = [(2, 3), (5, 3), (15, 3), (5, 5), (15, 5)]


@pytest.mark.parametrize(("rows", "seeds"), SIZES)
def test_equal_rows_are_ranked_in_at_most_one_table_of_twenty(rows, seeds):
    assert share_with_a_rank(simulated(rows, seeds, 0.01)) <= 0.05 + SLACK
    assert share_with_a_rank(simulated(rows, seeds, np.geomspace(0.002, 0.04, rows))) <= 0.05 + SLACK, "spreads twentyfold"
    assert share_with_a_rank(simulated(rows, seeds, 0.01, kind="skewed")) <= 0.05 + SLACK


def test_the_limit_of_the_method_is_known():
    """Rows of which some are sure and some fall far at few seeds: no test on five seeds can see what did not happen at them."""
    share = share_with_a_rank(simulated(5, 5, np.geomspace(0.002, 0.04, 5), kind="skewed"))
    assert 0.05 < share < 0.16, "ranking.py says up to three times as often"


@pytest.mark.parametrize(("rows", "seeds"), SIZES)
@pytest.mark.parametrize("spread", [0.3, 1.0, 2.0])
def test_also_where_scores_are_shares_of_few_examples(rows, seeds, spread):
    scores = simulated(rows, seeds, spread / 359, examples=359)
    assert share_with_a_rank(scores, 1 / 359) <= 0.05 + SLACK


def test_without_the_grain_coarse_scores_would_be_ranked_falsely():
    assert share_with_a_rank(simulated(15, 3, 1 / 359, examples=359), grain=1e-6) > 0.5


@pytest.mark.parametrize(("seeds", "gap", "least"), [(5, 0.10, 0.95), (3, 0.40, 0.9)])
def test_a_real_gap_is_found(seeds, gap, least):
    """Of five rows one is worse by ``gap`` where the others differ by 0.01 at a seed; three seeds need a wide gap."""
    scores = simulated(5, seeds, 0.01, examples=2000, gaps=[0, 0, 0, 0, -gap])
    found = holm(pair_p_values(scores, 1 / 2000)) <= 0.05
    last = [at for at, pair in enumerate(combinations(range(5), 2)) if 4 in pair]
    assert found[:, last].mean() >= least
    others = [at for at in range(10) if at not in last]
    assert found[:, others].any(axis=-1).mean() <= 0.05 + SLACK


def test_p_values_are_those_of_a_paired_t_test_over_the_seeds_that_both_have():
    chance = np.random.default_rng(1)
    scores = chance.normal(0.7, 0.05, (4, 6))
    scores[1, 4:] = np.nan
    scores[3, 0] = np.nan
    expected = [stats.ttest_rel(scores[a], scores[b], nan_policy="omit").pvalue for a, b in combinations(range(4), 2)]
    assert pair_p_values(scores) == pytest.approx(expected, rel=1e-9)


def test_holms_correction_by_hand():
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.9, 0.6]) == pytest.approx([1.0, 1.0])


def test_letters_are_shared_by_exactly_the_rows_that_are_not_apart():
    draw = random.Random(0)
    for _ in range(200):
        labels = [f"row {n}" for n in range(draw.randint(2, 9))]
        apart = {frozenset(pair) for pair in combinations(labels, 2) if draw.random() < draw.random()}
        letters = _letters(labels, apart)
        for one, other in combinations(labels, 2):
            assert bool(set(letters[one]) & set(letters[other])) == (frozenset((one, other)) not in apart)


def test_a_simulated_folder_of_equal_rows_is_ranked_falsely_in_at_most_one_table_of_twenty():
    draw = random.Random(7)
    count, false = 300, 0
    for _ in range(count):
        luck = [draw.gauss(0, 0.02) for _ in range(3)]
        records = [
            make_record(name, seed=seed + 1, test=round(100 * (0.7 + luck[seed] + draw.gauss(0, 0.02))) / 100)
            for name in ("softmax", "linformer", "performer", "longformer", "reformer")
            for seed in range(3)
        ]
        (table,) = tables(records)
        assert all(row.ties for row in table.rows)
        false += any(row.rank != 1 for row in table.rows)
    assert false / count <= 0.05 + 2.5 * (0.05 * 0.95 / count) ** 0.5


SEEDS = (1, 2, 3, 4, 5)


def records_of(scores, **changes):
    return [
        make_record(name, seed=seed, test=score, **changes)
        for name, by_seed in scores.items()
        for seed, score in zip(SEEDS, by_seed, strict=False)
    ]


CLEAR = {
    "softmax": (0.90, 0.91, 0.92, 0.90, 0.91),
    "linformer": (0.89, 0.92, 0.91, 0.91, 0.90),
    "performer": (0.60, 0.62, 0.61, 0.60, 0.62),
    "reformer": (0.40, 0.41, 0.43, 0.41, 0.42),
    "uniform": (0.30, 0.30, 0.31, 0.30, 0.30),
}


def test_a_rank_is_one_more_than_the_number_of_better_rows():
    (table,) = tables(records_of(CLEAR))
    assert [(row.label, row.rank, row.ties) for row in table.rows] == [
        ("softmax", 1, "a"),
        ("linformer", 1, "a"),
        ("performer", 3, "b"),
        ("reformer", 4, "c"),
        ("uniform", None, ""),
    ]
    assert table.ranking.reason is None and table.ranking.seeds == SEEDS
    apart = {(c.better, c.worse) for c in table.ranking.comparisons if c.apart}
    assert ("softmax", "performer") in apart and ("softmax", "linformer") not in apart and len(apart) == 5
    assert all(c.difference.mean >= 0 and c.difference.count == 5 for c in table.ranking.comparisons)
    text = render([table], "terminal")
    assert "Holm" in text and "3 b" in text and "paired t" in text


def test_ranks_of_a_metric_of_which_less_is_better():
    card = dict(make_record().task_card) | {"metric": "perplexity", "higher_is_better": False}
    (table,) = tables(records_of({name: [100 * v for v in values] for name, values in CLEAR.items()}, task_card=card))
    assert [(row.label, row.rank) for row in table.rows] == [
        ("reformer", 1),
        ("performer", 2),
        ("linformer", 3),
        ("softmax", 3),
        ("uniform", None),
    ]
    assert all(c.difference.mean <= 0 for c in table.ranking.comparisons)


def test_identical_scores_tie_and_so_do_scores_that_always_differ_by_one_answer():
    (table,) = tables(records_of({"softmax": [0.9] * 3, "linformer": [0.9] * 3, "performer": [0.89] * 3}))
    assert [row.ties for row in table.rows] == ["a", "a", "a"]
    assert table.ranking.comparisons[0].p == 1.0
    (table,) = tables(records_of({"softmax": [0.9] * 3, "linformer": [0.5] * 3}))
    assert [row.rank for row in table.rows] == [1, 2]


@pytest.mark.parametrize(("seeds", "missing"), [(1, 2), (2, 1)])
def test_no_rank_under_three_seeds_and_it_is_said_how_many_are_missing(seeds, missing):
    (table,) = tables(records_of({name: scores[:seeds] for name, scores in CLEAR.items()}))
    assert all(row.rank is None for row in table.rows)
    text = render([table], "terminal")
    assert f"no ranks under 3 common seeds; {missing} more needed" in text
    assert "rank  attention" not in text and "Holm" not in text


def test_a_row_with_too_few_seeds_has_no_rank_and_takes_no_part():
    (table,) = tables(records_of(CLEAR | {"reformer": (0.4, 0.41)}))
    ranks = {row.label: row.rank for row in table.rows}
    assert ranks == {"softmax": 1, "linformer": 1, "performer": 3, "reformer": None, "uniform": None}
    assert "reformer: no rank under 3 seeds; 1 more needed" in render([table], "terminal")


def test_a_row_of_which_a_seed_failed_has_no_rank():
    (table,) = tables([*records_of(CLEAR), make_record("linformer", seed=6, status="diverged")])
    ranks = {row.label: row.rank for row in table.rows}
    assert ranks["linformer"] is None and ranks["performer"] == 2
    assert "linformer: no rank, as not every seed has a score (diverged with seed 6)" in render([table], "terminal")


def test_only_common_seeds_are_compared():
    records = [r for r in records_of(CLEAR) if r.spec.attention != "linformer" or r.spec.seed in (3, 4, 5)]
    (table,) = tables(records)
    assert table.ranking.seeds == (3, 4, 5)
    pairs = {frozenset((c.better, c.worse)): c.difference.count for c in table.ranking.comparisons}
    assert pairs[frozenset(("softmax", "linformer"))] == 3 and pairs[frozenset(("softmax", "performer"))] == 5


def test_a_row_that_shares_no_seeds_is_left_out_with_its_reason():
    stranger = [make_record("longformer", seed=seed, test=0.99) for seed in (5, 6, 7)]
    (table,) = tables([*records_of(CLEAR), *stranger])
    assert {row.label: row.rank for row in table.rows if row.rank} == {
        "softmax": 1,
        "linformer": 1,
        "performer": 3,
        "reformer": 4,
    }
    reason = "longformer: no rank under 3 seeds in common with every ranked row; 2 more needed"
    assert reason in render([table], "terminal")


def test_one_contender_alone_has_no_rank():
    (table,) = tables(records_of({name: CLEAR[name] for name in ("softmax", "uniform")}))
    assert table.ranking.reason == "no ranks, as there is one contender"


def test_notes_are_of_the_rows_that_are_shown():
    text = render(tables(records_of(CLEAR), attention="performer"), "terminal")
    assert "uniform" not in text.replace("best control uniform", "")


def test_ranks_and_margins_stay_those_among_all_where_one_attention_is_shown():
    records = records_of(CLEAR)
    (whole,), (part,) = tables(records), tables(records, attention="performer")
    assert part.rows == tuple(row for row in whole.rows if row.attention == "performer")
    assert part.rows[0].rank == 3 and part.best_control == whole.best_control
