"""The lint of words finds what it must find, and nothing in what it recommends."""

from __future__ import annotations

import re

import pytest
from language import PRIVATE, ROOT, RULES, findings

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
