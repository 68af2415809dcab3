"""Tables of ``docs/reports/linformer.md`` that no command prints."""

from __future__ import annotations

import tomllib
from fractions import Fraction
from statistics import fmean
from typing import Any

from committed import ROOT, measured, records_in
from figure3 import Figure, figure3_page, read_figure
from figure3.cells import cell_of
from tabulate import tabulate

from attn_zoo.grouping import grouped
from attn_zoo.leaderboard import tables as leaderboard_tables
from attn_zoo.leaderboard.statistics import estimate, paired
from attn_zoo.published import SCORE, figures
from attn_zoo.registry import task_card
from attn_zoo.transplant.table import rows_of

FIGURE3 = ROOT / "results" / "linformer_figure3.svg"
"""Picture above the table ``figure3``; exists if its runs are recorded."""


def figure3() -> Figure:
    """Cells of the committed records of ``experiment=linformer_figure3_cpu``."""
    return read_figure(records_in("linformer_figure3"))


def has_panels(figure: Figure) -> bool:
    """Return True if some panel of the figure has cells to compare; without any the picture is empty."""
    return any(panel(arm) for arm in figure.arms for panel in (figure.by_length, figure.by_sharing, figure.by_fixed_k))


def figure3_of_the_paper() -> str:
    """Figure 3 of the Linformer paper: picture, if there is one, verdicts and perplexities."""
    shown = "![Validation perplexity over steps, by projected length, sharing and length, bare and with the short convolution]"
    picture = f"{shown}(../../results/{FIGURE3.name})\n\n" if has_panels(figure3()) else ""
    return picture + figure3_page(figure3(), "github")


def searched_rates() -> str:
    """Validation perplexity of the trials on Python code, by learning rate."""
    trials = [r for r in records_in("linformer_figure3_rates") if r.is_trial and r.spec.task_options["files"] == "python"]
    found = grouped((cell_of(trial), (trial.spec.budget.learning_rate, trial.scores["valid"])) for trial in trials)
    rates = sorted({rate for scores in found.values() for rate, _ in scores})
    rows = []
    for cell in sorted(found, key=lambda cell: (cell.arm.convolution, cell.length, cell.k, cell.attention, cell.arm)):
        label, scores = ", ".join(filter(None, (cell.label, cell.arm.start))), dict(found[cell])
        rows.append([cell.arm.layer, cell.length, label, *(f"{scores[rate]:.0f}" if rate in scores else "" for rate in rates)])
    return tabulate(rows, ["layer", "n", "row", *(f"{rate:g}" for rate in rates)], tablefmt="github", disable_numparse=True)


def k_or_share() -> str:
    """Accuracy of Linformer minus that of softmax at the same seed, on the tasks and at the lengths of both measurements."""
    made, tasks = [], ("imdb", "sst2")
    for name in ("linformer_table2", "linformer_table2_longer"):
        found = measured(name)
        rows = rows_of(found)
        (softmax,) = (row for row in rows if row["attention"] == "softmax")
        for row in (row for row in rows if row["attention"] == "linformer"):
            n, k = found["setting"]["length"], row["options"]["projected_length"]
            differences = [paired(row.accuracies(each), softmax.accuracies(each)) for each in [*([task] for task in tasks), tasks]]
            made.append([n, k, str(Fraction(k, n)), *(one.written(".1f", 100, "+") if one else "-" for one in differences)])
    titles = [found["data"]["tasks"][task]["title"] for task in tasks]
    return tabulate(sorted(made), ["n", "k", "k / n", *titles, "mean"], tablefmt="github", disable_numparse=True)


