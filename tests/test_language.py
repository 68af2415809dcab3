"""The lint of words finds what it must find, and nothing in what it recommends."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from language import PRIVATE, ROOT, RULES, changed, findings, main

PAGE = "docs/how-to/tune.md"


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_each_rule_finds_its_example_and_passes_its_correction(rule):
    (found,) = findings(PAGE, {7: rule.found})
    assert found.startswith(f"{PAGE}:7: {rule.name}: ") and found.endswith(rule.remedy)
    assert not list(findings(PAGE, {7: rule.better}))


@pytest.mark.parametrize(
    "line",
    [
        "There is no silent fall-back, and there are no tensors.",
        "Its error is no larger, and a block of 64 tokens is no shorter than these.",
        "The mask is True where a key is real.",
        "Performer fails at recall.",
        '    """Return what was measured."""',
    ],
)
def test_good_english_is_left_alone(line):
    assert not list(findings(PAGE, {1: line}))


def test_a_private_term_is_free_on_a_page_with_a_link_and_in_code():
    line = {1: "Each check catches its mutants."}
    assert list(findings(PAGE, line)) and list(findings("README.md", line))
    assert not list(findings(PAGE, line, page="the [mutants](glossary.md)"))
    assert not list(findings("attn_zoo/conformance/harness.py", line))


def test_private_terms_stand_in_the_glossary():
    terms = re.findall(r"\*\*([^*]+)\*\*", (ROOT / "docs" / "reference" / "glossary.md").read_text(encoding="utf-8"))
    assert set(PRIVATE.split("|")) <= set(terms)
    assert len(terms) == len(set(terms)) > 40


def test_lines_are_counted_in_the_new_file_and_what_was_there_before_is_not_new():
    added, before = changed("--- a/m.py\n+++ b/m.py\n@@ -3,2 +5,3 @@\n-x is no pair.\n-old\n+x is no pair.\n+y\n+z is no set.\n")
    assert added == {"m.py": {5: "x is no pair.", 6: "y", 7: "z is no set."}}
    (found,) = findings("m.py", added["m.py"], before=before)
    assert found.startswith("m.py:7: no for not a: z is no set.")


def test_the_program_reads_what_differs_from_the_merge_base_or_nothing(tmp_path, capsys):
    def git(*words: str) -> None:
        user = ["-c", "user.name=a", "-c", "user.email=a@localhost"]
        subprocess.run(["git", *user, *words], cwd=tmp_path, check=True, capture_output=True)

    def write(text: str) -> None:
        Path(tmp_path / "page.md").write_text(text, encoding="utf-8")

    git("init", "-b", "work")
    write("A word is no pair.\n")
    git("add", ".")
    git("commit", "-m", "one")
    write("A word is no pair.\nIt is surely so.\n")
    assert main([], tmp_path) == 0, "there is no merge base"
    git("update-ref", "refs/remotes/origin/main", "HEAD")
    capsys.readouterr()
    assert main([], tmp_path) == 1
    assert capsys.readouterr().out.startswith("page.md:2: surely: It is surely so.\n")
    write("A word is no pair.\nIt is so.\n")
    assert main([], tmp_path) == 0
