"""``attn-zoo analyze figure3``: the Linformer paper's Figure 3 from records, as verdicts on its claims, a table and a picture."""

from __future__ import annotations

import argparse
from typing import Any

from attn_zoo.cli.analyze.results import add_results, as_json, deliver
from attn_zoo.cli.records_of import add_records, loaded, records_root
from attn_zoo.leaderboard.figure3 import figure3_data, figure3_page, read_figure
from attn_zoo.leaderboard.figure3.plot import plot_figure3

FOLDER = "linformer_figure3"
"""Default folder of records, to which the experiment writes."""


def add_to(analyses: Any) -> None:
    """Add the command to the other analyses."""
    figure3 = analyses.add_parser(
        "figure3",
        help="the Linformer paper's Figure 3 from recorded runs: verdicts on its claims, perplexities, curves",
        description="Perplexity of masked language models over projected length, sharing and length, from the records of "
        "attn-zoo run -m experiment=linformer_figure3_cpu, and whether each claim of the paper's Section 5.1 holds on them.",
    )
    add_records(figure3, default=FOLDER)
    add_results(figure3, "figure3.md, .json, .png and .svg", ("github", "json"), _figure3)


def _figure3(parsed: argparse.Namespace) -> int:
    parsed.records = parsed.records or FOLDER
    figure = read_figure(loaded(records_root(parsed)))
    if parsed.output is not None:
        parsed.output.mkdir(parents=True, exist_ok=True)
    data = as_json(figure3_data(figure))
    texts = {"figure3.md": figure3_page(figure, "github"), "figure3.json": data}
    text = data if parsed.format == "json" else figure3_page(figure, parsed.format)
    return deliver(parsed, text, texts, lambda folder: plot_figure3(figure, folder / "figure3.png", folder / "figure3.svg"))
