"""Tables of the README and of other pages, and the reference records of the package, made from committed results.

Run as a program to write them again.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from contextlib import redirect_stdout
from functools import cache
from io import StringIO
from pathlib import Path
from statistics import mean
from tempfile import TemporaryDirectory

from axes_plots import plot_capacity, plot_length
from axes_tables import beyond, by_length, capacity, hybrids, length, recalls, size
from committed import ROOT, benchmarked, boards_of, measured, profile_boards, profile_records, records_in
from figure3.plot import plot_figure3
from heirs_tables import heirs_compression, heirs_cost, heirs_profile
from language_tables import language
from layer_costs import layer_axes
from linformer_tables import (
    FIGURE3,
    figure3,
    figure3_of_the_paper,
    has_panels,
    k_or_share,
    searched_rates,
    starts,
    starts_until_learned,
    table2_pretrained,
    table2_published,
)
from profile_tables import choice, finding, learned, regime, repeated, searched, trust, uses
from tabulate import tabulate
from verdict_matrix import verdict_matrix

from attn_zoo import reference
from attn_zoo.analysis.error import error_table
from attn_zoo.analysis.projections import projections_table
from attn_zoo.analysis.spectrum import spectrum_table
from attn_zoo.bench.experiments import report
from attn_zoo.cli.listing import attention_table, task_table
from attn_zoo.cli.main import main
from attn_zoo.leaderboard import Table, leaderboard
from attn_zoo.leaderboard import tables as leaderboard_tables
from attn_zoo.leaderboard.columns import COLUMNS
from attn_zoo.leaderboard.heat_picture import heat_map_svg
from attn_zoo.leaderboard.heatmap import heat_map
from attn_zoo.leaderboard.literature import anchor_table, render_published
from attn_zoo.leaderboard.metrics import estimated, optional, score, verdict_cell
from attn_zoo.leaderboard.plot import panels_of, write
from attn_zoo.leaderboard.table import titles
from attn_zoo.published import published_for
from attn_zoo.records import RunRecord
from attn_zoo.records.files import NAME, pack
from attn_zoo.registry import not_causal, task_card
from attn_zoo.transplant.table import classification_table, transplant_table

README = ROOT / "README.md"
PLACE = re.compile(r"(<!-- table: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)
"""Place of a generated table on a page: a marker with the name of the table, the table, and the end."""
WRITTEN = [
    page for folder in ("explanation", "how-to", "reference", "reports") for page in sorted((ROOT / "docs" / folder).glob("*.md"))
]
PAGES = [page for page in (README, ROOT / "results" / "README.md", *WRITTEN) if PLACE.search(page.read_text(encoding="utf-8"))]
"""Pages with generated tables."""
NAMED_PAGE = re.compile(r"\b([Cc]olumns(?: and \w+)?|Method): (docs/[\w/.#-]+\w)")
"""Reference to a page in a generated note: its words and its path."""
CURVES = ROOT / "results" / "curves.svg"
"""Picture of scores of ``experiment=curves`` against costs of a layer; exists if its runs are recorded."""
CAPACITY, LENGTHS = ROOT / "results" / "capacity.svg", ROOT / "results" / "length.svg"
"""Pictures of ``docs/reports/length-and-state.md``; exist if a run of their experiment is recorded."""


@cache
def tables() -> dict[str, str]:
    """Text of every generated table by its name."""
    return {
        "quickstart": leaderboard(ROOT / "results" / "quickstart", format="github", overview=True),
        "quickstart_tasks": leaderboard(ROOT / "results" / "quickstart", format="github"),
        "zoo": attention_table(),
        "tasks": task_table(),
        "family": leaderboard(ROOT / "results" / "family", format="github"),
        "lra_cpu_tasks": leaderboard(ROOT / "results" / "lra_cpu", format="github"),
        "lra_two_hours": two_hours(),
        "tasks_cpu": leaderboard(ROOT / "results" / "tasks_cpu", format="github"),
        "published": render_published(leaderboard_tables(records_in("lra_cpu"), attention="linformer"), "github"),
        "anchors": anchor_table("github"),
        "crossover": report(measured("crossover")),
        "aa_test": benchmarked("aa_test", ""),
        "launches": benchmarked("launches", "Launches"),
        "growth": report(measured("growth")),
        "peers": benchmarked("peers", "Peers"),
        "peers_recurrences": benchmarked("peers", "Peers", "peers_recurrences"),
        "error": error_table(measured("error"), "github"),
        "error_random": error_table(measured("error_random"), "github"),
        "projections": projections_table(measured("projections"), "github"),
        "spectrum": spectrum_table(measured("spectrum"), "github"),
        "transplant": transplant_table(measured("transplant"), "github"),
        "finding": finding(profile_boards()),
        "uses": uses(),
        "columns": column_tables(),
        "matrix": verdict_matrix(profile_boards()),
        "trust": trust(),
        "choice": choice(),
        "regime": regime(),
        "models": report(measured("models")) if (ROOT / "results" / "models.json").is_file() else "",
        "linformer_table3": benchmarked("linformer_table3", "LinformerTable3"),
        "figure3": figure3_of_the_paper(),
        "figure3_pilot": by_part(boards_of("linformer_figure3_pilot")),
        "table2": classification_table(measured("linformer_table2"), "github"),
        "table2_sharing": classification_table(measured("linformer_table2_sharing"), "github"),
        "table2_longer": classification_table(measured("linformer_table2_longer"), "github"),
        "k_or_share": k_or_share(),
        "table2_pretrained": table2_pretrained(),
        "table2_published": table2_published(),
        "limits": each_seed(boards_of("linformer_limits")),
        "late": each_seed(boards_of("linformer_text")),
        "rates": searched_rates(),
        "starts": starts("linformer_figure3_start"),
        "starts_until_learned": starts_until_learned(),
        "settings": each_seed(boards_of("curves"), by_label=True),
        "bare": two_arms(),
        "photographs": photographs(),
        "equal_time": equal_times("equal_time", (1, 2, 3)),
        "half_hour": equal_times("equal_time_half_hour", (5, 15, 30)),
        "criterion": leaderboard(ROOT / "results" / "profile3", format="github", overview=True),
        "learned": learned(),
        "repeated": repeated(),
        "searched": searched(),
        "separation": separation(profile_records()),
        "left": separation(records_in("profile_left")),
        "heirs_compression": heirs_compression(),
        "heirs_cost": heirs_cost(),
        "heirs_profile": heirs_profile(),
        "capacity": capacity(boards_of("capacity")),
        "length": length(boards_of("length")),
        "length_beyond": beyond(boards_of("length_beyond")),
        "size": size(boards_of("size"), boards_of("profile3")),
        "hybrids": hybrids(boards_of("hybrids")),
        "language": language(boards_of("language"), profile_boards()),
    }


def renewed(page: Path, text: str) -> str:
    """Text of a page with every generated table up to date."""

    def up_to_date(place: re.Match[str]) -> str:
        table = linked(tables()[place[2]].strip(), page.parent)
        return place[1] + (f"\n{table}\n\n" if table else "") + place[3]

    return PLACE.sub(up_to_date, text)


def linked(text: str, folder: Path) -> str:
    """Text with links in place of pages that notes name by their paths; it stands on a page in ``folder``."""
    return NAMED_PAGE.sub(lambda found: f"[{found[1]}]({Path(os.path.relpath(ROOT / found[2], folder)).as_posix()})", text)


def pictures() -> dict[Path, str]:
    """SVG pictures by file: heat maps and, if recorded, Figure 3 of the Linformer paper, recall, lengths and the curves."""
    made = {
        ROOT / "results" / "profile.svg": profile_boards(),
        ROOT / "results" / "profile3.svg": boards_of("profile3"),
        ROOT / "results" / "quickstart" / "leaderboard.svg": boards_of("quickstart"),
    }
    drawn = {file: heat_map_svg(heat_map(of, not_causal())).rstrip() + "\n" for file, of in made.items()}
    with TemporaryDirectory() as folder:
        if has_panels(figure3()):
            (picture,) = plot_figure3(figure3(), Path(folder) / "figure3.svg")
            drawn[FIGURE3] = picture.read_text(encoding="utf-8")
        if cells := recalls(boards_of("capacity")):
            drawn[CAPACITY] = plot_capacity(cells, Path(folder) / "capacity.svg")[0].read_text(encoding="utf-8")
        if rows := by_length(boards_of("length")):
            drawn[LENGTHS] = plot_length(rows, Path(folder) / "length.svg")[0].read_text(encoding="utf-8")
        if curves := boards_of("curves"):
            recall = [table for table in curves if table.task["name"] == "mqar"]
            drawn[CURVES] = write(panels_of(recall, layer_axes()), Path(folder) / "curves")[1].read_text()
    return drawn


def separation(records: Sequence[RunRecord]) -> str:
    """Which tasks of records separate mechanisms."""
    with TemporaryDirectory() as folder:
        pack(records, Path(folder) / NAME)
        return printed("leaderboard", "--records", folder, "--separation", "--format", "github")


def two_arms() -> str:
    """Scores of ``experiment=profile_bare`` next to scores of the same rows and tasks in the profile."""

    def cell(record: RunRecord) -> tuple[str, ...]:
        spec = record.spec
        return (spec.attention, str(spec.options), spec.task, str(spec.task_options))

    bare = records_in("profile_bare")
    cells = set(map(cell, bare))
    return each_seed(leaderboard_tables([*bare, *(record for record in records_in("profile") if cell(record) in cells)]))


def two_hours() -> str:
    """Test accuracies of ``experiment=lra_two_hours``, with and without pretraining, beside the published ones."""
    records = records_in("lra_two_hours")
    scores = {(r.spec.task, r.spec.budget.pretrain_steps, r.spec.attention): f"{100 * r.scores['test']:.1f}" for r in records}
    columns = sorted({(task, steps) for task, steps, _ in scores}, key=lambda column: (column[0] != "text", column))
    head = ["row", *(task_card(task).title + (f", {steps} steps of pretraining" if steps else "") for task, steps in columns)]
    rows = []
    for attention in ("softmax", "linformer", "uniform", "none"):
        ours = [scores.get((*column, attention), "") for column in columns]
        published = [
            one.printed for task in ("text", "pixels") for one in published_for(task, attention) if one.source.name == "lra"
        ]
        rows.append([attention, *ours, *published])
    return tabulate(rows, [*head, "Text, published", "Image, published"], tablefmt="github", disable_numparse=True)


def photographs() -> str:
    """Scores, verdicts and FLOPs of ``experiment=profile_vision``, with margins over the best control."""
    (table,) = boards_of("profile_vision")
    rows = [
        [
            row.name,
            score(row, table),
            verdict_cell(row, table) or "-",
            estimated(row.margin, table, "+"),
            optional(row.flops_per_example, lambda flops: f"{flops / 1e6:.1f} M"),
        ]
        for row in table.rows
    ]
    head = ["row", "accuracy (%)", "verdict", "over control", "FLOPs of an image"]
    return tabulate(rows, head, tablefmt="github", disable_numparse=True, colalign=["left", "right", "left", "right", "right"])


def equal_times(folder: str, minutes: Sequence[int]) -> str:
    """Best validation accuracy of each seed after some minutes, with rate and steps; a dash where a row was trained for less."""
    runs = sorted((record for record in records_in(folder) if not record.is_trial), key=lambda record: record.spec.seed)
    made = [(table, row) for table in leaderboard_tables(runs) for row in table.rows]
    made.sort(key=lambda one: (one[1].control, -one[1].test.mean if one[1].test else 0.0))
    rows = []
    for table, row in made:
        own = [record for record in runs if record.source in row.files]
        budget = own[0].spec.budget
        after = [
            "-" if budget.seconds < 60 * minute else ", ".join(f"{100 * best_until(record, 60 * minute):.0f}" for record in own)
            for minute in minutes
        ]
        steps = mean(record.curve[-1]["step"] for record in own)
        steps_90 = ", ".join(map(steps_to_90, own))
        rows.append([row.name, f"{budget.learning_rate:g}", f"{steps:,.0f}", *after, steps_90, score(row, table)])
    head = ["row", "rate", "steps", *(f"{minute} min (%)" for minute in minutes), "steps to 90 %", "test (%)"]
    return tabulate(rows, head, tablefmt="github", disable_numparse=True, colalign=["left", *["right"] * (len(head) - 1)])


def best_until(record: RunRecord, seconds: float) -> float:
    """Best validation score of a run within a time; the step in which its time limit ends counts as within it."""
    limit = record.spec.budget.seconds or seconds
    return max(point["valid"] for point in record.curve if min(point["train_seconds"], limit) <= seconds)


def steps_to_90(record: RunRecord) -> str:
    """Step of a run's first validation score of 90 % or more; a dash where there is none."""
    return next((str(point["step"]) for point in record.curve if point["valid"] >= 0.9), "-")


