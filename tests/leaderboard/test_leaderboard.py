"""Tables say what the records hold: who may stand together, how sure a mean is, what failed and why."""

from __future__ import annotations

from dataclasses import replace

import pytest
from make import PERPLEXITY, make_record, records_of

from attn_zoo.leaderboard import estimate, leaderboard, render, tables
from attn_zoo.leaderboard.show import describe
from attn_zoo.leaderboard.table import titles
from attn_zoo.records import Budget, ModelSpec, Store


def test_one_seed_has_no_interval_and_none_no_mean():
    assert estimate([]) is None
    found = estimate([0.5])
    assert found is not None
    assert (found.mean, found.half_width, found.count) == (0.5, None, 1)
    three = estimate([0.1, 0.2, 0.3])
    assert three is not None
    assert three.half_width == pytest.approx(4.302653 * 0.1 / 3**0.5, rel=1e-6)


def test_rows_aggregate_seeds_and_show_failures_with_their_reason():
    records = [make_record(seed=s, test=t) for s, t in ((1, 0.8), (2, 0.9), (3, 1.0))]
    records += [make_record("linformer", seed=1, test=0.7), make_record("linformer", seed=2, status="diverged")]
    (table,) = tables(records)
    softmax, linformer = table.rows
    assert softmax.test is not None
    assert softmax.test.mean == pytest.approx(0.9)
    assert softmax.seeds == (1, 2, 3)
    assert linformer.test is not None
    assert linformer.test.count == 1
    assert [str(failure) for failure in linformer.failures] == ["diverged with seed 2: because of diverged"]
    text = render([table], "terminal")
    assert "90.0 (65.2 to 100.0)" in text
    assert "1 of 2" in text
    assert "because of diverged" in text
    assert "rows were run with different seeds" in text


@pytest.mark.parametrize(
    "other",
    [
        make_record(spec_budget=Budget(steps=7)),
        make_record(spec_precision="bf16"),
        make_record(spec_device="cuda"),
        make_record(spec_task_options={"size": 9}),
        make_record(protocol="1.0"),
        make_record(card={"version": "2"}),
    ],
)
def test_what_is_not_comparable_never_shares_a_table(other):
    assert len(tables([make_record(), other])) == 2


def test_a_run_done_again_counts_once_and_the_newest_done_counts():
    old = make_record(test=0.5, environment={"started": "2026-01-01"})
    new = make_record(test=0.6, environment={"started": "2026-01-02"})
    failed = make_record(status="failed", environment={"started": "2026-01-03"})
    for order in ([old, new, failed], [failed, new, old]):
        ((row,),) = [table.rows for table in tables(order)]
        assert row.test is not None
        assert (row.test.mean, row.test.count, row.failures) == (0.6, 1, ())


def test_labels_show_only_options_that_differ():
    records = [make_record("linformer", spec_options={"k": k, "fixed": 3}) for k in (8, 16)]
    records.append(make_record(spec_implementation="sdpa"))
    (table,) = tables(records)
    assert {row.label for row in table.rows} == {"linformer k=8", "linformer k=16", "softmax (sdpa)"}


def test_heads_are_a_setting_of_rows_where_those_of_a_table_differ():
    four, two = ModelSpec(), ModelSpec(heads=2)
    same = [make_record(name, spec_model=two) for name in ("softmax", "linear")]
    assert [row.label for row in tables(same)[0].rows] == ["linear", "softmax"] and tables(same)[0].model["heads"] == 2
    elsewhere = make_record("performer", "mqar", spec_model=two)
    found = tables([*same, make_record("linear", spec_model=four), make_record("linear", "mqar", spec_model=two), elsewhere])
    assert {table.task["name"]: ({row.label for row in table.rows}, table.model["heads"]) for table in found} == {
        "digits": ({"softmax", "linear heads=2", "linear heads=4"}, 2),
        "mqar": ({"linear heads=2", "performer"}, 2),
    }
    assert {row.heads for row in found[0].rows} == {None, 2, 4} and {row.heads for row in found[1].rows} == {None}
    assert len(tables([*same, make_record(spec_model=ModelSpec(dim=32))])) == 2


def test_controls_stand_last_and_the_margin_is_over_the_best_of_them():
    (table,) = tables(records_of({"none": (0.1,), "uniform": (0.95,), "softmax": (0.9,), "linformer": (0.7,)}))
    assert [row.label for row in table.rows] == ["softmax", "linformer", "uniform", "none"]
    assert table.best_control == 0.95
    text = render([table], "terminal")
    assert "-5.0" in text
    assert "uniform (c)" in text


