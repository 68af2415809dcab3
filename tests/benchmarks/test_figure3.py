"""Figure 3 of the Linformer paper from records: cells, verdicts on its claims, page and picture."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import linformer_figure3
import pytest
from figure3 import figure3_data, figure3_page, read_figure
from figure3.cells import USUAL_START, Arm
from figure3.claims import CLAIMS, FAILS, HOLDS, NOT_RUN, UNSURE
from figure3.plot import panels, plot_figure3
from make import PERPLEXITY, make_record

from attn_zoo.analysis.text import default_text
from attn_zoo.cli.main import main
from attn_zoo.grouping import grouped
from attn_zoo.records import Budget, ModelSpec, RunRecord, Tuning
from attn_zoo.registry import card

LARGER_K, ON_PAR, LAYERWISE, SMALLER, LENGTH, LINEAR = range(6)
NOISE = (0.0, 0.004, -0.003)
"""Logarithm of what each seed does to a perplexity."""


def scores(perplexity: float) -> dict[str, float]:
    return {"valid": perplexity, "test": perplexity, "test: repeated": 5 * perplexity, "test: rest": 0.9 * perplexity}


def run(
    attention: str,
    length: int,
    perplexity: float,
    *,
    k: int = 0,
    sharing: str = "headwise",
    arm: int = 0,
    seed: int = 1,
    start: Mapping[str, Any] | None = None,
    **spec,
) -> RunRecord:
    options = {"projected_length": k, "sharing": sharing, **(start or {})} if k else {}
    matrices = {"none": 8, "headwise": 2, "key_value": 1, "layerwise": 1}[sharing] if k else 0
    own = {"learning_rate": 0.003 if k else 0.002, **spec.pop("budget", {})}
    return make_record(
        attention,
        "masked_language",
        seed,
        scores=scores(perplexity),
        card=PERPLEXITY,
        counted={"attention_parameters": 1000 + matrices * k * length, "mechanism_flops": 64 * (k or length) * length},
        curve=tuple(
            {"step": at, "train_seconds": 1.0, "train_loss": 1.0, "valid": perplexity * 600 / at} for at in (200, 400, 600)
        ),
        spec_options=options,
        spec_task_options={"length": length, "tokens": "bpe"},
        spec_model=ModelSpec(short_convolution=arm),
        spec_budget=Budget(batch_size=2048 // length, **own),
        **spec,
    )


def seeded(attention: str, length: int, perplexity: float, seeds: int = 3, **more) -> Iterator[RunRecord]:
    for seed, noise in zip(range(1, seeds + 1), NOISE, strict=False):
        yield run(attention, length, perplexity * math.exp(noise * (1 + 0.1 * more.get("k", 0) / length)), seed=seed, **more)


def published(arm: int = 0, seeds: int = 3) -> list[RunRecord]:
    """Records on which every claim of the paper holds."""
    found: list[RunRecord] = []
    for n in (256, 512):
        found += seeded("softmax", n, 100, seeds, arm=arm)
        for ratio, perplexity in ((16, 130), (8, 104), (4, 103), (2, 101)):
            found += seeded("linformer", n, perplexity, seeds, k=n // ratio, arm=arm)
    for sharing in ("none", "key_value", "layerwise"):
        found += seeded("linformer", 512, 102.5, seeds, k=128, sharing=sharing, arm=arm)
    for n in (128, 1024):
        found += seeded("linformer", n, 104, seeds, k=64, arm=arm)
    for n in (128, 256, 512, 1024):
        found += [*seeded("none", n, 200, seeds, arm=arm), *seeded("convolution", n, 190, seeds, arm=arm)]
    return found


def words(records: Sequence[RunRecord], arm: int = 0, start: str = "") -> list[str]:
    figure = read_figure(records)
    return [claim.judge(figure, Arm(arm, start)).word for claim in CLAIMS]


def changed(records: Sequence[RunRecord], perplexity: float, **cell) -> list[RunRecord]:
    """The records with another perplexity of the cells that match."""

    def matches(record: RunRecord) -> bool:
        spec = record.spec
        known = {"n": spec.task_options["length"], "attention": spec.attention, **spec.options}
        return all(known.get(name) == value for name, value in cell.items())

    assert any(map(matches, records))
    return [
        replace(record, scores=scores(perplexity * math.exp(NOISE[record.spec.seed - 1]))) if matches(record) else record
        for record in records
    ]


def test_without_records_nothing_is_said():
    assert words([]) == [NOT_RUN] * len(CLAIMS)
    page = figure3_page(read_figure([]), "github")
    assert page.count(NOT_RUN) == len(CLAIMS) and "%" not in page
    with pytest.raises(ValueError, match="nothing to draw"):
        plot_figure3(read_figure([]))


def test_every_claim_holds_on_figures_like_the_papers():
    assert words(published()) == [HOLDS] * len(CLAIMS)
    assert words(published(), arm=4) == [NOT_RUN] * len(CLAIMS), "the other arm has no runs"


def test_two_seeds_judge_nothing_that_varies():
    assert words(published(seeds=2)) == [UNSURE] * 5 + [HOLDS], "FLOPs are counted"
    assert "only 2 of 3 common seeds" in figure3_page(read_figure(published(seeds=2)), "github")


@pytest.mark.parametrize(
    ("claim", "cell", "perplexity", "word"),
    [
        (LARGER_K, {"n": 512, "projected_length": 256, "attention": "linformer"}, 140, FAILS),
        (LARGER_K, {"n": 256, "projected_length": 32, "attention": "linformer"}, 150, FAILS),
        (ON_PAR, {"n": 512, "projected_length": 128, "sharing": "headwise"}, 120, FAILS),
        (ON_PAR, {"n": 512, "projected_length": 128, "sharing": "headwise"}, 105, UNSURE),
        (ON_PAR, {"n": 512, "projected_length": 128, "sharing": "headwise"}, 80, FAILS),
        (LAYERWISE, {"sharing": "layerwise"}, 120, FAILS),
        (SMALLER, {"sharing": "layerwise"}, 120, FAILS),
        (LENGTH, {"n": 1024, "attention": "linformer"}, 125, FAILS),
        (LENGTH, {"n": 1024, "attention": "linformer"}, 109.2, UNSURE),
    ],
)
def test_a_claim_fails_or_cannot_be_told_by_the_interval_of_its_difference(claim, cell, perplexity, word):
    found = words(changed(published(), perplexity, **cell))
    assert found[claim] == word and found[LINEAR] == HOLDS


def test_nothing_is_on_par_with_a_softmax_that_a_control_reaches():
    records = changed(published(), 100.5, attention="none", n=256)
    assert words(records)[ON_PAR] == UNSURE and words(records)[LARGER_K] == HOLDS
    assert "on repeated tokens: softmax is not better than the control none, with a difference of " in figure3_page(
        read_figure(records), "github"
    )


def test_nothing_is_said_of_a_length_without_its_controls():
    records = [record for record in published() if (record.spec.attention, record.spec.task_options["length"]) != ("none", 1024)]
    assert words(records)[LENGTH] == UNSURE
    assert "n = 1024: the control none was not run" in figure3_page(read_figure(records), "github")


def test_a_control_is_judged_by_tokens_that_distant_places_alone_show():
    records = changed(published(), 80, attention="none", n=512)
    records = [
        replace(record, scores={**record.scores, "test: repeated": 900}) if record.scores["test"] < 85 else record
        for record in records
    ]
    assert words(records) == [HOLDS] * len(CLAIMS), "the control is better on the whole, and worse where distance counts"
    page = re.sub(" +", " ", figure3_page(read_figure(records), "github"))
    assert "| default initialisation (repeated) |" in page and re.search(
        r"\| 512 \| none \| 80\.0 ± \S+ \(3\) \| 900\.0 ± 0\.0 \(3\) \|", page
    )


def test_linear_time_is_judged_by_counted_flops():
    records = [
        replace(
            record,
            counted={**record.counted, "mechanism_flops": record.counted["mechanism_flops"] * record.spec.task_options["length"]},
        )
        for record in published()
    ]
    assert words(records)[LINEAR] == FAILS


def test_trials_failures_and_other_tasks_are_no_cells():
    trial = run("softmax", 256, 1.0, seed=0)
    study = Tuning("study", {"budget.learning_rate": "choice(0.001,0.002)"}, trial=0)
    others = [
        replace(trial, tuning=study, scores={"valid": 1.0}),
        replace(trial, status="diverged", reason="loss", scores={}),
        make_record("softmax", "listops", 1),
    ]
    assert read_figure([*published(), *others]) == read_figure(published())


@pytest.mark.parametrize(
    "odd", [run("softmax", 128, 100, budget={"steps": 7}), run("softmax", 256, 100, budget={"learning_rate": 0.01})]
)
def test_other_budgets_and_a_second_rate_of_a_cell_are_refused(odd):
    with pytest.raises(ValueError, match=r"got 2 different settings. Keep each experiment in a folder of its own"):
        read_figure([*published(), odd])


def test_the_page_shows_what_the_records_hold():
    page = re.sub(" +", " ", figure3_page(read_figure([*published(), *published(arm=4)]), "github"))
    assert page.count(f"| {HOLDS} ") == 2 * len(CLAIMS) and page.count(NOT_RUN) == 0
    assert page.count("| 512 | linformer, k = 128, sharing=layerwise | 102.5 ± ") == 2
    assert page.index("Bare:") < page.index("Short convolution of 4:")
    rows = [
        line
        for line in page.split("Short convolution of 4:")[0].splitlines()
        if line.startswith(("| 512 | softmax", "| 512 | linf"))
    ]
    assert {line.split("|")[2].split(",")[0].strip(): line.split("|")[-2].strip() for line in rows} == {
        "linformer": "0.003",
        "softmax": "0.002",
    }, "each row has its learning rate"
    assert "n = 512, k = 128 against softmax: +3.0 %" in page
    bare = page[: page.index("Short convolution of 4:")]
    order = [line.split("|")[2].strip() for line in bare.splitlines() if line.startswith("| 256 |")]
    assert order == ["softmax", "convolution", "none", *(f"linformer, k = {k}, sharing=headwise" for k in (16, 32, 64, 128))]


def test_the_usual_start_is_the_default_of_linformer():
    usual = card("linformer").options(projected_length=4)
    assert {name: getattr(getattr(usual, name), "value", getattr(usual, name)) for name in USUAL_START} == USUAL_START


def test_another_start_of_the_projections_is_an_arm_beside_the_same_softmax(tmp_path):
    how, name = {"init": "pooling", "equalised": True}, "init=pooling, equalised"
    started = [*seeded("linformer", 256, 102, k=64, start=how), *seeded("linformer", 256, 110, k=128, start=how)]
    records = [*published(), *started]
    assert words(records) == [HOLDS] * len(CLAIMS), "the default initialisation is judged by itself"
    assert words(records, start=name) == [FAILS, HOLDS, NOT_RUN, NOT_RUN, NOT_RUN, NOT_RUN]
    figure = read_figure(records)
    assert figure.arms == [Arm(), Arm(0, name)]
    a, *_ = panels(figure, Arm(0, name))
    assert [name for _, name in a[1]] == ["softmax", "k = 64", "k = 128", "none", "convolution"]
    page = re.sub(" +", " ", figure3_page(figure, "github"))
    softmax = next(line for line in page.splitlines() if line.startswith("| 256 | softmax"))
    assert softmax.count("100.0 ± ") == 2 and "| 256 | linformer, k = 16, sharing=headwise | 1" in page
    starts = ("default initialisation", name)
    assert " | ".join(f"{start}{part}" for start in starts for part in ("", " (repeated)", " (rate)")) in page
    svg = plot_figure3(figure, tmp_path / "figure.svg")[0].read_text(encoding="utf-8")
    drawn = re.findall(r"<!-- \((.)\)", svg)
    assert drawn == ["a", "b", "c", "d", "a"], "panels without runs are not drawn"


def test_the_data_name_the_records_behind_each_cell():
    records = published()
    found = figure3_data(read_figure(records))
    assert {record.run_id for record in records} == {run for cell in found["cells"] for run in cell["run_ids"].values()}
    assert [claim["verdict"] for claim in found["claims"]] == [HOLDS] * len(CLAIMS)


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