def each_seed(made: Sequence[Table], by_label: bool = False) -> str:
    """Test scores of each seed: rows by tasks and their settings.

    Args:
        by_label: order rows by mechanism and then by the number of its setting, in place of the order of scores.
    """
    cells: dict[str, dict[int, str]] = {}
    for at, table in enumerate(made):
        for row in table.rows:
            seeds = ", ".join(f"{100 * score:.0f}" for _, score in sorted(row.by_seed.items()))
            cells.setdefault(row.name, {})[at] = seeds
    labels = sorted(cells, key=parts_of) if by_label else cells
    rows = [[label, *(cells[label].get(at, "") for at in range(len(made)))] for label in labels]
    head = [f"{title} (%)" for title in titles(made)]
    return tabulate(rows, ["row", *head], tablefmt="github", disable_numparse=True) if made else "Not run yet."


def parts_of(label: str) -> list[str | int]:
    """Words and numbers of a label in turn, so that 8 comes before 16."""
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", label)]


def by_part(made: Sequence[Table]) -> str:
    """Mean test scores of one table, whole and by part, and the training score minus the test score."""
    (table,) = made
    parts = sorted({name for row in table.rows for name in row.parts})
    rows = []
    for row in table.rows:
        found = (row.test, *map(row.parts.get, parts))
        gap = row.train_gap
        rows.append([row.name, *(f"{score.mean:.1f}" if score else "" for score in found), f"{gap.mean:+.1f}" if gap else ""])
    head = ["row", f"test {table.task['metric']}", *parts, "train - test"]
    return tabulate(rows, head, tablefmt="github", disable_numparse=True, colalign=["left", *["right"] * (len(head) - 1)])


