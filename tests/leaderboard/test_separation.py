"""Separation: groups of rows that differ, the lead over the best control, and a verdict with its reasons."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import combinations, pairwise
from pathlib import Path

import numpy as np
import pytest
from make import PERPLEXITY, make_record, records_of, stored

from attn_zoo.cli.main import main
from attn_zoo.leaderboard import tables
from attn_zoo.leaderboard.separation import groups_apart, separates
from attn_zoo.leaderboard.table import Table
from attn_zoo.records import Store
from attn_zoo.registry import task_card
from attn_zoo.runner.facts import task_facts

SEPARATING = {
    "softmax": (1.0, 1.0, 1.0),
    "linformer": (1.0, 0.99, 1.0),
    "performer": (0.60, 0.61, 0.62),
    "longformer": (0.60, 0.61, 0.60),
    "uniform": (0.12, 0.13, 0.12),
    "none": (0.11, 0.12, 0.12),
}


def table(scores: Mapping[str, tuple[float, ...]], **changes) -> Table:
    (made,) = tables(records_of(scores, **changes))
    return made


def test_a_card_names_the_mechanism_that_solves_its_task(tmp_path, capsys):
    scores = dict.fromkeys(("softmax", "none", "uniform"), (0.52, 0.51, 0.52))
    scores |= {"delta_rule": (1.0, 0.99, 1.0), "linear": (0.7, 0.71, 0.7)}
    stored(tmp_path, records_of(scores, task="state_words"))
    assert main(["leaderboard", "--records", str(tmp_path), "--separation"]) == 0
    assert "all tasks: 1 of 1 separate mechanisms" in capsys.readouterr().out
    (made,) = tables(Store(tmp_path).load()[0])
    assert separates(made, "softmax").against and not separates(made, "delta_rule").against


def test_a_card_names_the_part_of_the_test_that_asks_for_distant_tokens(tmp_path):
    distant = {"softmax": 0.99, "linear": 0.7, "uniform": 0.25}
    card = {"distant": task_facts(task_card("flip_flop"), None, None)["distant"]}
    made = []
    for record in records_of(dict.fromkeys(distant, (0.9, 0.91, 0.9)), task="flip_flop"):
        sparse = distant[record.spec.attention] + record.spec.seed / 1000
        scores = {**record.scores, "test: sparse": sparse, "test: dense": 0.5}
        test = {**record.data["test"], **({} if record.spec.attention == "uniform" else {"distant": 30})}  # old records lack it
        made.append(replace(record, scores=scores, task_card={**record.task_card, **card}, data={**record.data, "test": test}))
    (found,) = tables(stored(tmp_path, made))
    scored = {row.attention: row.test.mean for row in found.rows if row.test}
    assert scored == pytest.approx({name: score + 0.002 for name, score in distant.items()})
    assert {name: round(part.mean, 2) for name, part in found.rows[0].parts.items()} == {"whole": 0.9, "dense": 0.5}
    assert found.task["title"] == "Flip_Flop (sparse)" and found.data["test"]["examples"] == 30
    verdict = separates(found)
    assert verdict.margin and verdict.margin.mean == pytest.approx(0.74) and not verdict.against


def test_a_task_separates_where_softmax_leads_and_three_groups_stand_apart():
    found = separates(table(SEPARATING))
    assert not found.against
    assert [set(group) for group in found.groups] == [{"softmax", "linformer"}, {"performer", "longformer"}, {"uniform", "none"}]
    assert (found.pairs, found.differing) == (15, 12)
    assert found.margin and found.margin.mean == pytest.approx(0.8767, abs=1e-4)


def test_a_lead_counts_by_the_lower_end_of_its_interval():
    close = SEPARATING | {"uniform": (0.65, 0.66, 0.67), "performer": (0.4, 0.4, 0.41), "longformer": (0.4, 0.41, 0.4)}
    assert not separates(table(close)).against, "34 ± 2 points"
    wide = close | {"uniform": (0.64, 0.66, 0.68)}
    found = separates(table(wide))
    assert found.margin and found.margin.mean > 0.3
    assert found.against == ("softmax minus uniform is +34.0 ± 5.0 points, but the whole interval must lie above +30.0 points",)


def test_a_task_on_which_a_control_is_better_does_not_separate():
    found = separates(table(SEPARATING | {"softmax": (0.50, 0.51, 0.50), "uniform": (0.80, 0.81, 0.82)}))
    assert found.against[0] == "the control uniform is significantly better: softmax minus uniform is -30.7 ± 2.0 points"


def test_rows_with_failed_or_missing_seeds_are_left_out():
    lacking = records_of(SEPARATING | {"performer": (0.6, 0.61), "longformer": (0.6, 0.61, 0.6)})
    (made,) = tables([*lacking, make_record("linformer", seed=4, status="diverged")])
    found = separates(made)
    assert set(found.left_out) == {"performer", "linformer"} and found.pairs == 6 and not found.against
    (made,) = tables([*records_of(SEPARATING), make_record("softmax", seed=4, status="diverged")])
    assert separates(made).against == ("softmax and a control do not have 3 seeds without a failed seed",)


@pytest.mark.parametrize("gone", ["softmax", "control"])
def test_without_softmax_or_a_control_nothing_can_be_said(gone):
    rows = {
        name: scores
        for name, scores in SEPARATING.items()
        if name not in (["softmax"] if gone == "softmax" else ["uniform", "none"])
    }
    found = separates(table(rows))
    assert found.margin is None
    lacking = (
        "there is no row of softmax" if gone == "softmax" else "softmax and a control do not have 3 seeds without a failed seed"
    )
    assert found.against[0] == lacking and separates(table(rows), "sofmax").against[0] == "there is no row of sofmax"


def test_of_a_metric_of_which_less_is_better_the_lead_is_relative_to_the_control():
    scores = {"softmax": (8.0, 8.1, 8.0), "linformer": (9.0, 9.1, 9.0), "uniform": (18.9, 19.0, 18.9)}
    found = separates(table(scores, card=PERPLEXITY))
    assert not found.against and found.margin and found.margin.mean == pytest.approx(-10.9, abs=0.01)
    assert [group[0] for group in found.groups] == ["softmax", "linformer", "uniform"]
    near = separates(table(scores | {"softmax": (14.0, 14.1, 14.0)}, card=PERPLEXITY))
    assert "must lie below -5.68" in near.against[0]
    above = separates(table(scores | {"softmax": (24.0, 24.1, 24.0)}, card=PERPLEXITY))
    assert above.against[0].startswith("the control uniform is significantly better")


def test_groups_are_as_many_as_the_longest_chain_and_each_stands_apart_from_the_next():
    chance = np.random.default_rng(0)
    for _ in range(200):
        count = int(chance.integers(1, 9))
        labels = [f"row {n}" for n in range(count)]
        scores, spreads = np.sort(chance.random(count))[::-1], chance.random(count) / 4
        apart = {
            (labels[a], labels[b]) for a, b in combinations(range(count), 2) if scores[a] - scores[b] > spreads[a] + spreads[b]
        }
        groups = groups_apart(labels, apart)
        for group, following in pairwise(groups):
            assert all((better, worse) in apart for better in group for worse in following)
        for group in groups:
            assert not any(frozenset(pair) in {frozenset(p) for p in apart} for pair in combinations(group, 2))
        assert len(groups) == max(
            len(chain)
            for size in range(1, count + 1)
            for chain in combinations(labels, size)
            if all(pair in apart for pair in pairwise(chain))
        )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    close = {"softmax": (0.5, 0.52, 0.5), "uniform": (0.5, 0.5, 0.51)}
    stored(tmp_path, [*records_of(SEPARATING), *records_of(close, "listops")])
    return tmp_path


def test_the_command_prints_a_line_for_each_task_and_all_tasks_together(folder, capsys):
    assert main(["leaderboard", "--records", str(folder), "--separation"]) == 0
    text = capsys.readouterr().out
    assert all(len(line) <= 100 for line in text.splitlines())
    lines = [line.split() for line in text.splitlines()]
    assert ["Digits", "6", "3", "80", "%", "3", "+87.7", "±", "1.4", "%", "yes"] in lines
    assert ["Listops", "2", "3", "0", "%", "1", "+0.3", "±", "2.4", "%", "no"] in lines
    assert "- all tasks: 1 of 2 separate mechanisms, and 12 of 16 pairs of rows differ significantly (75 %)" in text
    assert "- Listops does not separate mechanisms: softmax minus uniform" in text