def test_missing_cells_stay_empty_and_there_is_no_average():
    records = [make_record(task="digits"), make_record(task="listops"), make_record("linformer", task="digits")]
    text = render(tables(records), "terminal")
    overview = text.split("\n\n")[0]
    (line,) = [line for line in overview.splitlines() if line.startswith("linformer")]
    assert line.split() == ["linformer", "90.0*", "·"]
    assert "mean" not in overview


def test_tables_of_latex_and_formats_that_there_are_not():
    made = tables([make_record()])
    assert r"\begin{tabular}" in render(made, "latex")
    with pytest.raises(ValueError, match="format must be 'terminal' or 'github'"):
        render(made, "pdf")


def test_filters_and_empty_folders(tmp_path):
    assert "attn-zoo run makes one" in leaderboard(tmp_path / "nowhere")
    Store(tmp_path).add(make_record())
    Store(tmp_path).add(make_record("linformer", task="listops"))
    assert "linformer" not in leaderboard(tmp_path, task="digits")
    assert "softmax" not in leaderboard(tmp_path, attention="linformer")
    none = leaderboard(tmp_path, task="nope")
    assert "task 'nope'" in none and none.endswith(". Recorded: linformer on listops, softmax on digits")
    (tmp_path / "cut.json").write_text("{", encoding="utf-8")
    assert "cut.json" in leaderboard(tmp_path)


def test_a_metric_of_which_less_is_better_is_ranked_and_shown_as_it_is():
    scores = {"softmax": (31.5,), "linformer": (28.25,), "none": (400.0,), "uniform": (350.0,)}
    records = records_of(scores, chance=900.0, card={**PERPLEXITY, "data": "Some Novels"})
    (table,) = tables(records)
    assert [row.label for row in table.rows] == ["linformer", "softmax", "uniform", "none"]
    assert table.best_control == 350.0
    text = render([table], "github")
    assert "28.25" in text and "-321.75" in text and "chance 900.00" in text and "Some Novels" in text
    assert "perplexity |" in text and "perplexity (%)" not in text


def test_parts_of_the_test_stand_in_a_table_of_their_own():
    records = [
        make_record(seed=seed, scores={"test": 0.5, "valid": 0.5, "train": 0.5, "test: depth 0": low, "test: depth 1": 0.75})
        for seed, low in ((1, 0.1), (2, 0.2))
    ]
    (table,) = tables(records)
    assert {name: part.mean for name, part in table.rows[0].parts.items()} == pytest.approx({"depth 0": 0.15, "depth 1": 0.75})
    text = render([table], "github")
    assert "by part of the test" in text and "depth 0 |" in text and "75.0 ± 0.0" in text
    assert "by part of the test" not in render(tables([make_record()]), "github")


def test_many_tasks_have_only_their_overview_in_the_terminal_unless_more_is_asked_for():
    """A note says how to see the tables of the tasks. The tables of a task in two directions have names of their own."""
    five = tables([make_record(task=name) for name in ("digits", "listops", "mqar", "needle", "copying")])
    text = render(five, "terminal")
    assert "5 tasks. Add --task NAME" in text and "verdict " not in text
    assert "5 tasks" not in render(five[:4], "terminal") and render(five[:4], "terminal").count("Digits: 16 positions") == 1
    assert render(five, "github").count(": 16 positions, chance") == 5

    both = tables([make_record(task="mqar"), make_record(task="mqar", card={"causal": True}, spec_task_options={})])
    assert {"Mqar: 16", "Mqar (causal): 16"} <= {line.split(" positions")[0] for line in render(both, "terminal").splitlines()}


def test_titles_name_the_settings_in_which_tables_of_a_task_differ():
    """Shorter inputs come first. Settings that are equal in all tables are not named."""
    made = [make_record(card={"length": n}, spec_task_options={"length": n}) for n in (16_384, 256, 1_024)]
    assert titles(tables(made)) == [f"Digits ({length} positions)" for length in ("256", "1,024", "16,384")]
    narrow, wide = titles(tables([make_record(), make_record(spec_model=ModelSpec(dim=2 * ModelSpec().dim))]))
    assert {narrow, wide} == {f"Digits (width {dim}, depth {ModelSpec().depth})" for dim in (ModelSpec().dim, 2 * ModelSpec().dim)}


def test_parts_of_a_test_stand_in_the_order_of_their_numbers():
    parts = {f"test: {count} pairs": 0.5 for count in (16, 4, 64, 8)}
    made = make_record("delta_rule", scores={"test": 0.5, "valid": 0.5, "train": 0.5, **parts})
    head = render(tables([made]), "terminal").partition("by part of the test\n\n")[2].splitlines()[0]
    assert head.split() == ["attention", "4", "pairs", "8", "pairs", "16", "pairs", "64", "pairs"]


