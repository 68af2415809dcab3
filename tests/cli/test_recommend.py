"""A recommendation follows from requirements and records, is softmax where they do not suffice, and agrees with the table."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from make import PERPLEXITY, records_of, stored

from attn_zoo import reference
from attn_zoo.cli import main
from attn_zoo.cli.commands import parser
from attn_zoo.cli.compose import plan
from attn_zoo.cli.recommend import memory_bytes
from attn_zoo.leaderboard import tables
from attn_zoo.leaderboard.advise.abilities import abilities
from attn_zoo.leaderboard.advise.drop_in import drop_in
from attn_zoo.leaderboard.advise.needs import NEEDS, answers, costs_of
from attn_zoo.leaderboard.table import Table
from attn_zoo.recommend import Recommendation, Requirements, recommend
from attn_zoo.recommend.commands import evidence_command, settings
from attn_zoo.recommend.ranking import candidates
from attn_zoo.recommend.text import as_text, code
from attn_zoo.records import Budget, RunRecord, Store
from attn_zoo.registry import attentions, build_task, card, task_card
from attn_zoo.rows import rows_of
from attn_zoo.terminal import COLUMNS

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


def asked(made: Sequence[RunRecord], rows: str = "", **required: Any) -> Recommendation:
    return recommend(Requirements(**{"length": 4096, **required}), tables(made), rows=rows_of(rows) if rows else ())


@cache
def shipped() -> list[Table]:
    """Return the tables of the records that come with the package."""
    return tables(Store(reference.default()).load()[0])


def taken(found: Recommendation) -> str:
    return found.taken.attention if found.taken else ""


def refusal(found: Recommendation, label: str) -> str:
    return next(each.reason for each in found.refused if each.label == label)


def test_the_cheapest_that_is_close_enough_is_taken_with_the_implementation_of_the_device():
    found = asked(records(linear=SURE, nystrom=SURE, linformer=WORSE))
    assert [each.attention for each in found.qualified] == ["linear", "nystrom"]
    lines = as_text(found).splitlines()
    assert lines[:5] == [
        "You asked for 4,096 tokens; the evidence is only from inputs of 16 tokens.",
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


def test_words_hold_if_lower_is_better_if_the_task_was_learned_and_without_records():
    perplexities = {"uniform": (90.0, 91.0, 92.0), "softmax": (10.0, 10.0, 10.1), "linear": (10.2, 10.2, 10.3)}
    made = [one for name, scores in perplexities.items() for one in scored(name, scores, card=PERPLEXITY)]
    assert "Why: less than 5 % worse than softmax on Mqar" in as_text(asked(made)), "a perplexity below softmax's is better"
    assert as_text(asked([])).startswith("No evidence yet: there are no records of these tasks. ")
    budget = Budget(until="criterion", ceiling=1.0, schedule="constant", evaluate_every=10)
    there: dict[str, Any] = {
        "spec_budget": budget,
        "stopped": "criterion",
        "reached": {str(share): {"steps": 100} for share in (50, 90, 99)},
    }
    below = (0.80, 0.80, 0.81)  # on a test with longer inputs than training
    control = scored("uniform", AT_CONTROL, **{**there, "stopped": "cap", "reached": {"90": None}})
    said = " ".join(as_text(asked([*scored("softmax", SURE, **there), *scored("linear", below, **there), *control])).split())
    assert "with 95 % confidence, or both learned the task with all seeds; -10.7 ± 2.0 points." in said


@pytest.mark.parametrize(
    "unfit",
    [
        {"linear": WORSE},
        {"linear": SURE[:2]},
        {"linear": (0.99, 0.85, 0.80)},
        {"linear": AT_CONTROL},
        {"none": SURE},
        {"topk": SURE},
        {},
    ],
    ids=["worse", "two seeds", "too noisy", "no better than a control", "a control", "as dear as softmax", "not run"],
)
def test_softmax_is_taken_where_nothing_qualifies_with_the_command_that_could_change_it(unfit):
    found = asked(records(**unfit))
    if "none" in unfit:
        assert as_text(found).startswith("No evidence yet: Mqar does not count (no mechanism is better than the control none")
    else:
        assert "Use softmax (sdpa)." in as_text(found).splitlines()[:2]
        assert re.search(r"\nWhy: (none of|the only cheaper mechanism that was run, linear, does not) ", as_text(found))
    command = evidence_command(found)
    if "none" in unfit:
        assert command is None and "Your own task may give another answer" in as_text(found)
        return
    assert command
    (missing,) = {spec.attention for spec in plan(shlex.split(command.text)[2:]).specs} - {"softmax", "uniform"}
    assert missing not in unfit or (missing == "linear" and unfit["linear"] in (SURE[:2], (0.99, 0.85, 0.80)))


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
    assert reason in refusal(found, label)


def test_only_softmax_that_is_refused_as_well_leaves_nothing_to_take(capsys):
    words = ["recommend", "--length", "4096", "--decode", "--memory", "1KiB", "--device", "cpu", "--attention", "linear"]
    assert main(words) == 1
    said = capsys.readouterr().out
    assert said.startswith("No mechanism meets these requirements, not even softmax.\nsoftmax: softmax needs 8 MiB (counted")


def test_generation_takes_the_smallest_state_of_a_recurrent_form():
    found = asked(records(causal=True, linear=SURE, delta_rule=SURE, local=SURE), decode=True)
    assert [each.attention for each in found.qualified] == ["delta_rule", "linear"]
    assert "a state of 64 KiB, softmax's 8 MiB (4,096 tokens)" in as_text(found)


def test_what_auto_takes_on_cuda_is_named_for_cuda():
    by_name = {each.attention: each for each in candidates(Requirements(4096, device="cuda"))[0]}
    assert by_name["softmax"].implementation == "sdpa" and by_name["longformer"].implementation == "flex"


def test_a_trained_model_is_judged_by_transplants():
    def of(**required: Any) -> Recommendation:
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
    caution = "the evidence is from one sentence encoder only, with linformer projected_length=8"
    assert caution in " ".join(as_text(lenient).split()), "the code builds another size and start"
    assert as_text(of(causal=True)).startswith("No evidence yet: no transplant into a trained model of this kind")
    assert "none of 3 cheaper mechanisms was transplanted" in as_text(of(length=2))
    (few, all_of_them) = (
        recommend(Requirements(64, trained=True), [], TRANSPLANT, rows=rows_of(name)) for name in ("topk", "linformer")
    )
    said = "All cheaper candidates were transplanted, and none matches the teacher."
    assert said not in as_text(few) and said in as_text(all_of_them), "topk costs as much as softmax, and was not transplanted"


@pytest.mark.parametrize("accept", [5.0, 25.0, 90.0])
def test_the_table_of_use_cases_and_one_answer_agree(accept):
    made, recurrent = shipped(), [n for n in attentions() if card(n).can.stepwise]
    for need in NEEDS:
        ways = answers(need, abilities(made), accept, costs_of(recurrent if need.small_state else None))
        for causal, way in zip(need.directions, ways, strict=True):
            required = Requirements(4096, use=need.name, causal=causal, decode=need.small_state, accept=accept)
            found = recommend(required, made)
            assert {each.attention for each in found.qualified} == {choice.attention for choice in way.chosen}
            assert (found.answer.nearest and found.answer.nearest.label) == (way.nearest and way.nearest.label)
    found = recommend(Requirements(4096, trained=True, accept=accept), [], TRANSPLANT)
    assert found.answer == drop_in(TRANSPLANT, accept)


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        ("--length 8192 --padding", "Try linear (tiled)."),
        ("--length 4096 --for generation --decode", "Use softmax (sdpa)."),
        ("--for recall", "Try linear (tiled)."),
        ("--padding --trained", "Use softmax (sdpa)."),
    ],
)
def test_an_answer_names_its_scope_first_in_few_lines(words, answer, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["recommend", *words.split(), "--device", "cpu"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("You asked for ") and lines[1] == answer and lines[2].startswith("Why: ")
    assert sum(not line.startswith("  ") or line.startswith("  attn-zoo") for line in lines) <= 9
    assert any(line.startswith("Cost: ") for line in lines)
    assert "--trained" in words or any(line.startswith("Code: ") for line in lines)
    assert max(map(len, lines)) <= COLUMNS and sum(line.startswith("Caution: ") for line in lines) <= 1
    assert main(["recommend", *words.split(), "--device", "cpu", "--all"]) == 0
    assert max(map(len, capsys.readouterr().out.splitlines())) <= COLUMNS


def printed_runs(said: str) -> list[str]:
    """Arguments of ``attn-zoo run`` in the only complete command of that kind in a recommendation; empty without one."""
    commands = re.findall(r"(?m)^  attn-zoo run (.*)$", said.replace(" \\\n", " "))
    whole = [command for command in commands if "task=NAME" not in command]
    assert len(whole) <= 1
    return shlex.split(whole[0]) if whole else []


WAYS = [(need, causal) for need in NEEDS for causal in need.directions]


@pytest.mark.parametrize("recorded", [True, False], ids=["shipped records", "no records"])
@pytest.mark.parametrize(("need", "causal"), WAYS, ids=[f"{need.name} {'causal' * causal}" for need, causal in WAYS])
def test_every_run_that_is_proposed_for_a_use_case_counts_as_its_evidence(need, causal, recorded):
    made = shipped() if recorded else []
    required = Requirements(4096, use=need.name, causal=causal, decode=need.small_state)
    proposed = 0
    for rows in ("", "linformer[projected_length=1024],performer,nystrom,reformer", "delta_rule,gated_linear"):
        words = printed_runs(as_text(recommend(required, made, rows=rows_of(rows) if rows else ())))
        for spec in plan(words).specs if words else ():
            given = build_task(spec.task, **spec.task_options).spec
            assert need.counts(spec.task, given.causal, given.length), (words, given)
            proposed += 1
    assert proposed or recorded


@pytest.mark.parametrize("need", [need for need in NEEDS if need.shortest], ids=lambda need: need.name)
def test_every_task_of_a_use_case_of_long_inputs_can_have_enough_tokens(need):
    """The table of use cases names tasks as not run with so many tokens."""
    for task, causal in need.tasks:
        large = dict(task_card(task).levels["lra"].options) | ({"patch": 2} if task.startswith("cifar") else {})
        lengths = [given.length for _, given in settings(task, need, Requirements(4096, causal=causal))]
        assert max([*lengths, build_task(task, **large).spec.length]) >= need.shortest


def test_the_counts_of_verdicts_add_up_to_the_tasks_that_decide(capsys):
    for words, tasks in ((["--all"], 6), (["--all", "--causal"], 5)):
        assert main(["recommend", *words, "--device", "cpu"]) == 0
        said = capsys.readouterr().out.split("\nCandidates")[1].split("\n\n")[1].splitlines()
        assert said[0].endswith(f"verdict on {tasks} tasks")
        rows = [re.split(r" {2,}", row)[-1] for row in said[2:]]
        counted = [row for row in rows if row not in ("matches softmax", "the baseline")]
        assert len(counted) > 20
        for row in counted:
            assert sum(int(part.split()[0]) for part in row.split(", ")) == tasks, row


def test_the_command_that_measures_has_the_sizes_that_were_asked_for():
    found = asked(records(linformer=SURE), "linformer[projected_length=64]", length=2048, width=512, heads=8, padding=True)
    said = as_text(found).replace(" \\\n   ", "")
    measured = "'attention=softmax,linformer[projected_length=64]' lengths=2048 dim=512 heads=8"
    assert f"  attn-zoo measure {measured}" in said
    assert 'In a transformers model: replace_attention(model, "linformer", projected_length=64)' in said
    linear = as_text(asked(records(linear=SURE), "linear", padding=True))
    assert 'replace_attention(model, "linear", attention_dropout=0.0)' in linear, "it has no weights that could be dropped"
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


@pytest.mark.parametrize("use", ["documents", "vision"])
def test_use_cases_of_long_inputs_have_no_evidence_from_the_short_tasks_of_the_profile(use, capsys):
    assert main(["recommend", "--for", use, "--device", "cpu"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("No evidence yet: ") and "Caution: " not in said, "the first sentence has told all doubts"


def test_json_holds_the_lines_and_the_evidence(capsys, tmp_path):
    stored(tmp_path, records(linear=SURE))
    assert main(["recommend", "--length", "4096", "--device", "cpu", "--records", str(tmp_path), "--format", "json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["take"] == "linear (tiled)" and data["lines"][1] == "Try linear (tiled)."
    assert {each["label"]: each["verdict"] for each in data["candidates"]}["linear (tiled)"] == "matches softmax"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--length", "0"], "length must be an integer >= 1"),
        (["--heads", "3"], "--width must be divisible by --heads; got --width 256 --heads 3"),
        (["--memory", "1GiB"], "--memory must go with --direction training or --decode"),
        (["--causal", "--cross"], "Leave --cross or the others out"),
        (["--decode", "--direction", "training"], "--decode cannot be combined with --direction training"),
        (["--trained", "--task", "mqar"], "--trained and --task cannot be given together"),
        (["--for", "recal"], "did you mean 'recall'?"),
        (["--for", "generation"], "Add --decode"),
        (["--for", "vision", "--causal"], "the tasks of --for vision are bidirectional. Leave out --causal\n"),
        (["--for", "documents", "--decode"], "the tasks of --for documents are bidirectional. Leave out --decode\n"),
        (["--accept", "-1"], "--accept must be a loss of at least 0 and less than 100 points; got -1"),
        (["--task", "digits"], "there are no bidirectional records of --task digits. Run this task, or name a task with "),
        (["--records", "nowhere"], "'nowhere' does not exist"),
        (["--transplant", "t.json"], "--transplant must go with --trained"),
        (["--attention", "linfromer"], "did you mean 'linformer'?"),
        (["--attention", "softmax", "uniform"], "controls are never recommended. Leave out uniform"),
    ],
)
def test_bad_input_is_refused_in_words(words, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["recommend", *(["--length", "64"] if "--length" not in words else []), *words]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(("words", "size"), [("4GiB", 4 * 2**30), ("512 mib", 2**29), ("1.5GB", 1_500_000_000), ("77", 77)])
def test_sizes_of_memory(words, size):
    assert memory_bytes(words) == size
