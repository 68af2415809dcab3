"""Anchors: every main row of the profile has a published score of its own mechanism, or says where none was found."""

from __future__ import annotations

import pytest
import yaml

from attn_zoo import configs
from attn_zoo.leaderboard.literature import anchor_beside, anchor_line, anchor_table
from attn_zoo.published import anchors


def main_rows(name: str) -> list[str]:
    """Return the twelve main rows of an experiment."""
    text = next(path for path in configs.__path__)
    with open(f"{text}/experiment/{name}.yaml", encoding="utf-8") as file:
        return yaml.safe_load(file)["tuning"]["main"]


def test_the_main_rows_and_no_others_have_an_anchor():
    rows = {(row, False) for row in main_rows("profile3_encoder")} | {(row, True) for row in main_rows("profile3_decoder")}
    assert len(rows) == 24
    assert set(anchors()) == rows


def test_an_anchor_is_a_figure_of_its_mechanism_with_a_difference_or_says_where_we_looked():
    for (attention, causal), found in anchors().items():
        assert found.differs, f"{attention}, causal={causal}: no word on the protocol"
        if found.figure is None:
            assert "arXiv" in found.differs
        else:
            assert (found.figure.attention, bool(found.task)) == (attention, True)
    assert {attention for (attention, _), found in anchors().items() if found.figure is None} == {"topk", "linformer_causal"}


@pytest.mark.parametrize(
    ("attention", "causal", "printed"),
    [("cosformer", False, "67.70"), ("cosformer", True, "23.1"), ("reformer", True, "100"), ("linear", True, "40.24")],
)
def test_an_anchor_has_the_score_that_its_source_prints(attention, causal, printed):
    figure = anchors()[attention, causal].figure
    assert figure is not None and figure.printed == printed


def test_only_main_rows_have_an_anchor_and_none_beside_a_figure_of_the_same_task():
    assert ("mega", True) not in anchors()
    assert anchor_beside("delta_rule", {"name": "mqar", "causal": True}) is None
    assert anchor_beside("delta_rule", {"name": "needle", "causal": True}) == anchors()["delta_rule", True]


def test_the_table_has_a_line_for_every_anchor():
    lines = anchor_table("github").splitlines()
    assert sum(line.startswith("| ") for line in lines) == 1 + len(anchors())
    (line,) = [line for line in lines if "longformer" in line and "causal" in line]
    assert "1.10 bits per character" in line and "text8" in line and "arXiv:2004.05150, Table 2" in line


@pytest.mark.parametrize(
    ("attention", "told"), [("softmax", "anchor: 64.27 % on LRA Text (Tay et al. 2020"), ("topk", "anchor: none found; looked in")]
)
def test_the_line_of_an_anchor_has_its_score_and_source_or_where_we_looked(attention, told):
    assert anchor_line(anchors()[attention, False]).startswith(told)