def printed(*words: str) -> str:
    """Output of a command."""
    with redirect_stdout(StringIO()) as output:
        main(words)
    return output.getvalue()


def column_tables() -> str:
    """Return every column of a task's tables with its meaning, and those that only CSV and JSON have."""
    (table, *_) = boards_of("quickstart")
    shown = [(f"`{c.head(table)}`", f"`{c.name}`", c.note) for c in COLUMNS.values() if c.text and c.name != "mean"]
    data = [(f"`{c.name}`", c.note) for c in COLUMNS.values() if not c.text]
    tables = [
        tabulate(shown, ("column", "in CSV and JSON", "meaning"), tablefmt="github", disable_numparse=True),
        tabulate(data, ("column", "meaning"), tablefmt="github", disable_numparse=True),
    ]
    return "\n\nCSV and JSON also have:\n\n".join(tables)


def shipped_files() -> dict[Path, bytes]:
    """Content of the files of the package that are made from committed results."""
    with TemporaryDirectory() as folder:
        file = Path(folder) / NAME
        pack(profile_records(), file)
        packed = {reference.packed_file("profile"): file.read_bytes()}
    copies = {
        reference.packed_file("quickstart"): ROOT / "results" / "quickstart" / NAME,
        reference.TRANSPLANT: ROOT / "results" / "transplant.json",
    }
    return packed | {copy: committed.read_bytes() for copy, committed in copies.items()}


if __name__ == "__main__":
    for file, content in shipped_files().items():
        file.write_bytes(content)
    for file, picture in pictures().items():
        file.write_text(picture, encoding="utf-8")
    for page in PAGES:
        page.write_text(renewed(page, page.read_text(encoding="utf-8")), encoding="utf-8")
