"""Our rows beside the literature: spread of its figures, and differing settings."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from make import make_record, stored

from attn_zoo.cli import main
from attn_zoo.leaderboard import tables
from attn_zoo.leaderboard.literature import facts, render_published
from attn_zoo.records import Budget, RunRecord


def listops(attention: str, seed: int, test: float, **options) -> RunRecord:
    card = {"title": "ListOps", "length": 256, "data": "generated"}
    return make_record(attention, "listops", seed, test=test, card=card, spec_options=options)


def rows(softmax: list[float], performer: list[float]) -> list[RunRecord]:
    records = [listops("softmax", seed, test) for seed, test in enumerate(softmax)]
    return records + [listops("performer", seed, test, features=64) for seed, test in enumerate(performer)]


def test_figures_stand_beside_ours_with_the_spread_of_the_sources():
    text = render_published(tables(rows([0.36, 0.37, 0.38], [0.18, 0.19, 0.21])), "github")
    (line,) = [line for line in text.splitlines() if line.startswith("| performer")]
    assert [cell.strip() for cell in line.split("|")[1:-1]] == [
        "performer",
        "19.3 ± 3.8 (3 seeds)",
        "18.01",
        "18.80",
        "19.56",
        "1.5",
    ]
    settings = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("|")]
    assert ["data", "generated", *["LRA ListOps"] * 3] in settings
    assert ["length", "256", "2,000", "2,000", "2,048"] in settings
    assert ["features of performer", "64", "2", "256", "256"] in settings
    assert text.count("brackets were stripped") == 1


@pytest.mark.parametrize("causal", [False, True])
def test_a_published_score_of_the_other_direction_says_so(causal):
    text = render_published(tables([make_record("softmax", "mqar", card={"causal": causal})]), "github")
    differs = re.search(r"\| +direction +\| +bidirectional +\| +causal +\| +causal +\|", text)
    assert "94.1" in text and bool(differs) != causal


def test_runs_until_a_criterion_or_a_time_have_the_steps_that_they_took():
    for budget in (Budget(steps=3200, until="criterion", ceiling=1.0, schedule="constant"), Budget(steps=3200, seconds=60.0)):
        made = [
            replace(make_record(seed=seed, spec_budget=budget), curve=({"step": step, "train_seconds": 1.0, "valid": 0.9},))
            for seed, step in ((1, 300), (2, 500), (3, 400))
        ]
        (table,) = tables(made)
        assert facts(table, table.rows[0])["steps"] == 400
    (table,) = tables([make_record(spec_budget=Budget(steps=3200))])
    assert facts(table, table.rows[0])["steps"] == 3200


def test_a_source_with_several_settings_shows_them_all():
    text = render_published(tables([make_record("linformer", "sst2", test=0.6)]), "github")
    assert re.search(r"\| +length +\| +\d+ +\| +512 and 1,024 +\|", text)


def test_every_format_tells_every_figure():
    made = tables(rows([0.36], [0.18]))
    assert "18.01" in render_published(made)
    with pytest.raises(ValueError, match="must be 'terminal' or 'github'; got 'csv'"):
        render_published(made, "csv")


def test_only_the_rows_of_one_attention_are_shown():
    made = tables(rows([0.36, 0.37, 0.38], [0.18, 0.19, 0.21]))
    text = render_published(made, attention="performer")
    assert "18.01" in text and "36.37" not in text


def test_a_task_nobody_published_is_said():
    assert "No published scores are known for these tables" in render_published(tables([make_record()]))
    assert "pixels" in render_published([])


def test_the_leaderboard_shows_it_on_request(tmp_path, capsys):
    stored(tmp_path, rows([0.36, 0.37, 0.38], [0.18, 0.19, 0.21]))
    words = ["leaderboard", "--published", "--records", str(tmp_path)]
    assert main([*words, "--attention", "performer"]) == 0
    assert "ListOps: ours beside the literature" in capsys.readouterr().out
    (tmp_path / "empty").mkdir()
    assert main(["leaderboard", "--published", "--records", str(tmp_path / "empty")]) == 0
    assert "no records in" in capsys.readouterr().out
