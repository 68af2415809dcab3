"""Figure 3 of the Linformer paper, made from our records: verdicts on the paper's claims, a table and a picture.

``python benchmarks/linformer_figure3.py --records linformer_figure3 --output FOLDER``
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from figure3 import figure3_data, figure3_page, read_figure
from figure3.plot import plot_figure3

from attn_zoo.cli.analyze import add_results, deliver
from attn_zoo.cli.records_of import add_records, loaded, records_root

FOLDER = "linformer_figure3"
"""Default folder of records, to which the experiment writes."""


def main(words: Sequence[str]) -> int:
    """Print the report on Figure 3 and, if a folder is given, write its files. Return the exit status: 0, or 2 for bad input."""
    parser = argparse.ArgumentParser(
        "linformer_figure3.py",
        description="Perplexity of masked language models over projected length, sharing and length, from the records of "
        "attn-zoo run -m experiment=linformer_figure3_cpu, and whether each claim of the paper's Section 5.1 holds on them.",
    )
    add_records(parser, default=FOLDER)
    add_results(parser, "figure3.md, .json, .png and .svg", _figure3)
    parsed = parser.parse_args(words)
    try:
        return int(parsed.handler(parsed))
    except (ValueError, OSError) as error:
        print(f"linformer_figure3.py: {error}", file=sys.stderr)
        return 2


def _figure3(parsed: argparse.Namespace) -> int:
    parsed.records = parsed.records or FOLDER
    figure = read_figure(loaded(records_root(parsed)))

    def write(folder: Path) -> list[Path]:
        page = folder / "figure3.md"
        page.write_text(figure3_page(figure, "github") + "\n", encoding="utf-8")
        return [page, *plot_figure3(figure, folder / "figure3.png", folder / "figure3.svg")]

    return deliver(parsed, "figure3", figure3_data(figure), figure3_page(figure, parsed.format), write)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
