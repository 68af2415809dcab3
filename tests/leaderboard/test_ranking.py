"""Ranks: p values and their corrections, letters of ties, true ranks found, none where seeds do not suffice."""

from __future__ import annotations

import random
import string
import time
from itertools import combinations

import numpy as np
import pytest
from make import make_record
from patience import within
from scipy import stats

from attn_zoo.leaderboard import render, tables
from attn_zoo.leaderboard.letters import short_letters, tie_letters
from attn_zoo.leaderboard.moderation import moderated_p_values
from attn_zoo.leaderboard.statistics import benjamini_hochberg, holm, pair_p_values


def test_p_values_are_those_of_a_paired_t_test_over_the_seeds_that_both_have():
    chance = np.random.default_rng(1)
    scores = chance.normal(0.7, 0.05, (4, 6))
    scores[1, 4:] = np.nan
    scores[3, 0] = np.nan
    expected = [stats.ttest_rel(scores[a], scores[b], nan_policy="omit").pvalue for a, b in combinations(range(4), 2)]
    assert pair_p_values(scores) == pytest.approx(expected, rel=1e-9)


def test_two_rows_have_a_paired_t_test():
    scores = np.random.default_rng(2).normal(0.7, 0.05, (2, 4))
    assert moderated_p_values(scores) == pytest.approx(stats.ttest_rel(*scores).pvalue)


def test_what_a_seed_does_to_all_rows_and_the_unit_of_the_score_change_nothing():
    chance = np.random.default_rng(3)
    scores = chance.normal(0.7, 0.02, (8, 3)) + np.linspace(0, 0.1, 8)[:, None]
    expected = moderated_p_values(scores)
    assert moderated_p_values(scores + chance.normal(0, 1, 3)) == pytest.approx(expected, rel=1e-6)
    assert moderated_p_values(100 * scores) == pytest.approx(expected, rel=1e-6)
    order = chance.permutation(8)
    pairs = zip(combinations(order, 2), moderated_p_values(scores[order]), strict=True)
    turned = {frozenset(pair): p for pair, p in pairs}
    assert [turned[frozenset(pair)] for pair in combinations(range(8), 2)] == pytest.approx(expected, rel=1e-6)


def test_a_spread_is_moderated_by_those_of_the_other_rows():
    """Two rows whose seeds agree by chance are told apart where all rows are as sure, and not where most vary."""
    sure = np.array([[0.700, 0.706, 0.712], [0.802, 0.792, 0.798]])
    others = np.random.default_rng(5).normal(0.75, 1.0, (10, 3))
    among_sure = holm(moderated_p_values(np.vstack([sure, 0.75 + others * 0.006])))[0]
    among_wide = holm(moderated_p_values(np.vstack([sure, 0.75 + others * 0.1])))[0]
    assert among_sure < 0.01 and among_wide > 0.2
    assert holm(pair_p_values(np.vstack([sure, 0.75 + others * 0.006])))[0] > 0.1


def test_corrections_by_hand():
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.9, 0.6]) == pytest.approx([1.0, 1.0])
    assert benjamini_hochberg([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.02, 0.04, 0.04, 0.02])
    p_values = np.random.default_rng(6).random((3, 20)) ** 3
    expected = [stats.false_discovery_control(p) for p in p_values]
    assert benjamini_hochberg(p_values) == pytest.approx(np.array(expected))


def test_letters_of_a_large_table_are_few_and_quick():
    labels = [f"row {n}" for n in range(60)]
    apart = {frozenset((labels[a], labels[b])) for a, b in combinations(range(60), 2) if b - a > 7 and a % 9 and b % 9}
    started = time.process_time()
    letters = tie_letters(labels, apart)
    assert within(time.process_time() - started, 2)
    assert all(letters.values()) and max(len(short_letters(found)) for found in letters.values()) < 16
    for one, other in combinations(labels, 2):
        assert bool(set(letters[one]) & set(letters[other])) == (frozenset((one, other)) not in apart)


def test_a_table_of_too_many_tie_groups_has_no_letters():
    labels = [f"row {n}" for n in range(60)]
    apart = {frozenset((labels[n], labels[n + 1])) for n in range(0, 60, 2)}
    assert set(tie_letters(labels, apart).values()) == {""}


