"""``experiment=linformer_figure3`` and its form for two cores: cells that Figure 3 compares, under equal budgets."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from functools import cache
from pathlib import Path

import linformer_figure3
import pytest
from committed import records_in
from figure3.cells import USUAL_START

from attn_zoo.analysis.text import default_text
from attn_zoo.attention.low_rank._projections import Sharing
from attn_zoo.cli.compose import plan
from attn_zoo.cli.main import main
from attn_zoo.cli.tune import plan_searches, read_request
from attn_zoo.contract import UnknownNameError
from attn_zoo.grouping import grouped
from attn_zoo.records import RunSpec


@cache
def planned(*words: str) -> tuple[RunSpec, ...]:
    return plan(["-m", *words]).specs


def cells(name: str) -> list[RunSpec]:
    """Runs of one seed with the short convolution."""
    return [spec for spec in planned(f"experiment={name}", "seed=1") if spec.model.short_convolution == 4]


def length_of(spec: RunSpec) -> int:
    return int(spec.task_options["length"])


def start_of(spec: RunSpec) -> tuple[object, ...]:
    """How E and F start and learn; empty for other mechanisms."""
    return tuple(spec.options.get(name) for name in ("init", "equalised")) if spec.attention == "linformer" else ()


@pytest.mark.parametrize("name", ["linformer_figure3", "linformer_figure3_cpu"])
def test_cells_of_the_figure_under_one_budget(name):
    specs = cells(name)
    assert len({str(spec.to_dict()) for spec in specs}) == len(specs) <= 26
    assert len({spec.budget.batch_size * length_of(spec) for spec in specs}) == 1, "as many tokens a step at every length"
    assert len({(spec.budget.steps, spec.budget.warmup_steps, str(spec.model)) for spec in specs}) == 1
    ((start, _),) = Counter(map(start_of, specs)).most_common(1)
    by_length, by_setting, by_k = (defaultdict(set) for _ in range(3))
    for spec in specs:
        if spec.attention != "linformer" or start_of(spec) != start:
            continue
        n, k, sharing = length_of(spec), spec.options["projected_length"], Sharing(spec.options["sharing"]).value
        by_setting[n, k].add(sharing)
        if sharing == "headwise":
            by_length[n].add(n // k)
            by_k[k].add(n)
    assert sum(of == {2, 4, 8, 16} for of in by_length.values()) >= 2, "a and b"
    assert [of for of in by_setting.values() if len(of) > 1] == [{sharing.value for sharing in Sharing}], "c"
    assert max(map(len, by_k.values())) == 4, "d"
    softmax = {length_of(spec) for spec in specs if spec.attention == "softmax"}
    assert softmax >= {n for n, of in by_length.items() if len(of) == 4}


@pytest.mark.parametrize(
    ("name", "lengths", "longer"),
    [("linformer_figure3", (512, 1024), (2048, 4096)), ("linformer_figure3_cpu", (128, 256, 512), (1024,))],
)
def test_controls_stand_beside_softmax_and_none_at_longer_lengths(name, lengths, longer):
    rows = {(spec.attention, length_of(spec)) for spec in cells(name)}
    assert {(row, n) for row in ("softmax", "none", "convolution") for n in lengths} | {("none", n) for n in longer} <= rows


def test_three_seeds_are_done_of_each_cell_and_both_arms_at_256_tokens():
    specs = planned("experiment=linformer_figure3_cpu")
    assert {spec.seed for spec in specs} == {1, 2, 3} and len(specs) % 3 == 0
    arms: defaultdict[int, Counter[int]] = defaultdict(Counter)
    for spec in specs:
        arms[length_of(spec)][spec.model.short_convolution] += 1
    assert arms[256][4] >= 3 * 10 and arms[256][0] >= 3 * 9, "panel c is with the convolution alone"
    assert all(set(arms[n]) == {4} for n in (128, 512, 1024))


def test_what_is_typed_replaces_the_words_of_every_sweep():
    typed = ("seed=5", "model.short_convolution=4", "attention=none", "task.length=64", "budget.learning_rate=0.001")
    specs = planned("experiment=linformer_figure3_cpu", *typed)
    assert {(spec.attention, spec.seed, spec.task_options["length"]) for spec in specs} == {("none", 5, 64)}
    assert sorted(spec.budget.batch_size for spec in specs) == [2, 4, 8, 16], "equal runs are planned once"


def test_rates_are_chosen_by_trials_of_the_same_setting_at_half_of_the_steps():
    searches = plan_searches(read_request(["experiment=linformer_figure3_rates", "model.short_convolution=4"]))
    assert [search.specs[0].attention for search in searches] == ["softmax", "linformer", "none", "convolution"]
    base = searches[0].specs[0]
    assert searches[0].study is not None and set(searches[0].study.space) == {"budget.learning_rate"}
    like = next(
        spec for spec in cells("linformer_figure3_cpu") if spec.attention == "softmax" and spec.task_options["length"] == 128
    )
    assert (base.task_options, base.model, 2 * base.budget.steps) == (like.task_options, like.model, like.budget.steps)


def searched(spec: RunSpec) -> tuple[object, ...]:
    """Setting for which a learning rate is chosen."""
    start = {name: spec.options.get(name, usual) for name, usual in USUAL_START.items()} if spec.attention == "linformer" else {}
    values = tuple(getattr(value, "value", value) for value in start.values())
    return spec.attention, spec.model.short_convolution, length_of(spec), *values


def test_rates_of_attention_are_those_that_the_committed_trials_chose():
    best: dict[object, float] = {}
    for record in sorted(records_in("linformer_figure3_rates"), key=lambda record: record.scores["valid"]):
        if record.is_trial and record.spec.task_options["files"] == "python":
            best.setdefault(searched(record.spec), record.spec.budget.learning_rate)
    rates = {searched(spec): spec.budget.learning_rate for spec in planned("experiment=linformer_figure3_cpu")}
    found = {setting: rate for setting, rate in rates.items() if setting in best and setting[0] in ("softmax", "linformer")}
    assert found == {setting: best[setting] for setting in found} and len(found) == 10


def test_a_sweep_of_an_experiment_names_settings_of_a_run():
    with pytest.raises(UnknownNameError, match="no setting of a run is called 'attentin'; did you mean 'attention'"):
        plan(["-m", "experiment=linformer_figure3_cpu", "sweeps=['attentin=none']"])


@pytest.mark.exhaustive
def test_the_whole_figure_in_a_small_form_goes_on_and_is_reported(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ATTN_ZOO_CACHE", str(tmp_path / "cache"))
    (tmp_path / "texts").mkdir()
    text = default_text()[0]
    for at in range(4):
        (tmp_path / f"texts/{at}.txt").write_text(text[8_000 * at : 8_000 * (at + 1)])
    small = ["task.files=folder", "task.path=texts", "task.tokens=bytes", "task.vocabulary=0", "budget.steps=2"]
    small += ["budget.evaluate_every=1", "model.dim=16", "model.heads=2", "task.train=64", "seed=1"]
    small += ["task.valid_tokens=2048", "task.test_tokens=2048"]
    command = ["run", "-m", "experiment=linformer_figure3_cpu", *small, "report=false"]
    assert main(command) == 0
    assert "34 runs, 0 of them recorded already" in capsys.readouterr().out
    assert main(command) == 0
    assert "34 runs, 34 of them recorded already" in capsys.readouterr().out
    assert linformer_figure3.main(["--output", "out"]) == 0
    assert {path.name for path in Path("out").iterdir()} == {"figure3.md", "figure3.json", "figure3.png", "figure3.svg"}
    found = json.loads(Path("out/figure3.json").read_text(encoding="utf-8"))
    words = {arm: [claim["verdict"] for claim in claims] for arm, claims in grouped((c["arm"], c) for c in found["claims"]).items()}
    assert words == {
        "bare": ["cannot tell"] * 2 + ["not run"] * 4,
        "bare, init=pooling, equalised": ["cannot tell"] * 2 + ["not run"] * 4,
        "short convolution of 4": ["cannot tell"] * 2 + ["not run"] * 4,
        "short convolution of 4, init=pooling, equalised": ["cannot tell"] * 5 + ["holds"],
    }, "one seed judges counted FLOPs alone, and the usual start has two cells"
    cells = found["cells"]
    recorded = {json.loads(path.read_text(encoding="utf-8"))["run_id"] for path in Path("linformer_figure3").glob("*.json")}
    assert {cell["run_ids"]["1"] for cell in cells} == recorded and len(cells) == 34
