"""Classification by students: leaks between rows, learning, plain softmax equal to the teacher, table, command, bad input."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from attn_zoo.tasks.sentences import Sst2

from attn_zoo.cli import main
from attn_zoo.data.labelled_text import LabelledText
from attn_zoo.result_files import read_transplant
from attn_zoo.transplant import Bench, Candidate, Setting, Start, Teacher, Trial, swap
from attn_zoo.transplant.table import classification_table, rows_of
from attn_zoo.transplant.texts import Labelled, labelled
from attn_zoo.transplant.training import classify

WORDS = ("object", "class", "value", "name", "list", "type", "line", "string")
SOFTMAX = Candidate("softmax", {}, None, "softmax")
LINFORMER = Candidate("linformer", {"projected_length": 6}, None, "linformer[projected_length=6]")


def rows(count: int, seed: int) -> list[LabelledText]:
    """Return texts of six words; the label is 1 if the first word is in the first half of ``WORDS``."""
    draws = torch.randint(len(WORDS), (count, 6), generator=torch.Generator().manual_seed(seed)).tolist()
    return [LabelledText(int(row[0] < len(WORDS) // 2), (" ".join(WORDS[at] for at in row),)) for row in draws]


@pytest.fixture(scope="module")
def easy(setting: Setting) -> Setting:
    return replace(setting, classify_steps=60, classify_batch=16, classify_rate=3e-3)


@pytest.fixture(scope="module")
def task(easy: Setting, teacher: Teacher) -> Labelled:
    return labelled("words", "Words", rows(300, 0), rows(100, 1), teacher.tokenizer, easy)


def test_training_rows_of_the_test_are_left_out_whatever_their_case(easy, teacher):
    test = [LabelledText(0, ("the object is a class",)), LabelledText(1, ("a list of values",))]
    train = [LabelledText(1, ("The  Object is a CLASS",)), LabelledText(0, ("a name",)), LabelledText(1, ("a type",))]
    found = labelled("t", "T", train, test, teacher.tokenizer, easy)
    assert found.facts == {"title": "T", "train": 2, "test": 2, "majority": 0.5}
    assert found.train_labels.tolist() == [0, 1] and found.test_labels.tolist() == [0, 1]
    few = labelled("t", "T", train, test * 2, teacher.tokenizer, replace(easy, classify_train=2, classify_tests=3))
    assert (len(few.train), len(few.test)) == (1, 3)


def test_pairs_are_cut_to_the_length_and_keep_both_texts(easy, teacher):
    long = LabelledText(0, ("object " * 40, "class"))
    found = labelled(
        "t", "T", [LabelledText(1, ("name", "type")), LabelledText(0, ("line", "list"))], [long], teacher.tokenizer, easy
    )
    last = teacher.tokenizer("class", add_special_tokens=False)["input_ids"]
    assert found.test.ids.shape[1] == easy.length and bool(found.test.valid.all())
    assert found.test.ids[0, -1 - len(last) : -1].tolist() == last or found.test.ids[0, -len(last) :].tolist() == last


@pytest.mark.parametrize("candidate", [SOFTMAX, LINFORMER], ids=lambda candidate: candidate.label)
def test_a_student_learns_and_stays_as_it_was(candidate, easy, teacher, task):
    student = swap(teacher, candidate, easy.length, seed=0)
    before = {name: value.clone() for name, value in student.state_dict().items()}
    first = classify(student, task, easy, trim=True, seed=1)
    assert first > 0.85 > task.facts["majority"]
    assert all(torch.equal(value, before[name]) for name, value in student.state_dict().items())
    assert classify(student, task, easy, trim=True, seed=1) == first
    untrained = classify(student, task, replace(easy, classify_rate=1e-9), trim=True, seed=1)
    assert untrained < 0.75


def test_trimming_does_not_change_what_is_learned(easy, teacher, task):
    student = swap(teacher, LINFORMER, easy.length, seed=0)
    short = replace(easy, classify_steps=8)
    assert abs(classify(student, task, short, trim=True, seed=2) - classify(student, task, short, trim=False, seed=2)) <= 0.02


def test_plain_softmax_is_the_teacher_itself_and_points_hold_what_was_measured(easy, teacher, material, task):
    short = replace(easy, classify_steps=4)
    given = replace(material, tasks=[task])
    trials = [Trial(SOFTMAX, None, 1), Trial(LINFORMER, Start.stretches, 1)]
    softmax, linformer = Bench(short, teacher, given, trials, lambda line: None).points()
    assert softmax["stages"]["tuned"] == softmax["stages"]["swap"] and softmax["stages"]["swap"]["cosine"] > 0.9999
    assert softmax["seconds"].keys() == {"words"} and linformer["seconds"].keys() == {"distilled", "tuned", "words"}
    assert softmax["accuracy"]["words"] == classify(swap(teacher, SOFTMAX, short.length, 1), task, short, trim=True, seed=1)
    assert all(len(point["passes"][who]) == 7 for point in (softmax, linformer) for who in ("teacher", "student"))


def test_the_table_holds_means_over_tasks_and_seeds(easy):
    cost = {"attention_flops": 50, "softmax_flops": 100, "encoder_flops": 90, "teacher_flops": 100}

    def point(seed: int, accuracy: dict[str, float]) -> dict[str, object]:
        same = {"label": "linformer", "attention": "linformer", "control": False, "init": None, "cost": cost}
        return {**same, "seed": seed, "accuracy": accuracy, "passes": {"student": [1.0] * 7, "teacher": [2.0] * 7}}

    points = [point(1, {"a": 0.5, "b": 0.7}), point(2, {"a": 0.6, "b": 0.8}), point(3, {"a": 0.7})]
    (row,) = rows_of({"points": points})
    assert row.accuracies(["a"]) == {1: 0.5, 2: 0.6, 3: 0.7} and row.accuracies(["a", "b"]) == pytest.approx({1: 0.6, 2: 0.7})
    facts = {"title": "A", "train": 10, "test": 4, "majority": 0.5}
    found = {"points": points, "setting": easy.to_dict(), "environment": {"threads": 2, "cpu": "a processor"}}
    found["data"] = {"tasks": {"a": facts, "b": {**facts, "title": "B"}}}
    table = classification_table(found, "github")
    line = next(line for line in table.splitlines() if "linformer" in line)
    assert [cell.strip() for cell in line.split("|")[3:8]] == ["50.0", "90.0", "2.00 [2.00, 2.00]", "60.0 ± 24.8", "75.0 ± 63.5"]
    assert "60 steps of 16, rate 0.003, 3 seeds; 10 examples per task, 4 for the test" in table and "ifference" not in table

    # A second row is compared with the first at the seeds of both: 0.7 and 0.9 against 0.6 and 0.7.
    second = [point(1, {"a": 0.6, "b": 0.8}), point(2, {"a": 0.8, "b": 1.0}), point(4, {"a": 0.0, "b": 0.0})]
    table = classification_table({**found, "points": points + [{**each, "label": "other"} for each in second]}, "github")
    first, other = ([cell.strip() for cell in line.split("|")] for line in table.splitlines() if "±" in line and "|" in line)
    assert (first[6], other[6]) == ("", "+15.0 ± 63.5")

    # All students can fail before they classify.
    assert "most frequent class" in classification_table({**found, "points": []}, "github")


def test_the_command_classifies_and_goes_on(folder, tmp_path, capsys, monkeypatch):
    sizes = {"train": (120, 0), "test": (40, 1)}
    monkeypatch.setattr(Sst2, "rows", lambda self, split: rows(*sizes[split]))
    sizes_given = ["length=24", "passages=16", "tests=8", "batch=4", "distil_steps=2", "tune_steps=1", "classify_steps=2"]
    words = [f"model={folder}", *sizes_given, f"classify=sst2[root={tmp_path},valid=20]", f"output={tmp_path / 'out.json'}"]
    assert main(["transplant", *words, "attention=softmax"]) == 0
    assert main(["transplant", *words, "attention=softmax,linformer[projected_length=6]"]) == 0
    printed = capsys.readouterr().out
    assert "SST-2" in printed and "most frequent class" in printed and str(tmp_path) not in printed
    found = read_transplant(tmp_path / "out.json", "read=")
    assert [point["label"] for point in found["points"]] == ["softmax", "linformer[projected_length=6]"]
    assert [*found["data"]["tasks"]] == ["sst2[valid=20]"]
    assert found["setting"]["classify_steps"] == 2 and found["setting"]["classify_rate"] == 1e-4
