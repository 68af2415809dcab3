"""What ``docs/zoo_pages`` makes: drawings of who sees whom, notebooks with the code of their pages, and papers of cards."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch
from make import records_of

from attn_zoo.leaderboard import tables
from attn_zoo.recommend.verdicts import abilities
from attn_zoo.registry import attentions, card

sys.path.append(str(Path(__file__).parents[2] / "docs"))
from zoo_pages.drawing import TOKENS, drawing, seen
from zoo_pages.families import families
from zoo_pages.findings import spent, told
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


def test_sentences_count_out_of_the_tasks_that_were_run():
    scores = {"uniform": (0.20, 0.21, 0.22), "softmax": (0.90, 0.91, 0.92)}
    matching, worse = {"linformer": (0.90, 0.90, 0.92)}, {"linformer": (0.80, 0.82, 0.81)}
    by_task = {"mqar": scores | matching, "copying": scores | worse, "needle": scores}
    made = [record for task, these in by_task.items() for record in records_of(these, task, spec_task_options={})]
    found = abilities(tables(made))
    lines = {line.sentence: line.tasks for line in told(found, "linformer")}
    assert list(lines) == [
        "It matches softmax on 1 of the 2 tasks that it was run on.",
        "It is worse than softmax on 1 of the 2 tasks that it was run on.",
        "It was not run on 1 of the 3 tasks.",
    ]
    ((worst,),) = [tasks for sentence, tasks in lines.items() if "worse" in sentence]
    assert worst.startswith("Copying: 81.0") and "softmax 91.0" in worst and "uniform (the best control) 21.0" in worst
    assert told(found[:1], "softmax")[0].sentence == "It is better than the best control on the only task that it was run on."
    assert told(found, "uniform")[0].sentence == "It is the best control on 3 of the 3 tasks that it was run on."
    assert told(found, "softmax")[0].sentence == "It is better than the best control on 3 of the 3 tasks that it was run on."


def test_scores_of_an_earlier_version_are_marked():
    for version, marked in ((1, True), (card("gated_linear").version, False)):
        made = records_of({"softmax": (0.9, 0.91, 0.92), "uniform": (0.2, 0.21, 0.22)}, "mqar")
        made += records_of({"gated_linear": (0.9, 0.91, 0.92)}, "mqar", spec_attention_version=version)
        ((line,),) = [line.tasks for line in told(abilities(tables(made)), "gated_linear")]
        assert ("91.0 ± 2.5 % (an earlier version of it, which computed something different), softmax" in line) == marked


def test_the_recorded_cost_has_the_state_on_the_longest_causal_task():
    made = []
    for task, length, flops, state in (("mqar", 64, 4, 512), ("copying", 128, 10, 1024)):
        for name, count, size in (("softmax", 1000, 4 * state), ("linear", flops, state)):
            counted = {"parameters": 1, "mechanism_flops_4096": count, "state_bytes": size}
            made += records_of({name: (0.9,)}, task, card={"causal": True, "length": length}, counted=counted)
    said = "0.4 to 1 % of softmax's FLOPs at 4,096 tokens; a state of 1 KiB, softmax's 4 KiB (128 tokens)"
    assert spent("linear", abilities(tables(made))) == said
    assert spent("performer", abilities(tables(made))) == ""