def test_runs_on_other_data_stand_in_a_table_of_their_own():
    """A task's name, version and options say which data are meant; the digests say which were read."""
    changed = {split: {"examples": 100, "digest": f"other{split}"} for split in ("train", "valid", "test")}
    records = [make_record(), make_record("linformer"), make_record("performer", data=changed)]
    records.append(make_record("reformer", status="failed", data={}))
    first, second = tables(records)
    assert {row.attention for row in first.rows} == {"softmax", "linformer", "reformer"}
    assert {row.attention for row in second.rows} == {"performer"}


def test_an_earlier_version_of_an_attention_has_a_table_of_its_own():
    earlier = [make_record("linear", seed=seed, test=0.2) for seed in (1, 2)]
    later = [
        make_record(name, seed=seed, spec_attention_version=v) for name, v in (("linear", 2), ("softmax", 1)) for seed in (1, 2)
    ]
    newest, oldest = tables([*earlier, *later])
    assert {(row.attention, row.card["version"]) for row in newest.rows} == {("linear", 2), ("softmax", 1)}
    assert [(row.attention, row.card["version"], row.by_seed) for row in oldest.rows] == [("linear", 1, {1: 0.2, 2: 0.2})]
    (alone,) = tables([*earlier, later[-1]])
    assert {row.attention for row in alone.rows} == {"linear", "softmax"}


def test_seeds_that_draw_their_own_data_share_a_table_and_never_with_a_fixed_budget():
    until = Budget(schedule="constant", until="criterion", ceiling=1.0)
    own = [
        make_record(seed=seed, spec_budget=until, spec_task_options={"size": 8, "data_seed": seed}, data=drawn(f"{seed}"))
        for seed in (1, 2, 3)
    ]
    fixed = make_record(spec_task_options={"size": 8, "data_seed": 1}, data=drawn("1"))
    (first, second) = sorted(tables([*own, fixed]), key=lambda table: table.protocol)
    assert (first.protocol, second.protocol) == ("2.0", "3.0")
    assert [row.test.count for row in second.rows if row.test] == [3]
    assert dict(second.task_options) == {"size": 8}
    other = replace(own[0], data={split: {**part, "examples": 50} for split, part in drawn("1").items()})
    assert len(tables([*own[1:], other])) == 2, "other numbers of examples"
    assert "test split of 100 examples, digest 1" in render([first], "latex")
    assert "test split of 100 examples, drawn anew by each seed" in render([second], "latex")
    assert "test of 100 examples, drawn anew by each seed" in " ".join(describe(second, second.rows[0]).split())
    assert dict(second.data["test"]) == {"examples": 100, "digest": None}, "no digest is that of all seeds"


def test_the_steps_of_runs_until_a_criterion_are_the_most_that_they_may_take():
    until = Budget(schedule="constant", until="criterion", ceiling=1.0, steps=1200)
    assert "; at most 1,200 steps of 64 examples at a constant" in render(tables([make_record(spec_budget=until)]), "github")
    assert "; 400 steps of 64 examples; " in render(tables([make_record()]), "github")


def drawn(digest: str) -> dict[str, dict[str, object]]:
    return {split: {"examples": 100, "digest": digest} for split in ("train", "valid", "test")}


def test_convolved_networks_stand_in_a_table_of_their_own_that_says_so():
    models = [ModelSpec(), ModelSpec(short_convolution=4), ModelSpec(shared_weights=True, reuse_keys=True, short_convolution=3)]
    models += [ModelSpec(output_gate="headwise"), ModelSpec(key_value_heads=2), ModelSpec(latent_dim=9)]
    made = tables([make_record(seed=seed, spec_model=model) for model in models for seed in (1, 2)])
    said = [line for line in render(made, "github").splitlines() if "; network dim=" in line]
    assert len(made) == len(said) == 6
    assert sum("heads=4, keys and values from latents of width 9; " in line for line in said) == 1
    assert sum("heads=4, 2 heads of keys and values; " in line for line in said) == 1
    assert sum("heads=4, an output gate (headwise) after every attention; " in line for line in said) == 1
    assert sum("heads=4; " in line for line in said) == 1
    assert sum("heads=4, a short convolution (4) before every attention; " in line for line in said) == 1
    shared = "one block for all layers, with keys and values computed once, a short convolution (3)"
    assert sum(shared in line for line in said) == 1
