"""Every verdict follows from the scores, and what pages say of verdicts counts them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from make import PERPLEXITY, make_record, records_of
from profile_tables import finding
from verdict_matrix import NO_VERDICT, SIGNS, UNCERTAIN, verdict_matrix

from attn_zoo.leaderboard import tables
from attn_zoo.leaderboard.table import Verdict
from attn_zoo.recommend.verdicts import Ability, abilities, judge
from attn_zoo.records import RunRecord

SURE = (0.9, 0.91, 0.92)
ACCEPT = 5.0


def runs(name: str, *scores: float, task: str = "mqar", causal: bool = False, **changes: Any) -> list[RunRecord]:
    """A record for each score, with seeds from 1 on."""
    counted = {"parameters": 1000, "flops_per_example": 100, **changes.pop("counted", {})}
    card = {"causal": causal, **changes.pop("card", {})}
    return records_of({name: scores}, task, card=card, counted=counted, **{"spec_task_options": {"causal": causal}, **changes})


def yardsticks(task: str = "mqar", *, softmax: Sequence[float] = SURE, **changes: Any) -> list[RunRecord]:
    """Softmax and a control."""
    counted = {"mechanism_flops_4096": 1000, "state_bytes": 4096}
    control = runs("uniform", 0.20, 0.21, 0.22, task=task, **changes)
    return [*control, *runs("softmax", *softmax, task=task, counted=counted, **changes)]


def only(records: Sequence[RunRecord]) -> Ability:
    (ability,) = abilities(tables(records))
    return ability


@pytest.mark.parametrize(
    ("scores", "verdict"),
    [
        ((0.93, 0.95, 0.95), "better"),
        ((0.90, 0.90, 0.92), "as good"),
        ((0.88, 0.89, 0.90), "as good"),  # below softmax for sure, by less than five points
        ((0.80, 0.82, 0.81), "worse"),
        ((0.20, 0.22, 0.21), "no better"),
        ((0.20, 0.40, 0.25), "no better"),  # above the control in the mean alone
        ((0.99, 0.85, 0.80), "unclear"),  # noise is not equality
        ((0.20, 0.99, 0.30), "unclear"),  # nor is it failure
        ((0.93, 0.95), "few seeds"),
    ],
)
def test_verdicts_follow_from_the_interval_against_softmax_and_the_best_control(scores, verdict):
    ability = only([*yardsticks(), *runs("linformer", *scores)])
    assert judge(ability, "linformer", ACCEPT).verdict == verdict


def test_a_mechanism_is_held_against_the_softmax_row_that_is_best_on_validation():
    lucky, shown = (runs("softmax", *[test] * 3, spec_options={"dial": dial}) for dial, test in ((1, 0.95), (2, 0.8)))
    valid = [[replace(one, scores={**one.scores, "valid": v}) for one in some] for some, v in ((lucky, 0.8), (shown, 0.95))]
    ability = only([*valid[0], *valid[1], *runs("uniform", 0.2, 0.2, 0.2), *runs("linformer", 0.88, 0.88, 0.88)])
    found = judge(ability, "linformer")
    assert found.row and found.row.against_softmax and ability.softmax and found.gain
    assert found.row.against_softmax.against == ability.softmax.label == "softmax dial=2"
    assert found.verdict == "better" and found.gain.low > 0


def test_what_may_be_lost_decides_who_is_as_good():
    ability = only([*yardsticks(), *runs("linformer", 0.80, 0.81, 0.83)])
    assert judge(ability, "linformer", ACCEPT).verdict == "worse"
    assert judge(ability, "linformer", 15.0).verdict == "as good"


def test_a_seed_that_failed_is_no_score_of_the_lucky_ones():
    *done, last = runs("linformer", *SURE, 0.9)
    failed = replace(last, status="diverged", reason="the loss is NaN", scores={})
    ability = only([*yardsticks(), *done, failed])
    assert judge(ability, "linformer").verdict == "failed"


def test_softmax_is_held_against_controls_alone():
    others = runs("linformer", *SURE)
    assert judge(only([*yardsticks(), *others]), "softmax").verdict == "above controls"
    assert judge(only([*yardsticks(softmax=(0.2, 0.22, 0.21)), *others]), "softmax").verdict == "no better"


def test_where_lower_is_better_gains_are_turned_round_and_relative():
    records = [
        *runs("uniform", 20.0, 20.1, 20.2, card=PERPLEXITY),
        *runs("softmax", 10.0, 10.1, 9.9, card=PERPLEXITY),
        *runs("linformer", 11.0, 11.1, 10.9, card=PERPLEXITY),
        *runs("nystrom", 9.0, 9.1, 8.9, card=PERPLEXITY),
    ]
    worse, better = (judge(only(records), name, ACCEPT) for name in ("linformer", "nystrom"))
    assert (worse.verdict, better.verdict) == ("worse", "better")
    assert worse.gain and better.gain and (round(worse.gain.mean, 3), round(better.gain.mean, 3)) == (-10.0, 10.0)


def test_abilities_are_told_apart_by_direction_and_convolution():
    wide = make_record().spec.model
    records = [*yardsticks(), *yardsticks(causal=True, data={}), *yardsticks("copying")]
    records += yardsticks("copying", spec_model=type(wide)(short_convolution=4))
    assert {ability.name for ability in abilities(tables(records))} == {
        "Mqar",
        "Mqar (causal)",
        "Copying (with a short convolution)",
        "Copying (without a short convolution)",
    }


def test_the_matrix_has_a_sign_for_each_verdict_and_counts_the_tasks_on_which_a_mechanism_matches_softmax():
    assert set(SIGNS) == set(Verdict) and len({*SIGNS.values(), NO_VERDICT, UNCERTAIN}) == len(SIGNS) + 2
    records = [
        *yardsticks(),
        *yardsticks("copying"),
        *runs("linformer", *SURE),
        *runs("linformer", 0.2, 0.22, 0.21, task="copying"),
    ]
    records += [*runs("nystrom", 0.80, 0.82, 0.81), *runs("luna", *SURE[:2], task="copying")]
    text = verdict_matrix(tables(records))
    lines = [[cell.strip(" `") for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("| ")]
    assert [line[:2] for line in lines] == [
        ["mechanism", "matches softmax on"],
        ["softmax", "-"],
        ["linformer", "1 of 2"],
        ["luna", "0 of 1"],
        ["nystrom", "0 of 1"],
    ]
    signs = {line[0]: dict(zip(lines[0][2:], line[2:], strict=True)) for line in lines[1:]}
    assert signs["linformer"]["copying"] == SIGNS[Verdict.NO_BETTER] and signs["nystrom"]["mqar"] == SIGNS[Verdict.WORSE]
    assert signs["luna"] == {"copying": NO_VERDICT, "mqar": SIGNS[Verdict.NOT_RUN]}
    explained = text.splitlines()[0].removeprefix("The signs mean: ").split("; ")
    assert {words.split()[0] for words in explained} == {sign for line in lines[1:] for sign in line[2:]}


@pytest.mark.parametrize(("third", "sign"), [(0.88, SIGNS[Verdict.TIED]), (0.70, UNCERTAIN)])
def test_the_matrix_marks_rows_that_too_few_seeds_cannot_tell_from_the_best(third, sign):
    text = verdict_matrix(tables([*yardsticks(), *runs("nystrom", 0.89, 0.90, third)]))
    (line,) = [line for line in text.splitlines() if line.startswith("| `nystrom`")]
    assert line.split("|")[-2].strip() == sign


def cheap(name: str, *scores: float, flops: int = 10, **changes: Any) -> list[RunRecord]:
    return runs(name, *scores, counted={"mechanism_flops_4096": flops}, **changes)


def test_the_finding_names_for_each_direction_who_matches_softmax_on_the_most_tasks():
    records = [*yardsticks(), *yardsticks("copying"), *cheap("linformer", 0.90, 0.90, 0.92)]
    worse = cheap("linformer", 0.80, 0.82, 0.81, task="copying")
    dear = cheap("topk", 0.90, 0.90, 0.92, flops=1000)
    nearest = finding(tables([*records, *worse, *dear]))
    assert nearest == (
        "1 mechanism with fewer FLOPs than softmax was run on at least half of the 2 bidirectional tasks. None of them matches "
        "softmax on all of these tasks: `linformer` matches it on 1, the most. With the sizes of these runs, it takes 1 % of "
        "softmax's FLOPs at 4,096 tokens. "
        "Softmax is hardest to match on Copying: 0 of 1 mechanisms match it there."
    )
    causal = [*yardsticks("copying", causal=True), *cheap("linear", 0.20, 0.20, 0.22, task="copying", causal=True)]
    whole = finding(tables([*records, *cheap("linformer", 0.90, 0.90, 0.92, task="copying"), *causal]))
    assert "`linformer` matches softmax on all of these tasks. With the sizes of these runs, it takes 1 %" in whole
    assert whole.endswith(
        "at least half of the 1 causal task. None of them matches softmax on all of these tasks. Softmax is hardest to match on "
        "Copying (causal): 0 of 1 mechanisms match it there."
    )
    assert finding(tables(yardsticks())) == ""


def test_all_tasks_on_which_softmax_is_hardest_to_match_are_named_and_those_where_it_has_not_learned_are_not():
    records = [*yardsticks(), *yardsticks("copying"), *yardsticks("needle"), *yardsticks("induction", softmax=(0.2, 0.2, 0.21))]
    for task, scores in {"mqar": (0.90, 0.90, 0.92), "copying": (0.6, 0.6, 0.61), "induction": (0.2, 0.2, 0.21)}.items():
        records += cheap("linformer", *scores, task=task)
    for task in ("mqar", "needle"):
        records += cheap("performer", 0.6, 0.6, 0.61, task=task)
    assert finding(tables(records)).endswith(
        "Softmax is hardest to match on Copying and Needle: 0 of 1 and 0 of 1 mechanisms match it there."
    )


def test_the_finding_counts_mechanisms_that_were_run_on_half_of_the_tasks():
    records = [*yardsticks(), *yardsticks("copying"), *yardsticks("needle"), *cheap("performer", 0.90, 0.90, 0.92)]
    assert finding(tables(records)) == "", "one of three tasks"
    for task in ("mqar", "copying"):
        records += cheap("linformer", 0.90, 0.90, 0.92, task=task)
    found = finding(tables(records))
    assert found.startswith("1 mechanism ") and "None of them matches" in found and "`linformer` matches it on 2" in found
