"""Which submitted records are refused, by which name, and that honest ones are not."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import date
from typing import Any

import pytest
from make import make_record

from attn_zoo.leaderboard.community import Submission, Submitted, community_tables, community_text, submissions
from attn_zoo.leaderboard.refusals import beside, refusals
from attn_zoo.records import RunRecord, Store
from attn_zoo.records.files import NAME, pack
from attn_zoo.records.spec import Budget
from attn_zoo.records.verify import Verdict, verify

SEEDS = (1, 2, 3)
CLEAN = Verdict(3, 3, ())
SHIPPED = [
    make_record(name, seed=seed, source=f"{name}-{seed}.json") for name in ("softmax", "linformer", "uniform") for seed in SEEDS
]


def runs(**changes: Any) -> list[RunRecord]:
    """Records of a submitted row, as a folder holds them."""
    return [make_record("mine", seed=seed, source=f"mine-{seed}.json", **changes) for seed in SEEDS]


def kinds(submitted: list[RunRecord], verdict: Verdict = CLEAN) -> list[str]:
    return [refusal.kind for refusal in refusals(submitted, SHIPPED, verdict)]


def told(submitted: list[RunRecord]) -> str:
    (refusal,) = refusals(submitted, SHIPPED, CLEAN)
    return refusal.words


def test_honest_records_are_not_refused():
    assert kinds(runs()) == []
    assert kinds([*runs()[:2], make_record("mine", seed=3, status="diverged", source="d.json")]) == [], "a failure is a result"
    more = make_record("mine", seed=4, source="mine-4.json")
    assert kinds([*runs(), more]) == []


def test_an_edited_score_is_refused(tmp_path):
    store = Store(tmp_path)
    paths = [store.add(record) for record in runs()]
    data = json.loads(paths[0].read_text(encoding="utf-8"))
    paths[0].write_text(json.dumps({**data, "scores": {**data["scores"], "test": 0.99}}), encoding="utf-8")
    (found, _) = refusals(store.load()[0], SHIPPED, verify(tmp_path))
    assert found.kind == "edited" and paths[0].name in found.words and "does not match its digest" in found.words
    assert kinds(store.load()[0], verify(tmp_path)) == ["edited", "seeds"]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"spec_budget": Budget(steps=4_000)}, "budget.steps must be 400; got 4000"),
        ({"spec_precision": "bf16"}, "precision must be fp32; got bf16"),
        ({"spec_task_options": {"size": 4}}, "task.size must be 8; got 4"),
        ({"protocol": "1.0"}, "the protocol must be 2.0 or 3.0; got 1.0"),
        ({"task": "never_run"}, "our results have no table of its task, only of digits"),
    ],
    ids=str,
)
def test_another_protocol_is_refused(changes, words):
    assert kinds(runs(**changes)) == ["protocol"]
    assert words in told(runs(**changes))


def test_all_broken_rules_are_told_at_once():
    other = {split: {"examples": 100, "digest": "0" * 40} for split in ("train", "valid", "test")}
    longer = Budget(steps=4_000)
    assert kinds(runs(spec_budget=longer)[:1]) == ["protocol", "seeds"]
    assert kinds(runs(data=other)[:1]) == ["data", "seeds"]
    assert kinds(runs(data=other, spec_budget=longer)[:1]) == ["data", "protocol", "seeds"]
    (_, seeds) = refusals(runs(protocol="3.0", spec_budget=longer)[:1], SHIPPED, CLEAN)
    assert "missing: 2, 3." in seeds.words


def test_missing_seeds_are_refused():
    assert kinds(runs()[:2]) == ["seeds"]
    assert "mine on digits: the row must have a finished run with each seed of our rows; missing: 3" in told(runs()[:2])
    out_of_time = make_record("mine", seed=3, status="timed_out", source="t.json")
    assert kinds([*runs()[:2], out_of_time]) == ["seeds"], "a run that a repetition could end is not finished"


@pytest.mark.parametrize("text", ["<script>alert(1)</script>", "a\nb", "\u202eenim", " ", "x" * 201])
def test_markup_in_names_is_refused(text):
    card = {"name": "mine", "title": text, "control": False}
    assert kinds(runs(attention_card=card)) == ["names"]
    assert kinds(runs(spec_options={"dial": text})) == ["names"]
    for name, paper in ((text, "none"), ("Jane Doe", text)):
        with pytest.raises(ValueError, match=r"names: the (name|paper) of a submission must"):
            Submission(name, paper, date(2026, 11, 28))


def test_runs_and_rows_of_ours_are_refused():
    assert kinds(SHIPPED[:3]) == ["known"]
    assert kinds([make_record("softmax", seed=4, source="s.json")]) == ["known"], "another seed of a row of ours"


@pytest.fixture
def community(tmp_path):
    """Folder with one submission."""
    folder = tmp_path / "2026-11-28-mine"
    folder.mkdir()
    Submission('Zoë "J" 😀', "Doe 2026, arXiv:2601.00001", date(2026, 11, 28)).write(folder)
    pack(runs(test=0.8), folder / NAME)
    return tmp_path


def test_a_submission_is_read_as_written(community):
    (found,) = submissions(community)
    assert found.about == Submission('Zoë "J" 😀', "Doe 2026, arXiv:2601.00001", date(2026, 11, 28))
    assert found.records == runs(test=0.8) and found.mark == "self-run"


@pytest.mark.parametrize(
    "text", ["name = 3", 'name = "a"\npaper = "b"', 'name = "<b>"\npaper = "b"\ndate = 2026-11-28', 'name = "a', ""]
)
def test_a_wrong_file_of_a_submission_is_refused(community, text):
    (community / "2026-11-28-mine" / "submission.toml").write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match="must"):
        submissions(community)


@pytest.mark.parametrize(("test", "mark"), [(0.8, "run again"), (0.81, "run again"), (0.83, "self-run")])
def test_a_row_is_self_run_until_a_sample_was_run_again(community, test, mark):
    (community / "again").mkdir()
    pack(runs(test=test)[:1], community / "again" / "2026-11-28-mine.jsonl.xz")
    (found,) = submissions(community)
    assert found.mark == mark
    text = community_text([found], SHIPPED)
    assert f"| {mark} |" in text and f'mine by Zoë "J" 😀 ({mark})' in text


def test_a_repetition_of_another_run_is_no_evidence():
    about = Submission("Jane Doe", "none", date(2026, 11, 28))
    again = [make_record("other", seed=1)]
    assert Submitted(None, about, runs(), again).mark == "self-run"  # type: ignore[arg-type]  # no folder is read


def test_a_seed_that_draws_data_of_its_own_lends_no_card_to_our_table():
    until = Budget(until="criterion", ceiling=1.0, schedule="constant", evaluate_every=50)

    def drawn(name: str, seed: int, **changes: Any) -> RunRecord:
        made = make_record(name, seed=seed, spec_budget=until, spec_task_options={"data_seed": seed}, **changes)
        return replace(made, source=f"{name}{seed}.json")

    ours = [drawn(name, seed) for name in ("softmax", "uniform") for seed in (1, 2, 3)]
    forged = {**ours[0].task_card, "title": "Forged", "higher_is_better": False}
    early = {**ours[0].environment, "started": "2020-01-01T00:00:00+00:00"}
    (table,) = beside([drawn("mine", 9, task_card=forged, chance=0.99, environment=early)], ours)
    assert table.task == ours[0].task_card and table.chance == ours[0].chance


def test_two_submissions_of_one_mechanism_by_one_person_keep_their_rows(community):
    second = community / "2026-12-01-mine"
    second.mkdir()
    (found,) = submissions(community)
    found.about.write(second)
    pack(runs(test=0.5), second / NAME)
    (table,) = community_tables(submissions(community), SHIPPED)
    scores = {
        row.attention.partition(" (")[2]: round(row.test.mean, 3) for row in table.rows if row.test and " by " in row.attention
    }
    assert scores == {"self-run, 2026-11-28-mine)": 0.8, "self-run, 2026-12-01-mine)": 0.5}


def test_our_tables_are_apart_and_lend_their_cards(community):
    forged = {"name": "digits", "title": "Digits", "version": "1", "metric": "accuracy", "length": 16, "higher_is_better": False}
    submitted = [replace(record, task_card=forged, chance=0.99) for record in runs(test=0.8)]
    (table,) = beside(submitted, SHIPPED)
    assert table.higher_is_better and table.chance == SHIPPED[0].chance
    before = Store(community / "ours").load()[0]
    (table,) = community_tables(submissions(community), SHIPPED)
    assert [row.attention for row in table.rows if " by " in row.attention] == ['mine by Zoë "J" 😀 (self-run)']
    assert before == [] and community_text([], SHIPPED) == "There is no submission yet."
