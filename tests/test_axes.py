"""Figures and sentences of ``docs/reports/length-and-state.md``, from records with known scores."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from axes_tables import PAIRS, TIMES, asked, beyond, capacity, hybrids, length, length_sentence, order_of, recalled, size
from language_tables import language
from make import make_record

from attn_zoo.leaderboard import tables
from attn_zoo.records import Budget, ModelSpec, RunRecord


@pytest.mark.parametrize(
    ("scores", "pairs"),
    [
        ({4: 0.89, 8: 0.9}, 0),
        ({4: 0.9, 8: 0.9}, 8),
        ({4: 1.0, 8: 0.8}, 4 * 2**0.5),
        ({4: 1.0, 8: 0.9, 16: 0.7}, 8),
        ({4: 1.0, 8: 0.5, 16: 1.0}, 4 * 2**0.2),
    ],
)
def test_the_number_of_recalled_pairs_is_interpolated_up_to_the_first_number_that_is_not_recalled(scores, pairs):
    assert recalled(scores) == pytest.approx(pairs)


def recall(name, state, up_to, width=64, **options):
    """Record of a row that recalls all pairs up to a number, and half of them beyond."""
    parts = {f"test: {pairs} pairs": 1.0 if pairs <= up_to else 0.5 for pairs in PAIRS}
    scores = {"test": 0.7, "valid": 0.7, "train": 0.7, **parts}
    counted = {"parameters": 1, "flops_per_example": 1, "state_bytes": state}
    return make_record(name, "mqar", scores=scores, counted=counted, spec_options=options, spec_model=ModelSpec(dim=width))


RECALL = [
    recall("softmax", 2**18, 64),
    recall("linear", 2**13, 4),
    recall("gated_linear", 2**14, 8),
    recall("gated_slot", 2**15, 16),
    recall("delta_rule", 2**16, 32),
    recall("longformer", 2**17, 64, window=65),
    recall("uniform", 2**8, 2),
]


def test_recall_is_told_by_row_and_width_with_what_is_not_run():
    text = capacity(tables([*RECALL, recall("delta_rule", 2**13, 16, width=32)]))
    assert re.search(r"\|\s+64 \| longformer\[window=65\]\s+\|\s+128 KiB .* 100.0 \|\s+64 or more \|", text), text
    assert re.search(r"\|\s+64 \| uniform \(c\) .* < 4 \|", text), text
    rows = len(asked("capacity"))
    left = [f"{rows - done} of {rows} rows at width {width}" for width, done in {32: 1, 64: len(RECALL), 128: 0}.items()]
    assert f"Not run: {'; '.join(left)}." in text


def test_the_finding_on_state_names_the_rows_that_recall_most_and_leaves_out_those_that_learned_nothing():
    narrow = [recall("softmax", 2**17, 64, width=32), recall("linear", 2**12, 64, width=32), recall("ssd", 2**12, 4, width=32)]
    text = capacity(tables([*RECALL, recall("ssd", 2**17, 0), *narrow]))
    assert (
        "At width 64, softmax recalls 64 or more pairs with a state of 256 KiB. Of the rows with a smaller state that recall at "
        "least 4 pairs, `longformer[window=65]` with 128 KiB recalls the most: 64 or more pairs (1 seed each). Among these 5 rows, "
        "a larger state goes with more recalled pairs (Spearman's ρ = 1.00"
    ) in text
    against = [recall("linear", 2**13, 32), recall("gated_linear", 2**14, 8), recall("delta_rule", 2**15, 4), *RECALL[:1]]
    assert "a larger state does not go with more recalled pairs (Spearman's ρ = -1.00, p = 0.33)" in capacity(tables(against))
    two = [recall("linear", 2**13, 32), recall("gated_linear", 2**14, 32), RECALL[0]]
    assert "`linear` with 8.00 KiB and `gated_linear` with 16.0 KiB recall the most: 37 pairs (1 seed each).**" in capacity(
        tables(two)
    )
    assert "Not decided" in capacity(tables(RECALL[:1])) and "Not decided" in capacity(tables(RECALL[1:]))


def copied(name, n, test, seed, rate=0.01):
    budget = Budget(steps=10**6, seconds=420, learning_rate=rate, schedule="constant")
    return make_record(name, "copying", seed, test=test, spec_task_options={"length": n}, spec_budget=budget)


def at_length(n, softmax, linear, luna, seeds=(1, 2, 3)):
    """Records of three mechanisms whose seeds differ by a point; rates differ, too."""
    scores = {("softmax", 0.01): softmax, ("linear", 0.01): linear, ("luna", 0.003): luna}
    return [copied(name, n, test + seed / 100, seed, rate) for (name, rate), test in scores.items() for seed in seeds]


def test_the_finding_on_length_names_the_lengths_at_which_an_efficient_row_is_ahead():
    records = [*at_length(256, 0.9, 0.8, 0.7), *at_length(1024, 0.9, 0.9, 0.2), *at_length(4096, 0.1, 0.6, 0.8)]
    text = length(tables(records))
    assert "An efficient mechanism is ahead of softmax after the same time at 4,096 tokens: at 256 none leads" in text
    assert "at 1,024 none leads, at 4,096 `luna` leads by +70.0 ± 2" in text
    assert "Not run: 19 of 28 cells." in text and re.search(r"\| linear\s+\|\s+82.0 ± 2.5, 10 \|", text), text
    again = length(tables([*records, *at_length(16384, 0.1, 0.5, 0.5)]))
    assert "is ahead of softmax after the same time at 4,096 and 16,384 tokens: at 256 none leads" in again
    none = length(tables([*at_length(256, 0.9, 0.8, 0.7), *at_length(1024, 0.9, 0.9, 0.2)]))
    assert "No efficient mechanism is ahead of softmax after the same time at 256 and 1,024 tokens: at 256 none leads" in none
    assert length_sentence(tables(records)).startswith("On copying over 4,096 tokens, `luna` leads softmax by +70.0 ± 2")
    assert length_sentence(tables(at_length(4096, 0.9, 0.2, 0.3))) == "" == length_sentence([])
    with pytest.raises(ValueError, match="4,096 tokens must have one row of linear; got two"):
        length(tables([*records, *(copied("linear", 4096, 0.5, seed, 0.02) for seed in (1, 2, 3))]))


def test_lengths_with_fewer_than_three_seeds_are_not_decided():
    text = length(tables(at_length(4096, 0.1, 0.6, 0.8, seeds=(1, 2))))
    assert "Not decided: no length has 3 seeds" in text and "2 seeds |" in text


def needles(name, *by_times):
    parts = {
        f"test: {kind}, {64 * t} tokens": s for kind in ("diverse", "repetitive") for t, s in zip(TIMES, by_times, strict=True)
    }
    return make_record(name, "needle", scores={"test": 0.5, "valid": 0.5, "train": 0.5, **parts}, spec_options={})


def test_longer_inputs_are_told_by_multiple_of_the_trained_length():
    text = beyond(tables([needles("softmax", 1, 0.9, 0.5, 0.3, 0.1), needles("linear", 0.9, 0.8, 0.7, 0.6, 0.5)]))
    assert re.search(r"\| linear\s+\|\s+90.0 \|\s+80.0 \|\s+70.0 \|\s+60.0 \|\s+50.0 \|", text), text
    assert "times the trained length, softmax scores 10.0 %, and `linear`, the best other mechanism, 50.0 %." in text
    assert "Not decided" in beyond(tables([needles("linear", 1, 1, 1, 1, 1)]))


def order(*names, width=64, task="mqar"):
    """Table in which mechanisms have this order, and a control."""
    scored = [make_record(name, task, test=0.9 - at / 10, spec_model=ModelSpec(dim=width)) for at, name in enumerate(names)]
    return tables([*scored, make_record("none", task, test=0.95, spec_model=ModelSpec(dim=width))])


def test_the_order_of_common_mechanisms_is_compared_between_sizes():
    names = ("softmax", "linear", "luna", "performer", "reformer")
    same = size(order(*names, width=128), order(*names[:3], "local", *names[3:]))
    assert "significantly correlated on 1 of 1 tasks (Spearman's ρ = 1.00)" in same and "Not run: 3 of 4 tasks." in same
    turned = size(order(*reversed(names), width=128), order(*names))
    assert "correlated on 0 of 1 tasks (Spearman's ρ = -1.00)" in turned
    assert "softmax, linear, luna, performer, reformer | reformer, performer, luna, linear, softmax" in turned
    four = ("mqar", "copying", "needle", "induction")
    larger, smaller = ([table for task in four for table in order(*names, width=width, task=task)] for width in (128, 64))
    assert "correlated on 0 of 4 tasks" in size(larger, smaller), "p is 2 / 120 for each of four tasks"


def test_a_mechanism_has_its_place_by_the_row_that_is_best_on_validation():
    lucky, shown = (make_record("linear", test=test, spec_options={"dial": dial}) for dial, test in ((1, 0.9), (2, 0.5)))
    lucky = replace(lucky, scores={**lucky.scores, "valid": 0.4})
    (table,) = tables([lucky, shown, make_record("softmax", test=0.7)])
    assert order_of(table) == ["softmax", "linear"]


def test_the_best_hybrid_is_compared_with_softmax_where_both_have_seeds():
    def rows(hybrid: float, seeds: int = 3, control: float = 0.1) -> list[RunRecord]:
        names = {"softmax": 0.6, "3*linear+softmax": hybrid, "2*linear+softmax": 0.3, "none": control}
        return [make_record(name, "mqar", seed, test=test) for name, test in names.items() for seed in range(1, seeds + 1)]

    better, worse = (hybrids(tables(rows(at))) for at in (0.9, 0.4))
    assert "the best hybrid, `3*linear+softmax`, is better than softmax.**" in better
    assert "the best hybrid, `3*linear+softmax`, is worse than softmax.**" in worse and "Not run: 30 of 34 cells." in worse
    assert re.search(r"\| none \(c\) ", worse), worse
    assert "no hybrid is better than the best control, `none`.**" in hybrids(tables(rows(0.4, control=0.4)))
    assert "Not decided" in hybrids(tables(rows(0.9, seeds=1)))


def on_text(*names, control, causal=False):
    """Table of a task in which mechanisms have this order by perplexity, and a control."""
    card = {"name": "prose", "title": "Prose", "version": "1", "metric": "perplexity", "length": 16, "classes": 10}
    card |= {"higher_is_better": False, "causal": causal}
    scored = {**{name: 10.0 + at for at, name in enumerate(names)}, "none": control}
    return tables(
        make_record(name, "prose", seed, test=score, task_card=card, scores={"test": score, "valid": score, "train": score})
        for name, score in scored.items()
        for seed in (1, 2, 3)
    )


def test_the_order_on_text_is_compared_with_that_on_tasks_of_the_same_direction():
    names = ("softmax", "linear", "luna", "performer", "reformer", "nystrom")
    same = language(on_text(*names, control=20.0), order(*names[:3], "local", *names[3:]))
    assert "On prose (bidirectional), softmax is better than the best control. The order" in same and "on 1 of 1 tasks" in same
    assert "Not run: 5 of 12 rows." in same
    assert re.search(r"\| mqar \(bidirectional\) +\| +6 \| +1.00 \| +0.0028 \|", same), same
    turned = language(on_text(*names, control=5.0), order(*reversed(names)))
    assert "softmax is not better than the best control" in turned and "on 0 of 1 tasks" in turned and "-1.00 |" in turned
    for few in (
        language(on_text(*names, control=20.0, causal=True), order(*names)),
        language(on_text(*names[:5], control=20.0), order(*names)),
    ):
        assert "Too few mechanisms" in few


def test_nothing_recorded_is_not_run():
    assert {capacity([]), length([]), beyond([]), size([], []), hybrids([]), language([], [])} == {"Not run."}
