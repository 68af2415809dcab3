"""Every paper that a card names has a BibTeX entry with the same first author, and the year that the card gives."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from attn_zoo.registry import attentions, card

sys.path.append(str(Path(__file__).parents[2] / "docs"))
from zoo_pages.papers import cited


@pytest.mark.parametrize("name", [name for name in attentions() if card(name).paper != "control"])
def test_entries_agree_with_the_card(name):
    named = re.findall(r"([A-Z][\w-]+)(?: et al\.| and \w+| Team)? (\d{4}), arXiv:(\d+\.\d+)", card(name).paper)
    assert named, card(name).paper
    for author, year, number in named:
        entry = cited(f"arXiv:{number}")
        assert f"author = {{{author}" in entry.replace("{{", "{"), entry
        assert f"year = {{{year}}}" in entry and f"eprint = {{{number}}}" in entry


def test_a_paper_without_an_entry_is_an_error():
    with pytest.raises(KeyError, match=r"0000\.00000"):
        cited("Somebody 2000, arXiv:0000.00000")
