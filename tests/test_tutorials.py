"""Tutorials for authors of attentions and tasks, followed to the letter in a fresh environment."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from markdown_it import MarkdownIt
from stranger import environment, run

from attn_zoo.conformance import ATTENTION_CHECKS, TASK_CHECKS

DOCS = Path(__file__).parents[1] / "docs" / "tutorials"
PAGES = ("add-a-mechanism.md", "add-a-task.md")

LONG = {"attn-zoo compare my_attention\n": "trains for a minute; tests/cli/test_compare_mine.py trains for less"}
"""Reason why a command and what it prints are left out, by command."""
_FILE = re.compile("`([^`]+)`:")
_NUMBER = re.compile(r"\d+(?:[.,]\d+)*")


@dataclass(frozen=True)
class Step:
    """Step of a page: a command, a file to write, or text that must be printed or be in a file."""

    kind: str
    """``bash``, ``file``, ``text`` (printed by the commands before it) or ``toml`` (shown, not to be typed)."""
    text: str
    file: str = ""


def steps(page: str) -> Iterator[Step]:
    """Yield the blocks of a page; a Python block is the content of the file named alone in the paragraph above it.

    Raises:
        ValueError: a block is of another language, or is Python without a file.
    """
    above = ""
    for token in MarkdownIt().parse(page):
        if token.type == "inline":
            above = token.content
        if token.type != "fence":
            continue
        named = _FILE.fullmatch(above)
        if token.info == "python" and named:
            yield Step("file", token.content, named[1])
        elif token.info in ("bash", "text", "toml"):
            yield Step(token.info, token.content)
        else:
            raise ValueError(f"nothing is to be done with a block of {token.info!r} below {above!r}")
        above = ""


def follow(page: str, folder: Path, programs: Path) -> None:
    """Follow the steps of a page in ``folder``, except ``LONG`` commands.

    Raises:
        AssertionError: a command fails, its output differs from the page's, a file is neither there nor named by a later command,
            or it lacks the shown text.
    """
    printed: str | None = ""
    todo = list(steps(page))
    for at, step in enumerate(todo, 1):
        if step.kind == "file":
            is_named = any(step.file in later.text for later in todo[at:] if later.kind == "bash")
            assert is_named or (folder / step.file).exists(), f"{step.file} is not where the page says, so nothing reads it"
            (folder / step.file).write_text(step.text, encoding="utf-8")
        if step.text in LONG:
            printed = None
        elif step.kind == "bash":
            done = run("bash", "-euo", "pipefail", "-c", step.text, cwd=folder, programs=programs)
            assert done.returncode == 0, f"{step.text}\n{done.stdout}\n{done.stderr}"
            printed = done.stdout
        if step.kind == "text" and printed is not None:
            assert_printed(step.text, printed)
        if step.kind == "toml":
            files = [file.read_text(encoding="utf-8") for file in folder.glob("*/pyproject.toml")]
            assert any(step.text in file for file in files), f"no pyproject.toml holds\n{step.text}"


def assert_printed(expected: str, printed: str) -> None:
    """Assert that the output has each expected line, in order; … matches anything, numbers any numbers, blanks any blanks."""
    left = iter(printed.splitlines())
    for line in expected.splitlines():
        words = [re.escape(word).replace("…", ".*") for word in _NUMBER.sub("0", line).split()]
        pattern = re.compile(r"\s+".join(words).replace("0", _NUMBER.pattern))
        assert line.strip() == "…" or any(pattern.fullmatch(found.strip()) for found in left), f"{line!r} is not in\n{printed}"


@pytest.fixture(scope="module")
def programs(tmp_path_factory) -> Path:
    return environment(tmp_path_factory.mktemp("newcomer"))


@pytest.mark.parametrize("page", PAGES)
def test_a_page_is_followed_to_the_letter(page, programs, tmp_path):
    follow((DOCS / page).read_text(encoding="utf-8"), tmp_path, programs)


def test_a_newcomers_path_is_on_the_page():
    typed = "".join(step.text for step in steps((DOCS / PAGES[0]).read_text(encoding="utf-8")) if step.kind == "bash")
    path = [
        "attn-zoo check ./mine.py",
        "attn-zoo new my_attention",
        "pip install -e my_attention",
        "attn-zoo list | grep my_attention",
    ]
    path += ["attn-zoo check my_attention", "pytest my_attention", "attn-zoo run attention=my_attention task=digits budget.steps=5"]
    path += ["attn-zoo compare my_attention"]
    assert typed.splitlines() == path


def test_checks_that_a_page_explains_exist():
    named = re.findall(r"^\| `(\w+)` \|", (DOCS / PAGES[0]).read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert len(named) > 5
    assert set(named) <= {*ATTENTION_CHECKS, *TASK_CHECKS}
