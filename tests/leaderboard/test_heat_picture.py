"""The picture of the heat map: what it shows, in its room, in light and dark."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from typing import Any

import numpy as np
import pytest
from make import make_record
from synthetic import synthetic_records

from attn_zoo.leaderboard import tables
from attn_zoo.leaderboard.heat_picture import heat_map_svg
from attn_zoo.leaderboard.heatmap import DARK_FROM, SHADES, HeatMap, heat_map
from attn_zoo.plotting.theme import INK, PAPER

SVG = "{http://www.w3.org/2000/svg}"
LONG = "A task whose title is of a length that none of ours has"


@pytest.fixture(scope="module")
def whole() -> HeatMap:
    """Sixty mechanisms and controls on sixteen tasks."""
    return heat_map(tables(synthetic_records()))


def test_the_picture_holds_each_score_in_bold_if_it_leads(whole):
    texts = ET.fromstring(heat_map_svg(whole)).iter(f"{SVG}text")
    drawn = [(text.text, "font-weight: 700" in (text.get("style") or "")) for text in texts]
    for line in whole.lines:
        for cell in line.cells:
            if said := cell.text:
                drawn.remove((said.replace("100.0", "100"), cell.leads))


def test_nothing_of_the_picture_reaches_over_its_edge_or_over_a_neighbour(monkeypatch):
    kept: list[Any] = []

    def keep(figure: Any) -> str:
        kept.append(figure)
        return "<svg></svg>"

    monkeypatch.setattr("attn_zoo.leaderboard.heat_picture.svg_text", keep)
    few = synthetic_records(mechanisms=12)
    for records in (few, [make_record("linformer", "a-task", card={"title": LONG})]):
        heat_map_svg(heat_map(tables(records)))
        (axes,) = kept[-1].axes
        boxes = [text.get_window_extent() for text in axes.texts]
        whole_page = kept[-1].bbox
        for box, text in zip(boxes, axes.texts, strict=True):
            inside = box.x0 >= 0 and box.x1 <= whole_page.x1 and box.y0 >= 0 and box.y1 <= whole_page.y1
            assert inside, f"{text.get_text()} is cut"
        flat = [box for box, text in zip(boxes, axes.texts, strict=True) if not text.get_rotation()]
        left, low, right, high = np.array([(box.x0, box.y0, box.x1, box.y1) for box in flat]).T + np.array([[1], [1], [-1], [-1]])
        across = (left[:, None] < right) & (left < right[:, None]) & (low[:, None] < high) & (low < high[:, None])
        assert across.sum() == len(flat), "no text covers another one"


@pytest.mark.docs
def test_the_same_records_make_the_same_picture(whole):
    assert heat_map_svg(heat_map(tables(list(reversed(synthetic_records()))))) == heat_map_svg(whole)


def test_what_a_record_says_stays_text():
    ET.fromstring(heat_map_svg(heat_map(tables([make_record("a&b<c>", card={"title": "<script>alert(1)</script>"})]))))


def luminance(colour: str) -> float:
    """Relative luminance as WCAG 2 defines it."""
    shares = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [share / 12.92 if share <= 0.04045 else ((share + 0.055) / 1.055) ** 2.4 for share in shares]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_shades_darken_in_steps_and_leave_text_readable():
    grey = [luminance(fill) for fill in SHADES]
    assert grey == sorted(grey, reverse=True), "print and every eye keep the order"
    for at, found in enumerate(grey):
        contrast = 1.05 / (found + 0.05) if at >= DARK_FROM else (found + 0.05) / 0.05
        assert contrast >= 4.5, SHADES[at]


def test_the_picture_follows_a_dark_page(whole):
    text = heat_map_svg(whole)
    (rules,) = re.findall(r"@media \(prefers-color-scheme:dark\)\{(.*)\}</style>", text)
    assert PAPER in rules and INK in rules
    assert not any(fill in rules for fill in (*SHADES, "#fefefe", "#000000")), "shaded cells and the text in them stay as they are"
