"""Advice: every verdict follows from the scores, every choice from the rules, and the table says no more than was tested."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from make import PERPLEXITY, make_record, records_of, stored

from attn_zoo.cli.main import main
from attn_zoo.leaderboard import tables
from attn_zoo.leaderboard.advise.abilities import Ability, abilities, judge
from attn_zoo.leaderboard.advise.matrix import NO_VERDICT, SIGNS, UNCERTAIN, verdict_matrix
from attn_zoo.leaderboard.advise.needs import NEEDS, Answer, Need, answers
from attn_zoo.leaderboard.advise.sentences import finding, told
from attn_zoo.leaderboard.advise.table import NO_EVIDENCE, no_evidence, use_table
from attn_zoo.leaderboard.table import Verdict
from attn_zoo.records import RunRecord
from attn_zoo.registry import make_options, task_card, task_names
from attn_zoo.terminal import COLUMNS

TRANSPLANT = json.loads((Path(__file__).parents[2] / "results" / "transplant.json").read_text(encoding="utf-8"))
SURE = (0.9, 0.91, 0.92)
ACCEPT = 5.0
NEED = Need("A need", {("mqar", False): "keys find values", ("copying", False): "tokens come back"})


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


def cheap(name: str, *scores: float, flops: int | None = 10, state: int | None = 64, **changes: Any) -> list[RunRecord]:
    counted = {"mechanism_flops_4096": flops, "state_bytes": state}
    return runs(name, *scores, counted={key: value for key, value in counted.items() if value is not None}, **changes)


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


def chosen(*records: list[RunRecord], need: Need = NEED, accept: float = ACCEPT) -> Answer:
    (found,) = answers(need, abilities(tables([record for part in records for record in part])), accept)
    return found


def both(name: str, first: Sequence[float], second: Sequence[float], **changes: Any) -> list[RunRecord]:
    return [*cheap(name, *first, **changes), *cheap(name, *second, task="copying", **changes)]


BASE = [*yardsticks(), *yardsticks("copying")]


def test_the_cheapest_that_is_good_at_every_task_is_taken():
    found = chosen(BASE, both("linformer", SURE, (0.91, 0.91, 0.92), flops=20), both("nystrom", SURE, SURE, flops=30))
    assert [choice.label for choice in found.chosen] == ["linformer", "nystrom"] and found.nearest is None
    assert found.chosen[0].costs == "2 % of softmax's FLOPs at 4,096 tokens"
    assert found.evidence == (("Copying", "tokens come back"), ("Mqar", "keys find values"))
    cells = [cell.strip() for cell in use_table([found], format="github").splitlines()[4].strip("|").split("|")]
    assert cells == ["A need", "linformer (also matches: nystrom)", "0.0 ± 2.3 points", "copying, mqar", "16"]


UNFIT = [
    both("linformer", SURE, (0.70, 0.71, 0.72)),
    both("linformer", SURE, (0.99, 0.85, 0.80)),
    both("linformer", SURE, SURE[:2]),
    both("linformer", SURE, SURE, flops=1000),
    both("linformer", SURE, SURE, flops=None),
    [*cheap("linformer", *SURE), *cheap("linformer", *SURE, flops=None, task="copying")],
    cheap("linformer", *SURE),
    both("none", (0.88, 0.89, 0.90), (0.88, 0.89, 0.90)),
]
"""Records of mechanisms that are not taken; the first two cost less and have every score."""


@pytest.mark.parametrize(
    "unfit",
    UNFIT,
    ids=["worse", "too noisy", "two seeds", "as dear as softmax", "cost unknown", "unknown at one", "not run at one", "a control"],
)
def test_what_does_not_qualify_is_not_taken(unfit):
    found = chosen(BASE, both("mega", (0.5, 0.51, 0.52), (0.5, 0.51, 0.52), flops=5000), unfit)
    assert not found.chosen
    judged = found.nearest is not None and found.nearest.label == "linformer"
    assert judged == (unfit in UNFIT[:2])
    told = "no cheaper mechanism has three seeds on every task"
    if unfit is UNFIT[-1]:
        told = "; ".join(
            f"{at} does not count (every mechanism is no better than the best control, none)" for at in ("Copying", "Mqar")
        )
    assert no_evidence(found) == ("" if judged else told)


def test_without_another_mechanism_at_every_task_nothing_is_said_to_be_too_far():
    for beside in ([], cheap("linformer", *SURE), both("linformer", SURE, SURE[:2]), both("none", SURE, SURE)[:1]):
        found = chosen(BASE, beside)
        assert no_evidence(found).endswith("no cheaper mechanism has three seeds on every task")
        assert f"| A need     | {NO_EVIDENCE} |" in use_table([found], format="github")


def test_one_that_is_no_better_than_a_control_is_not_taken_however_little_may_be_kept():
    close = [*yardsticks(softmax=(0.24, 0.25, 0.26)), *yardsticks("copying", softmax=(0.24, 0.25, 0.26))]
    found = chosen(close, both("linformer", (0.21, 0.21, 0.22), (0.21, 0.21, 0.22)))
    assert len(found.evidence) == 2 and not found.chosen


def test_the_nearest_is_the_one_of_least_loss_at_its_worst_task():
    found = chosen(BASE, both("linformer", (0.5, 0.51, 0.52), SURE), both("nystrom", (0.7, 0.71, 0.72), (0.7, 0.71, 0.72)))
    assert found.nearest and found.nearest.label == "nystrom"
    assert "| softmax | -20.0 ± 2.3 points for nystrom, which came closest |" in use_table([found], format="github")


def test_a_small_state_must_be_known_and_smaller_than_softmaxs_and_the_smallest_is_taken():
    need = Need("State", {("mqar", True): "it is read once"}, small_state=True)
    base = yardsticks(causal=True)
    found = chosen(
        base,
        cheap("linear", *SURE, flops=50, state=100, causal=True),
        cheap("delta_rule", *SURE, flops=10, state=200, causal=True),
        cheap("topk", *SURE, flops=1, state=None, causal=True),
        cheap("local", *SURE, flops=1, state=4096, causal=True),
        need=need,
    )
    assert [choice.label for choice in found.chosen] == ["linear", "delta_rule"]


def test_a_task_read_the_other_way_does_not_speak_and_each_way_has_its_answer():
    need = Need("Recall", {("mqar", False): "both ways", ("mqar", True): "from left to right"})
    records = [*yardsticks(), *cheap("linformer", *SURE), *yardsticks(causal=True, data={})]
    records += cheap("linear", *SURE, causal=True, data={})
    ways = answers(need, abilities(tables(records)), ACCEPT)
    assert [(way.direction, way.chosen[0].label) for way in ways] == [("bidirectional", "linformer"), ("causal", "linear")]
    assert "| Recall (causal)        | linear" in use_table(ways, format="github")


def test_what_is_not_recorded_and_what_says_nothing_is_named():
    found = chosen(yardsticks("copying", softmax=SURE[:2]), cheap("linformer", *SURE, task="copying"))
    why = "softmax or the control uniform has fewer than 3 seeds"
    assert no_evidence(found) == f"Copying does not count ({why}); not run: mqar"


def test_short_inputs_are_no_evidence_for_long_ones():
    long = Need("Long inputs", {("mqar", False): "keys find values"}, shortest=512)
    short, enough = (dict[str, Any](card={"length": length}) for length in (511, 512))
    found = [chosen([*yardsticks(**card), *cheap("linformer", *SURE, **card)], need=long) for card in (short, enough)]
    assert no_evidence(found[0]) == "Mqar does not count (511 tokens, and this use case begins at 512)"
    assert found[1].chosen[0].label == "linformer" and found[1].scored_at == "512"


def test_the_tasks_of_every_need_exist_in_their_direction():
    for name, causal in {key for need in NEEDS for key in need.tasks}:
        assert name in task_names()
        options = make_options(f"task {name}", task_card(name).options, {})
        always = name in ("causal_language", "flip_flop", "fuzzy_recall", "needle")
        assert hasattr(options, "causal") or causal == always, f"{name} cannot be read so"


def test_the_matrix_has_a_sign_for_each_verdict_and_counts_the_tasks_on_which_a_mechanism_matches_softmax():
    assert set(SIGNS) == set(Verdict) and len({*SIGNS.values(), NO_VERDICT, UNCERTAIN}) == len(SIGNS) + 2
    records = [*BASE, *runs("linformer", *SURE), *runs("linformer", 0.2, 0.22, 0.21, task="copying")]
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


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    stored(tmp_path / "runs", [*BASE, *both("linformer", SURE, SURE)])
    return tmp_path


def test_the_command_answers_every_use_case_in_a_table(folder, capsys):
    file = folder / "transplant.json"
    file.write_text(json.dumps(TRANSPLANT), encoding="utf-8")
    (folder / "runs" / "broken.json").write_text("{", encoding="utf-8")
    assert main(["recommend", "--records", str(folder / "runs"), "--transplant", str(file), "--accept", "3"]) == 0
    out, err = capsys.readouterr()
    assert "linformer" in out and "lies above -3 points" in " ".join(out.split()) and "similarity of passages" in out
    assert max(map(len, out.splitlines())) <= COLUMNS and "broken.json" in err
    assert main(["recommend", "--format", "json"]) == 0
    shipped = json.loads(capsys.readouterr().out)
    assert [one["title"] for one in shipped[:3]] == [need.title for need in NEEDS[:3]] and len(shipped) == 6
    assert main(["recommend", "--records", str(folder / "nothing")]) == 2


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("{", "is not JSON"),
        ('{"experiment": "growth"}', "is a file of growth"),
        ("[]", "another kind"),
        (json.dumps({**TRANSPLANT, "complete": False}), "are not complete"),
        (json.dumps({**TRANSPLANT, "schema": 2}), "must have schema 1"),
        (json.dumps({**TRANSPLANT, "reference": None}), "lacks some"),
        (json.dumps({**TRANSPLANT, "points": [{"attention": "linformer"}]}), "lacks some"),
    ],
    ids=lambda text: text[:20],
)
def test_a_file_that_is_no_transplant_is_refused(folder, capsys, content, said):
    file = folder / "found.json"
    file.write_text(content, encoding="utf-8")
    assert main(["recommend", "--records", str(folder / "runs"), "--transplant", str(file)]) == 2
    assert said in capsys.readouterr().err


def test_sentences_count_out_of_the_tasks_that_were_run():
    records = [*yardsticks(), *yardsticks("copying"), *yardsticks("needle"), *cheap("linformer", 0.90, 0.90, 0.92)]
    records += cheap("linformer", 0.80, 0.82, 0.81, task="copying")
    found = abilities(tables(records))
    lines = {line.sentence: line.tasks for line in told(found, "linformer")}
    assert list(lines) == [
        "It matches softmax on 1 of the 2 tasks that it was run on.",
        "It is worse than softmax on 1 of the 2 tasks that it was run on.",
        "It was not run on 1 of the 3 tasks.",
    ]
    ((worse,),) = [tasks for sentence, tasks in lines.items() if "worse" in sentence]
    assert worse.startswith("Copying: 81.0") and "softmax 91.0" in worse and "uniform (the best control) 21.0" in worse
    assert told(found[:1], "softmax")[0].sentence == "It is better than the best control on the only task that it was run on."
    assert told(found, "uniform")[0].sentence == "It is the best control on 3 of the 3 tasks that it was run on."
    assert told(found, "softmax")[0].sentence == "It is better than the best control on 3 of the 3 tasks that it was run on."


def test_the_finding_names_for_each_direction_who_matches_softmax_on_the_most_tasks():
    records = [*yardsticks(), *yardsticks("copying"), *cheap("linformer", 0.90, 0.90, 0.92)]
    worse = cheap("linformer", 0.80, 0.82, 0.81, task="copying")
    dear = cheap("topk", 0.90, 0.90, 0.92, flops=1000)
    nearest = finding(abilities(tables([*records, *worse, *dear])))
    assert nearest == (
        "1 mechanism with fewer FLOPs than softmax was run on at least half of the 2 bidirectional tasks. None of them matches "
        "softmax on all of these tasks: `linformer` matches it on 1, the most. With the sizes of these runs, it takes 1 % of "
        "softmax's FLOPs at 4,096 tokens. "
        "Softmax is hardest to match on Copying: 0 of 1 mechanisms match it there."
    )
    causal = [*yardsticks("copying", causal=True), *cheap("linear", 0.20, 0.20, 0.22, task="copying", causal=True)]
    whole = finding(abilities(tables([*records, *cheap("linformer", 0.90, 0.90, 0.92, task="copying"), *causal])))
    assert "`linformer` matches softmax on all of these tasks. With the sizes of these runs, it takes 1 %" in whole
    assert whole.endswith(
        "at least half of the 1 causal task. None of them matches softmax on all of these tasks. Softmax is hardest to match on "
        "Copying (causal): 0 of 1 mechanisms match it there."
    )
    assert finding(abilities(tables(yardsticks()))) == ""


def test_all_tasks_on_which_softmax_is_hardest_to_match_are_named_and_those_where_it_has_not_learned_are_not():
    records = [*yardsticks(), *yardsticks("copying"), *yardsticks("needle"), *yardsticks("induction", softmax=(0.2, 0.2, 0.21))]
    for task, scores in {"mqar": (0.90, 0.90, 0.92), "copying": (0.6, 0.6, 0.61), "induction": (0.2, 0.2, 0.21)}.items():
        records += cheap("linformer", *scores, task=task)
    for task in ("mqar", "needle"):
        records += cheap("performer", 0.6, 0.6, 0.61, task=task)
    assert finding(abilities(tables(records))).endswith(
        "Softmax is hardest to match on Copying and Needle: 0 of 1 and 0 of 1 mechanisms match it there."
    )


def test_the_finding_counts_mechanisms_that_were_run_on_half_of_the_tasks():
    records = [*yardsticks(), *yardsticks("copying"), *yardsticks("needle"), *cheap("performer", 0.90, 0.90, 0.92)]
    assert finding(abilities(tables(records))) == "", "one of three tasks"
    for task in ("mqar", "copying"):
        records += cheap("linformer", 0.90, 0.90, 0.92, task=task)
    found = finding(abilities(tables(records)))
    assert found.startswith("1 mechanism ") and "None of them matches" in found and "`linformer` matches it on 2" in found
