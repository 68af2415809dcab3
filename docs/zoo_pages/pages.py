"""Every generated page by its path."""

from __future__ import annotations

from pathlib import Path

from attn_zoo.cli.listing import task_table
from attn_zoo.registry import attentions, card, task_names
from zoo_pages.attentions import attention_index, attention_page
from zoo_pages.commands import command_page
from zoo_pages.drawing import drawing
from zoo_pages.families import families, family_page
from zoo_pages.results import Results
from zoo_pages.site_files import results_page, site_files
from zoo_pages.tasks import board, task_index, task_page

PICTURES = ("crossover.svg", "error.svg")
"""Pictures in the folder of results that the pages of attentions show."""
README = Path(__file__).parents[2] / "README.md"
SITE = "site"
"""Folder of files that become part of the site as they are."""
_COMMUNITY = """# Results of other people

This page has our tables with the rows that other people [submitted](../how-to/submit.md), under their names. *Self-run* means that
only the submitter ran it. *Run again* means that CI or a maintainer ran a sample again, and that its test scores agreed within 2
points.

"""


def generated_pages(results: Results, folder: Path) -> dict[str, bytes]:
    """Content of every file below ``folder``, by its path in there."""
    pages = {
        "attention/index.md": attention_index(results),
        "task/index.md": task_index(task_table()),
        "board.md": board(results),
        "finding.md": README.read_text(encoding="utf-8").partition("<!-- table: finding -->")[2].partition("<!-- end -->")[0],
        "community.md": _COMMUNITY + results.community + "\n",
    }
    pages |= {f"attention/{name}.md": attention_page(name, results, folder / "attention") for name in attentions()}
    pages |= {f"attention/{name}.svg": drawing(card(name)) for name in attentions()}
    pages |= {f"attention/{family.page}.md": family_page(family) for family in families()}
    pages |= {f"task/{name}.md": task_page(name, results, folder / "task") for name in task_names()}
    pages["command-line.md"] = command_page()
    files = site_files(results.sets)
    pages["results.md"] = results_page(results.sets, files)
    pictures = {f"attention/{name}": results.picture(name) for name in PICTURES}
    made = {path: text.encode() for path, text in pages.items()} | {path: raw for path, raw in pictures.items() if raw}
    return made | {f"{SITE}/{path}": raw for path, raw in files.items()}
