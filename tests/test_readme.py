"""README without stale content: its tables come from committed results, its Python runs, its commands exist."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest
from committed import ROOT, records_in
from readme import PAGES, PLACE, README, pictures, renewed, tables
from shown_commands import WRITTEN

from attn_zoo import registry
from attn_zoo.cli.main import parser
from attn_zoo.cli.run import plan
from attn_zoo.cli.tune import read_request

TEXT = README.read_text(encoding="utf-8")


COMMANDS = (ROOT / "docs" / "reference" / "commands.md").read_text(encoding="utf-8")
PAGES_TO_READ = [README, ROOT / "CONTRIBUTING.md", *sorted((ROOT / "results").glob("**/README.md"))]
"""Pages that are read on GitHub and are not pages of the site."""


def blocks(language: str, text: str = TEXT) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_tables_are_what_the_committed_results_print(page):
    text = page.read_text(encoding="utf-8")
    assert renewed(page, text) == text, "tables are stale; run: python tests/readme.py"


def test_every_table_has_one_place():
    assert sorted(place[2] for page in PAGES for place in PLACE.finditer(page.read_text(encoding="utf-8"))) == sorted(tables())


def test_the_quickstart_table_is_whole():
    records = records_in("quickstart")
    planned = plan(["-m", "experiment=quickstart"])
    versions = {r.run_id: r for r in records if r.status == "done"}
    missing = [spec for spec in planned.specs if spec.run_id(registry.task_card(spec.task).version) not in versions]
    assert not missing, f"{len(missing)} runs of the quickstart are not among the committed records; run it and copy them"
    assert len(records) == len(planned.specs)


def test_run_ids_on_the_pages_are_recorded():
    recorded = {record.run_id for record in records_in("")}
    named = {name for page in WRITTEN for name in re.findall(r"\b[0-9a-f]{16}\b", page.read_text("utf-8"))}
    assert named and named <= recorded


def test_the_parts_that_stand_for_their_tasks_are_those_of_the_cards():
    page = (ROOT / "docs" / "explanation" / "read-the-leaderboard.md").read_text(encoding="utf-8")
    cards = {name: registry.task_card(name).distant for name in registry.task_names()}
    named = " and ".join(f"`{part}` for `{name}`" for name, part in cards.items() if part)
    assert f"so only this part counts. It is {named}.\n" in page


def dead_links(page: Path) -> list[str]:
    """Return links of a page, read on GitHub, to files that are not committed; the site's build makes ``docs/generated``."""
    text = re.sub(r"^( *)(```|~~~).*?^\1\2", "", page.read_text("utf-8"), flags=re.DOTALL | re.MULTILINE)
    files = [to.partition("#")[0] for to in re.findall(r"\]\(([^()\s]+)\)", text) if "://" not in to]
    return [to for to in files if to and (not (page.parent / to).exists() or "generated" in Path(to).parts)]


@pytest.mark.parametrize("page", [*PAGES_TO_READ, *WRITTEN], ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_lead_to_committed_files(page):
    assert not dead_links(page)


def test_records_name_no_machine_and_no_person():
    texts = {path.name: path.read_text(encoding="utf-8") for path in (ROOT / "results").glob("*.json")}
    texts |= {str(record.source): json.dumps(record.to_dict()) for record in records_in("")}
    assert len(texts) > 4_000
    for name, text in texts.items():
        assert not re.search(r"/(home|root|work|tmp|Users)/", text), name


def test_its_python_runs():
    pytest.importorskip("transformers", reason="transformers is not installed (extra: text)")
    uses = blocks("python")
    assert len(uses) == 1
    for use in uses:
        exec(compile(use, "README", "exec"), {})


@pytest.mark.parametrize(
    "line",
    [line for text in (*blocks("bash"), *blocks("text", COMMANDS)) for line in text.splitlines() if line.startswith("attn-zoo ")],
)
def test_its_commands_are_understood(line):
    words = shlex.split(line, comments=True)[1:]
    if words[0] == "run":
        assert plan(words[1:]).specs
    elif words[0] == "tune":
        assert read_request(words[1:]).searches
    else:
        parser(words[0]).parse_args(words)


def test_contributing_names_every_package():
    contributing = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    rooms = {p.name for p in (ROOT / "attn_zoo").iterdir() if p.is_dir() and (p / "__init__.py").exists()}
    for room in rooms:
        assert f"attn_zoo/{room}" in contributing


def test_pictures_are_current():
    for file, picture in pictures().items():
        assert file.read_text(encoding="utf-8") == picture, f"{file.name} is stale; run python tests/readme.py"
