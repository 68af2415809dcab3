"""A recommendation follows from requirements and records, is softmax where they do not suffice, and agrees with the table."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from make import PERPLEXITY, records_of

from attn_zoo import reference
from attn_zoo.cli.main import parser
from attn_zoo.cli.run import plan
from attn_zoo.leaderboard import tables
from attn_zoo.recommend.answer import Answer, recommend, use_cases
from attn_zoo.recommend.candidates import Requirements, candidates
from attn_zoo.recommend.commands import evidence_command, evidence_length
from attn_zoo.recommend.needs import NEEDS
from attn_zoo.recommend.text import NO_EVIDENCE, as_text, code, use_line, use_table
from attn_zoo.records import Budget, RunRecord
from attn_zoo.registry import build_task, card, make_options, task_card, task_names
from attn_zoo.rows import rows_of

TRANSPLANT = json.loads(reference.TRANSPLANT.read_text(encoding="utf-8"))
SURE = (0.90, 0.91, 0.92)
WORSE = (0.70, 0.71, 0.72)
AT_CONTROL = (0.20, 0.22, 0.21)


def scored(name: str, scores: Sequence[float], task: str = "mqar", causal: bool = False, **changes: Any) -> list[RunRecord]:
    card = {"causal": causal, **changes.pop("card", {})}
    return records_of({name: scores}, task, card=card, spec_options={}, spec_task_options={"causal": causal}, **changes)


def records(task: str = "mqar", causal: bool = False, **scores: Sequence[float]) -> list[RunRecord]:
    """Records of softmax, a control and ``scores`` on one task."""
    every = {"uniform": (0.20, 0.21, 0.22), "softmax": SURE, **scores}
    return [record for name, values in every.items() for record in scored(name, values, task, causal)]


def asked(made: Sequence[RunRecord], rows: str = "", **required: Any) -> Answer:
    return recommend(Requirements(**{"length": 4096, **required}), tables(made), rows=rows_of(rows) if rows else ())


def taken(found: Answer) -> str:
    return found.taken.attention if found.taken else ""


def test_the_cheapest_that_is_close_enough_is_taken_with_the_implementation_of_the_device():
    found = asked(records(linear=SURE, nystrom=SURE, linformer=WORSE))
    assert [each.attention for each in found.qualified] == ["linear", "nystrom"]
    lines = as_text(found).splitlines()
    assert lines[:5] == [
        "This answer is for 4,096 tokens; the evidence is only from inputs of 16 tokens.",
        "Try linear (tiled).",
        "Why: less than 5 points worse than softmax on Mqar, with 95 % confidence; 0.0 ± 2.3 points.",
        "Cost: 1.6 % of softmax's FLOPs at 4,096 tokens.",
        "Also matches softmax: nystrom (sdpa).",
    ]
    assert lines[5] == 'Code: MultiHeadAttention(256, 4, "linear", length=4096)'
    assert lines[6:] == [
        "FLOPs are not time. This measures linear and softmax at 4,096 tokens:",
        "  attn-zoo measure attention=softmax,linear lengths=4096",
    ]


def test_words_hold_if_lower_is_better_and_without_records():
    perplexities = {"uniform": (90.0, 91.0, 92.0), "softmax": (10.0, 10.0, 10.1), "linear": (10.2, 10.2, 10.3)}
    made = [one for name, scores in perplexities.items() for one in scored(name, scores, card=PERPLEXITY)]
    assert "Why: less than 5 % worse than softmax on Mqar" in as_text(asked(made)), "a perplexity below softmax's is better"
    assert as_text(asked([])).startswith("No evidence yet: there are no records of these tasks. ")


def test_a_mechanism_that_learned_the_task_does_not_match_softmax_if_its_score_on_longer_inputs_is_lower():
    budget = Budget(until="criterion", ceiling=1.0, schedule="constant", evaluate_every=10)
    there: dict[str, Any] = {
        "spec_budget": budget,
        "stopped": "criterion",
        "reached": {str(share): {"steps": 100} for share in (50, 90, 99)},
    }
    below = (0.80, 0.80, 0.81)  # on a test with longer inputs than training
    control = scored("uniform", AT_CONTROL, **{**there, "stopped": "cap", "reached": {"90": None}})
    found = asked([*scored("softmax", SURE, **there), *scored("linear", below, **there), *control])
    assert taken(found) == "softmax" and not found.qualified


def both(first: Sequence[float], second: Sequence[float], name: str = "linear") -> list[RunRecord]:
    """Records of a mechanism on two tasks."""
    return [*scored(name, first, "mqar"), *scored(name, second, "copying")]


BASE = [*records(), *records("copying")]
UNFIT = {
    "worse": both(SURE, WORSE),
    "too noisy": both(SURE, (0.99, 0.85, 0.80)),
    "no better than a control": both(SURE, AT_CONTROL),
    "two seeds": both(SURE, SURE[:2]),
    "as dear as softmax": both(SURE, SURE, "topk"),
    "cost unknown": both(SURE, SURE, "fnet"),
    "not run at one": scored("linear", SURE),
    "a control": both((0.88, 0.89, 0.90), (0.88, 0.89, 0.90), "none"),
    "nothing else": [],
}
"""Records of mechanisms that are not taken; the first three have enough seeds and cost less."""


@pytest.mark.parametrize("unfit", UNFIT)
def test_softmax_is_taken_where_nothing_qualifies_with_the_command_that_could_change_it(unfit):
    found = asked([*BASE, *UNFIT[unfit]])
    assert not found.qualified and taken(found) == "softmax"
    judged = unfit in list(UNFIT)[:3]
    assert bool(found.nearest) == judged == (not found.no_evidence)
    assert (f"| Tasks      | {NO_EVIDENCE} |" in use_table([found], format="github")) == (not judged)
    if unfit == "a control":
        assert found.no_evidence == "; ".join(
            f"{at} does not count (every mechanism is no better than the best control, none)" for at in ("Copying", "Mqar")
        )
        assert evidence_command(found) is None and "Your own task may give another answer" in as_text(found)
        return
    why = "no cheaper mechanism that was run (linear) matches" if judged else "no cheaper mechanism has 3 seeds on every task"
    assert f"Use softmax (sdpa). Why: {why}" in " ".join(as_text(found).split())
    command = evidence_command(found)
    assert command
    (missing,) = {spec.attention for spec in plan(shlex.split(command.text)[2:]).specs} - {"softmax", "uniform"}
    assert (missing == "linear") == (unfit in ("too noisy", "two seeds", "not run at one")) or unfit == "nothing else"


def test_one_that_is_no_better_than_a_control_is_not_taken_however_little_may_be_kept():
    close = [*scored("uniform", AT_CONTROL), *scored("softmax", (0.24, 0.25, 0.26)), *scored("linear", (0.21, 0.21, 0.22))]
    found = asked(close)
    assert len(found.evidence) == 1 and not found.qualified


def test_the_nearest_is_the_one_of_least_loss_at_its_worst_task():
    found = asked([*BASE, *both((0.5, 0.51, 0.52), SURE), *both(WORSE, WORSE, "nystrom")])
    assert found.nearest and found.nearest.attention == "nystrom"
    assert use_line(found) == ["Tasks", "softmax", "-20.0 ± 2.3 points for nystrom, which came closest", "copying, mqar", "16"]
    assert use_line(asked([*BASE, *both(SURE, SURE), *both(SURE, SURE, "nystrom")]))[1:3] == [
        "linear (also matches: nystrom)",
        "0.0 ± 2.3 points",
    ]


def test_each_direction_of_a_use_case_has_its_answer_and_what_is_missing_or_says_nothing_is_named():
    made = [*records(nystrom=SURE), *records(causal=True, linear=SURE), *scored("softmax", SURE[:2], "needle")]
    recall = {found.title: found for found in use_cases(tables(made), None) if found.title.startswith("Recall")}
    ways = ["Recall exact tokens (bidirectional)", "Recall exact tokens (causal)"]
    assert [taken(recall[way]) for way in ways] == ["nystrom", "linear"]
    assert recall[ways[0]].missing == ("copying", "induction", "haystack")
    assert recall[ways[0]].discounted == {"Needle": "no control was run"}
    alone = recommend(Requirements(64, use="recall"), tables(scored("softmax", SURE[:2]) + records()[:3] + scored("linear", SURE)))
    assert alone.no_evidence.startswith(
        "Mqar does not count (softmax or the control uniform has fewer than 3 seeds); not run: copying"
    )


def test_short_inputs_are_no_evidence_for_long_ones():
    for length, counts in ((511, False), (512, True)):
        scores = {"uniform": AT_CONTROL, "softmax": SURE, "linear": SURE}
        made = [one for name, these in scores.items() for one in scored(name, these, "text", card={"length": length})]
        found = asked(made, use="documents")
        assert bool(found.qualified) == counts and found.lengths == [512] * counts
        assert counts or found.no_evidence.startswith(
            "Text does not count (511 tokens, and this use case begins at 512); not run: "
        )


def test_the_tasks_of_every_need_exist_in_their_direction_and_can_have_enough_tokens():
    for need in NEEDS:
        for name, causal in need.tasks:
            assert name in task_names()
            options = make_options(f"task {name}", task_card(name).options, {})
            always = name in ("causal_language", "flip_flop", "fuzzy_recall", "needle")
            assert hasattr(options, "causal") or causal == always, f"{name} cannot be read so"
            if need.shortest:
                large = dict(task_card(name).levels["lra"].options) | ({"patch": 2} if name.startswith("cifar") else {})
                short = evidence_length(name, need, Requirements(4096, causal=causal)) or 0
                assert max(short, build_task(name, **large).spec.length) >= need.shortest


def test_every_task_of_the_direction_decides_unless_one_is_named():
    made = [*records(linear=SURE), *records("copying", linear=WORSE), *records("induction", causal=True, linear=WORSE)]
    assert taken(asked(made)) == "softmax"
    assert taken(asked(made, task="mqar")) == "linear"
    assert taken(asked(made, use="recall")) == "softmax"
    with pytest.raises(ValueError, match=r"no causal records of --task mqar\. Run this task, or .* causal records: induction"):
        asked(made, task="mqar", causal=True)


def test_sizes_follow_the_rules_of_the_cards_and_rows_with_sizes_of_ones_own_stand():
    found, _ = candidates(Requirements(2048))
    by_name = {each.attention: each for each in found}
    assert by_name["linformer"].share == pytest.approx(2 * 256 / 2048)  # E K and F V, then Q K' and P V'
    rows = asked(records(linformer=SURE), "linformer[projected_length=64|128]")
    assert [each.label for each in rows.candidates] == [
        "linformer[projected_length=64] (sdpa)",
        "linformer[projected_length=128] (sdpa)",
        "softmax (sdpa)",
    ]
    assert code(rows, rows.candidates[0]).endswith('"linformer", length=4096, projected_length=64)')


@pytest.mark.parametrize(
    ("required", "label", "reason"),
    [
        ({"causal": True}, "linformer", "linformer has no causal form"),
        ({"padding": True}, "fnet", "fnet cannot mask padded keys"),
        ({"cross": True}, "reformer", "reformer supports self-attention only"),
        ({"decode": True}, "local", "local has no recurrent form, so each token would be computed from the whole sequence"),
        ({"length": 1}, "linformer", "must be less than the 1 keys"),
        ({"direction": "training", "memory": 2**24, "length": 16384}, "softmax", "softmax needs "),
        ({"decode": True, "memory": 2**20}, "softmax", "softmax needs 8 MiB (counted, not measured); the limit is 1 MiB"),
    ],
)
def test_what_does_not_meet_the_requirements_is_refused_with_the_reason(required, label, reason):
    rows = f"{label},linear" if label != "linear" else ""
    found = asked([], rows, **required)
    assert reason in found.refused[label]


def test_generation_takes_the_smallest_state_of_a_recurrent_form():
    found = asked(records(causal=True, linear=SURE, delta_rule=SURE, local=SURE), decode=True)
    assert [each.attention for each in found.qualified] == ["delta_rule", "linear"]
    assert "a state of 64 KiB, softmax's 8 MiB." in as_text(found)
    for states in (None, (2**23, 2**23)):
        changed = tuple(replace(each, states=states) if each.attention == "delta_rule" else each for each in found.candidates)
        assert [each.attention for each in replace(found, candidates=changed).qualified] == ["linear"], "its state is not smaller"


def test_what_auto_takes_on_cuda_is_named_for_cuda():
    by_name = {each.attention: each for each in candidates(Requirements(4096, device="cuda"))[0]}
    assert by_name["softmax"].implementation == "sdpa" and by_name["longformer"].implementation == "flex"


def test_a_trained_model_is_judged_by_transplants():
    def of(**required: Any) -> Answer:
        return recommend(Requirements(**{"length": 512, "trained": True, **required}), [], TRANSPLANT)

    assert taken(of()) == "softmax"
    nearest = (
        "Closest: linformer (sdpa), with 50 % of softmax's FLOPs (heads of width 64); its worst case is -18.0 ± 1.0 points on "
        "similarity of pairs."
    )
    assert nearest in " ".join(as_text(of()).split())
    lenient = of(accept=30)
    assert "\nUse linformer (sdpa)." in as_text(lenient) and 'replace_attention(model, "linformer")' in as_text(lenient)
    command = evidence_command(of())
    assert command and not {"linformer", "performer"} & set(command.text.split()[2].removeprefix("attention=").split(","))
    parser("transplant").parse_args(shlex.split(command.text)[1:])
    caution = "the evidence is from one sentence encoder only, with linformer projected_length=8 (init=stretches)"
    assert caution in " ".join(as_text(lenient).split()), "the code builds another size and start"
    assert "no cheaper mechanism has 3 seeds on every task" in as_text(of(length=2))
    assert "not run: attn-zoo transplant" in as_text(recommend(Requirements(512, trained=True), []))


@pytest.mark.parametrize(("feature_map", "cautioned"), [("silu", False), ("none", True)])
def test_a_caution_names_no_option_that_the_mechanism_has_by_default(feature_map, cautioned):
    facts = {"card": {"causal": False}, "spec_task_options": {"causal": False}, "spec_options": {"feature_map": feature_map}}
    newer, older = records_of({"gated_linear": SURE}, "mqar", **facts), scored("gated_linear", SURE, "copying")
    said = as_text(asked([*records("mqar"), *records("copying"), *newer, *older]))
    assert "Try gated_linear (tiled)." in said
    assert (f"gated_linear was scored with feature_map={feature_map}" in said) == cautioned


@pytest.mark.parametrize(("version", "cautioned"), [(1, True), (2, False)])
def test_a_caution_names_a_mechanism_whose_scores_are_from_an_earlier_version(version, cautioned):
    assert card("gated_linear").version == 2
    said = as_text(asked([*records(), *scored("gated_linear", SURE, spec_attention_version=version)]))
    assert "Try gated_linear (tiled)." in said
    assert ("some scores of gated_linear are from an earlier version of it" in " ".join(said.split())) == cautioned


def test_the_command_that_measures_has_the_sizes_that_were_asked_for():
    found = asked(records(linformer=SURE), "linformer[projected_length=64]", length=2048, width=512, heads=8, padding=True)
    said = as_text(found).replace(" \\\n   ", "")
    measured = "'attention=softmax,linformer[projected_length=64]' lengths=2048 dim=512 heads=8"
    assert f"  attn-zoo measure {measured}" in said
    assert 'In a transformers model: replace_attention(model, "linformer", projected_length=64)' in said
    linear = as_text(asked(records(linear=SURE), "linear", padding=True))
    assert 'replace_attention(model, "linear", attention_dropout=0.0)' in linear, "it has no weights that could be dropped"
    eager = as_text(asked(records(linear=SURE), "linear:eager", length=2048))
    assert """"linear", length=2048, implementation='eager')""" in eager and "attention=softmax,linear:eager lengths" in eager
    causal = as_text(asked(records(causal=True, linear=SURE), causal=True, padding=True))
    assert "Caution: FLOPs are not time." in causal and "attn-zoo measure" not in causal and "transformers" not in causal


def test_proposed_commands_load_the_plugins_that_were_given(monkeypatch):
    found = asked(records(linformer=SURE), "linformer[projected_length=64]", length=2048, padding=True)
    monkeypatch.setattr("attn_zoo.plugin_files.exported_plugins", lambda: [Path("my folder/mine.py")])
    assert "'plugin=my folder/mine.py'" in as_text(found).replace(" \\\n   ", "").split("attn-zoo measure ")[1].splitlines()[0]
    for required in (Requirements(4096, trained=True), Requirements(4096, use="recall")):
        proposed = evidence_command(recommend(required, []))
        assert proposed and proposed.text.endswith(" 'plugin=my folder/mine.py'")


def test_a_named_task_without_enough_seeds_is_in_the_proposed_command():
    said = as_text(asked(records(linear=SURE)[::3], "linear", task="mqar")).replace(" \\\n   ", "")
    assert "repeat your command with --records runs:" in " ".join(said.split())
    assert "  attn-zoo run -m task=mqar attention=softmax,uniform,linear seed=1,2,3" in said
    decided = as_text(asked(records(linear=WORSE), "linear", task="mqar"))
    assert "attn-zoo run" not in decided, "the same runs would give the same answer"
