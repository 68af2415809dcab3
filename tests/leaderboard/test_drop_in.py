"""Advice on the attention of a trained encoder, from the committed transplant and changed copies of it."""

from __future__ import annotations

from committed import measured

from attn_zoo.leaderboard.advise.drop_in import drop_in
from attn_zoo.leaderboard.advise.table import no_evidence

TRANSPLANT = measured("transplant")


def test_no_encoder_of_the_committed_transplant_is_close_enough_to_its_teacher():
    found = drop_in(TRANSPLANT, 5.0)
    assert len(found.evidence) == 4 and not found.chosen and found.nearest
    assert found.nearest.label == "linformer projected_length=32 (init=stretches)"
    assert found.nearest.costs == "50 % of softmax's FLOPs at 128 tokens" and found.scored_at == "128"


def test_with_more_to_lose_the_cheapest_student_is_taken():
    """Left out are controls, single seeds (init=spectrum), students as dear as softmax (projected_length=64, features=128), and
    performer features=32, which tells paraphrases no better than the control."""
    labels = [choice.label for choice in drop_in(TRANSPLANT, 30.0).chosen]
    assert labels == [
        "linformer projected_length=8",
        "linformer projected_length=16",
        "linformer projected_length=32 (init=stretches)",
    ]


def test_a_student_that_failed_at_a_seed_is_left_out():
    cheaper = [p["cost"]["attention_flops"] < p["cost"]["softmax_flops"] and not p["control"] for p in TRANSPLANT["points"]]
    assert not all(cheap or p["control"] for cheap, p in zip(cheaper, TRANSPLANT["points"], strict=True))
    points = [{**p, "failed": "NaN"} if c and p["seed"] == 2 else p for c, p in zip(cheaper, TRANSPLANT["points"], strict=True)]
    found = drop_in({**TRANSPLANT, "points": points}, 25.0)
    assert found.evidence and not found.chosen and found.nearest is None and not found.compared
    assert no_evidence(found) == "no cheaper mechanism has three seeds on every task"


def test_without_a_control_an_encoder_says_nothing():
    found = drop_in({**TRANSPLANT, "points": [p for p in TRANSPLANT["points"] if not p["control"]]}, 25.0)
    assert not found.evidence and "no control was transplanted" in no_evidence(found)