def table2_pretrained() -> str:
    """Score after pretraining with the row's own attention, and the difference from softmax at the same seed."""
    scores: dict[str, dict[str, dict[int, float]]] = {}
    chance: dict[str, float] = {}
    for record in (record for record in records_in("linformer_table2_pretrained") if not record.is_trial):
        spec, k = record.spec, record.spec.options.get("projected_length")
        share = str(Fraction(k, spec.task_options["length"])) if k else ""
        name = spec.attention + " (c)" * record.attention_card["control"]
        label = ", ".join(filter(None, (name, share and f"k = {share} n", cell_of(record).arm.start if k else "")))
        scores.setdefault(label, {}).setdefault(spec.task, {})[spec.seed] = record.scores["test"]
        assert record.chance is not None, "classes have a chance level"
        chance[spec.task] = record.chance
    if not scores:
        return "Not run yet."
    tasks = [task for task in ("sst2", "imdb", "qnli", "mrpc") if task in chance]
    rows = []
    for label, of in sorted(scores.items(), key=lambda item: -fmean(fmean(by_seed.values()) for by_seed in item[1].values())):
        means = [estimate(list(of.get(task, {}).values())) for task in tasks]
        differences = [paired(of.get(task, {}), scores["softmax"].get(task, {})) if label != "softmax" else None for task in tasks]
        made = [one.written(".1f", 100) if one else "" for one in means]
        made += [one.written(".1f", 100, "+") if one else "" for one in differences]
        rows.append([label, *made])
    rows.append(["most frequent training class", *(f"{100 * chance[task]:.1f}" for task in tasks), *("" for _ in tasks)])
    cards = [task_card(task) for task in tasks]
    measured_in = ["%" if card.metric == "accuracy" else f"{card.metric.upper()}, %" for card in cards]
    head = ["row", *(f"{card.title} ({unit})" for card, unit in zip(cards, measured_in, strict=True))]
    return tabulate(rows, [*head, *(f"{card.title}, minus softmax" for card in cards)], tablefmt="github", disable_numparse=True)


def printed_rows(file: str) -> list[dict[str, Any]]:
    """Return all rows of a file of published numbers, as they stand in it."""
    data = tomllib.loads((ROOT / "attn_zoo" / "published" / "data" / file).read_text(encoding="utf-8"))
    return [row for table in data["tables"] for row in table["rows"]]


def table2_published() -> str:
    """Table 2 of the Linformer paper, with its means over tasks."""
    printed = [one for one in figures(metric=SCORE) if (one.source.name, one.where) == ("linformer", "Table 2")]
    columns = list(dict.fromkeys(one.column for one in printed))
    means = {one["model"]: one["average"] for one in printed_rows("linformer.toml") if "average" in one}
    rows: dict[str, list[str]] = {}
    for one in printed:
        rows.setdefault(one.model, []).append(one.printed)
    body = [[model, *values, means[model]] for model, values in rows.items()]
    align = ["left", *["right"] * (len(columns) + 1)]
    return tabulate(body, ["model", *columns, "mean"], tablefmt="github", disable_numparse=True, colalign=align)


def starts_until_learned() -> str:
    """Seeds that learned a task of the profile, and their steps to 90 %, with the default initialisation and from means."""
    usual = [record for record in records_in("profile3") if record.spec.attention == "linformer"]
    rows = [
        [table.task["title"], row.name, f"{row.tuned['budget.learning_rate']:g}", str(row.learned), str(row.steps_to_90)]
        for table in leaderboard_tables([*usual, *records_in("linformer_start")])
        for row in table.rows
    ]
    head = ["task", "row", "rate found", "learned", "steps to 90 %"]
    return tabulate(rows, head, tablefmt="github", disable_numparse=True)


def starts(folder: str) -> str:
    """Validation perplexity of each seed at every second evaluation, and of the test at the end."""
    runs = sorted(records_in(folder), key=lambda record: record.spec.seed)
    (table,) = leaderboard_tables(runs)
    steps = [point["step"] for point in runs[0].curve][1::2]
    rows = []
    for row in table.rows:
        own = [record.curve for record in runs if record.source in row.files]
        after = [", ".join(f"{point['valid']:.0f}" for curve in own for point in curve if point["step"] == step) for step in steps]
        rows.append([row.name, *after, ", ".join(f"{score:.0f}" for _, score in sorted(row.by_seed.items()))])
    return tabulate(rows, ["row", *(f"step {step:,}" for step in steps), "test"], tablefmt="github", disable_numparse=True)
