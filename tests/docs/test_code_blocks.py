"""Code blocks of the site's pages run in an empty folder and do what the page says; data blocks can be parsed."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import page_blocks
import pytest
from page_blocks import OUTPUT, PARSED, RUN, blocks, front_matter
from patience import HANG
from shown_commands import DOCS, ROOT, WRITTEN, lines, wrong_command

FOLLOWED_BY = "followed-by"


def text_of(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def has_code(page: Path) -> bool:
    """Return True if a page has code to run; a page that cannot be parsed counts, so that a test with its name fails."""
    try:
        return any(block.language in RUN for block in blocks(text_of(page)))
    except ValueError:
        return True


def names(page: Path) -> str:
    return str(page.relative_to(DOCS))


LONG = {
    "tutorials/lesson.md": "docs/test_commands_on_a_terminal.py",
    "tutorials/my-attention.md": "docs/test_commands_on_a_terminal.py",
    "how-to/many-runs.md": "sweeps/test_launchers.py",
    "how-to/transplant.md": "transplant/test_transplant_command.py",
    "how-to/tune.md": "sweeps/test_tuning.py",
    "how-to/export.md": "test_export.py",
    "how-to/transformers.md": "integrations/test_transformers.py",
    "explanation/read-the-leaderboard.md": "leaderboard/test_leaderboard_command.py",
    "explanation/fairness.md": "bench/test_counted.py",
    "explanation/mechanism-layer-card.md": "test_contract.py",
    "reference/rows.md": "integrations/test_hybrid_models.py",
}
"""Pages whose code takes long, and tests of what it does."""
RUN_HERE = [page for page in WRITTEN if has_code(page) and FOLLOWED_BY not in front_matter(text_of(page))]
RUN_ELSEWHERE = [page for page in WRITTEN if FOLLOWED_BY in front_matter(text_of(page))]


def follow(page: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a page's code blocks in ``folder``, in a subprocess without a data folder and with Hugging Face libraries offline."""
    left_out = ("ATTN_ZOO_DATA", "TRITON_INTERPRET", "PYTHONPATH")
    environment = {name: value for name, value in os.environ.items() if name not in left_out}
    environment |= {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}
    command = [sys.executable, "-P", page_blocks.__file__, str(page)]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=HANG, check=False)


@pytest.mark.parametrize(
    "page", [pytest.param(page, marks=[pytest.mark.exhaustive] * (names(page) in LONG)) for page in RUN_HERE], ids=names
)
def test_its_code_runs(page, tmp_path):
    done = follow(page, tmp_path)
    assert done.returncode == 0, f"{names(page)}\n{done.stdout}\n{done.stderr}"


def test_the_lesson_prints_the_value_of_each_key_as_its_answer(tmp_path):
    """Its first block is run here, because the whole page trains and is run by the exhaustive tests only."""
    first = next(block for block in blocks(text_of(DOCS / "tutorials/lesson.md")) if block.language == "python")
    page = tmp_path / "page.md"
    page.write_text(f"```python\n{first.content}```\n\n```{OUTPUT}\n{first.output}```\n", encoding="utf-8")
    done = follow(page, tmp_path)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert first.output
    tokens, answers = (line.split()[1:] for line in first.output.splitlines()[1:])
    values = dict(zip(tokens[:8:2], tokens[1:8:2], strict=True))
    asked = [at for at, answer in enumerate(answers) if answer != "."]
    assert len(asked) == 4 and all(answers[at] == values[tokens[at]] for at in asked)


@pytest.mark.parametrize("page", WRITTEN, ids=names)
def test_its_data_can_be_read(page):
    for block in blocks(text_of(page)):
        if block.language in PARSED:
            PARSED[block.language](block.content)


@pytest.mark.parametrize("page", RUN_ELSEWHERE, ids=names)
def test_a_page_that_another_test_follows_is_named_there(page):
    test = ROOT / front_matter(text_of(page))[FOLLOWED_BY]
    assert test.is_file(), f"{names(page)} is left to {test.relative_to(ROOT)}, which is not there"
    assert page.name in test.read_text(encoding="utf-8"), f"{test.relative_to(ROOT)} does not name {page.name}"


def test_long_pages_and_the_tests_of_what_they_do_are_there():
    assert set(LONG) <= {names(page) for page in RUN_HERE}
    assert all((ROOT / "tests" / test).is_file() for test in LONG.values())


ELSEWHERE = re.compile(r"plugin=|--plugin|launch=slurm")
"""In commands that need a file of the page or a cluster."""


def refusals(page: Path) -> Iterator[str]:
    """Yield what cannot be right in a page's code: commands that attn-zoo rejects, and names that it does not have."""
    for line in lines(text_of(page)):
        if not ELSEWHERE.search(line) and (reason := wrong_command(line)):
            yield f"{line}: {reason}"
    for block in blocks(text_of(page)):
        for node in ast.walk(ast.parse(block.content if block.language == "python" else "")):
            if isinstance(node, ast.ImportFrom) and str(node.module).partition(".")[0] == "attn_zoo":
                module = import_module(str(node.module))
                yield from (f"{node.module} has no {each.name}" for each in node.names if not hasattr(module, each.name))


@pytest.mark.parametrize("page", LONG)
def test_code_of_a_long_page_has_known_commands_and_names(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert not list(refusals(DOCS / page))
