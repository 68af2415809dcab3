"""What ``docs/zoo_pages`` makes: drawings of who sees whom, notebooks with the code of their pages, and papers of cards."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch

from attn_zoo.registry import attentions, card

sys.path.append(str(Path(__file__).parents[2] / "docs"))
from zoo_pages.drawing import TOKENS, drawing, seen
from zoo_pages.families import families
from zoo_pages.notebooks import NOTEBOOKS, notebook
from zoo_pages.papers import cited


def test_softmax_prefers_tokens_of_the_same_kind_and_sees_all():
    shares = seen(card("softmax"), causal=False)
    kinds = torch.arange(TOKENS) // 2 % 4
    same = kinds[:, None] == kinds
    assert shares[same].min() > 0.5 > 0.1 > shares[~same].max() > 0.01


@pytest.mark.parametrize("name", [name for name in attentions() if card(name).can.causal])
def test_no_token_sees_a_later_one(name):
    shares = seen(card(name), causal=True)
    assert shares.triu(1).max() < 1e-12, "rounding alone"
    assert shares[0, 0] == 1, "the first token sees itself"


def test_none_sees_itself_alone_and_uniform_sees_all_alike():
    torch.testing.assert_close(seen(card("none"), causal=False), torch.eye(TOKENS, dtype=torch.float64))
    shares = seen(card("uniform"), causal=False)
    torch.testing.assert_close(shares, shares[:1].expand_as(shares))


def test_every_mechanism_is_in_one_family_and_its_drawing_is_xml():
    found = [entry.name for family in families() for entry in family.cards]
    assert sorted(found) == sorted(attentions())
    assert all(family.title and family.idea for family in families())
    assert ElementTree.fromstring(drawing(card("linformer"))).tag.endswith("svg")


@pytest.mark.parametrize("page", NOTEBOOKS, ids=lambda page: page.stem)
def test_notebook_is_current(page):
    stored = page.with_suffix(".ipynb").read_text(encoding="utf-8")
    assert stored == notebook(page.read_text(encoding="utf-8")), "run python docs/zoo_pages/notebooks.py"


def test_cells_hold_all_code_and_no_picture_output_or_link_to_the_notebook():
    page = "# Title\n\nWords. They are a [notebook](a.ipynb). More.\n\n```python\na = 1\n```\n\n"
    page += "```text output\n1\n```\n\n![A picture](a.svg)\n\n```python\nb = a\n```\n"
    page += "\n```python c.py\nc = 1\n```\n\n```text\nnot run\n```\n\n```bash\npython c.py\n```\n"
    cells = json.loads(notebook(page))["cells"]
    assert [(cell["cell_type"], "".join(cell["source"])) for cell in cells] == [
        ("markdown", "# Title\n\nWords. More."),
        ("code", "a = 1"),
        ("code", "b = a"),
        ("code", "%%writefile c.py\nc = 1"),
        ("markdown", "```text\nnot run\n```"),
        ("code", "%%bash\npython c.py"),
    ]


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