def test_runs_of_letters_are_shortened():
    assert short_letters("") == "" and short_letters("abc") == "abc" and short_letters("acd") == "acd"
    assert short_letters("abcd") == "a-d" and short_letters("bdefghz") == "bd-hz"
    assert short_letters(string.ascii_letters) == "a-Z"


def test_letters_are_shared_by_exactly_the_rows_that_are_not_apart():
    draw = random.Random(0)
    for _ in range(200):
        labels = [f"row {n}" for n in range(draw.randint(2, 9))]
        apart = {frozenset(pair) for pair in combinations(labels, 2) if draw.random() < draw.random()}
        letters = tie_letters(labels, apart)
        for one, other in combinations(labels, 2):
            assert bool(set(letters[one]) & set(letters[other])) == (frozenset((one, other)) not in apart)


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
    text = render([table], "terminal", legend=True)
    assert "Holm" in text and "3 b" in text and "moderated" in text


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


def test_a_difference_below_one_point_is_a_tie_whatever_the_test_says():
    near = {"softmax": (0.900, 0.9001, 0.9002), "linformer": (0.892, 0.8921, 0.8922), "performer": (0.5, 0.5001, 0.5002)}
    data = {"test": {"examples": 100_000, "digest": "0"}}
    (table,) = tables(records_of(near, data=data))
    assert [(row.label, row.rank) for row in table.rows] == [("softmax", 1), ("linformer", 1), ("performer", 3)]
    pair = next(c for c in table.ranking.comparisons if {c.better, c.worse} == {"softmax", "linformer"})
    assert pair.p < 0.05 and not pair.apart
    card = dict(make_record().task_card) | {"metric": "perplexity", "higher_is_better": False}
    (table,) = tables(records_of({"softmax": (8.0, 8.001, 8.002), "linformer": (8.07, 8.071, 8.072)}, task_card=card))
    assert [row.rank for row in table.rows] == [1, 1], "1 % of 8.07"
    (table,) = tables(records_of({"softmax": (8.0, 8.001, 8.002), "linformer": (8.2, 8.201, 8.202)}, task_card=card))
    assert [row.rank for row in table.rows] == [1, 2]


@pytest.mark.parametrize(("seeds", "missing"), [(1, 2), (2, 1)])
def test_no_rank_under_three_seeds_and_it_is_said_how_many_are_missing(seeds, missing):
    (table,) = tables(records_of({name: scores[:seeds] for name, scores in CLEAR.items()}))
    assert all(row.rank is None for row in table.rows)
    text = render([table], "terminal")
    assert f"no ranks with fewer than 3 common seeds; {missing} more needed" in text
    assert "rank  attention" not in text and "Holm" not in text


def test_a_row_with_too_few_seeds_has_no_rank_and_takes_no_part():
    (table,) = tables(records_of(CLEAR | {"reformer": (0.4, 0.41)}))
    ranks = {row.label: row.rank for row in table.rows}
    assert ranks == {"softmax": 1, "linformer": 1, "performer": 3, "reformer": None, "uniform": None}
    assert "reformer: no rank with fewer than 3 seeds; 1 more needed" in render([table], "terminal")


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
    reason = "longformer: no rank with fewer than 3 seeds in common with every ranked row; 2 more needed"
    assert reason in render([table], "terminal")


def test_one_contender_alone_has_no_rank():
    (table,) = tables(records_of({name: CLEAR[name] for name in ("softmax", "uniform")}))
    assert table.ranking.reason == "no ranks, as there is only one contender"


def test_notes_are_of_the_rows_that_are_shown():
    text = render(tables(records_of(CLEAR), attention="performer"), "terminal")
    assert "uniform" not in text.replace("best control uniform", "")


def test_ranks_and_margins_stay_those_among_all_where_one_attention_is_shown():
    records = records_of(CLEAR)
    (whole,), (part,) = tables(records), tables(records, attention="performer")
    (shown,), (same,) = part.rows, (row for row in whole.rows if row.attention == "performer")
    assert (shown.label, shown.place, shown.margin) == (same.label, same.place, same.margin)
    assert shown.rank == 3 and part.best_control == whole.best_control
