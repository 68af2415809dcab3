"""Verdicts on mechanisms in a trained encoder, from the committed transplant and changed copies of it."""

from __future__ import annotations

from typing import Any

from committed import measured

from attn_zoo.recommend.answer import Answer, recommend
from attn_zoo.recommend.candidates import Requirements
from attn_zoo.recommend.text import use_line

TRANSPLANT = measured("transplant")


def answer(accept: float, **changes: Any) -> Answer:
    return recommend(Requirements(128, trained=True, accept=accept), [], {**TRANSPLANT, **changes})


def test_no_encoder_of_the_committed_transplant_is_close_enough_to_its_teacher():
    found = answer(5.0)
    assert len(found.evidence) == 4 and not found.qualified and found.lengths == [128]
    assert found.nearest and found.nearest.scored == "linformer projected_length=32 (init=stretches)"
    assert use_line(found)[1:3] == ["softmax", f"-18.0 ± 1.0 points for {found.nearest.scored}, which came closest"]


def test_with_more_to_lose_the_cheapest_student_is_taken():
    """Performer is left out: with features=32 it tells paraphrases no better than the control, with features=128 it is as dear as
    softmax."""
    assert [each.scored for each in answer(30.0).qualified] == ["linformer projected_length=8 (init=stretches)"]
    assert [each.scored for each in answer(20.0).qualified] == ["linformer projected_length=32 (init=stretches)"]


def test_a_student_that_failed_at_a_seed_is_left_out():
    cheaper = [p["cost"]["attention_flops"] < p["cost"]["softmax_flops"] and not p["control"] for p in TRANSPLANT["points"]]
    points = [{**p, "failed": "NaN"} if c and p["seed"] == 2 else p for c, p in zip(cheaper, TRANSPLANT["points"], strict=True)]
    found = answer(25.0, points=points)
    assert found.evidence and not found.compared and found.no_evidence == "no cheaper mechanism has 3 seeds on every task"
    assert {one.verdict for each in found.candidates if each.attention == "performer" for one in found.deciding(each)} == {"failed"}


def test_a_control_that_failed_at_a_seed_and_no_control_are_no_evidence():
    points = [{**p, "failed": "NaN"} if p["control"] and p["seed"] == 2 else p for p in TRANSPLANT["points"]]
    for some in (points, [p for p in points if not p["control"]]):
        found = answer(25.0, points=some)
        assert not found.evidence and "no control was transplanted" in found.no_evidence
