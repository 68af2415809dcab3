"""Shade begins at the best control, never at chance, and says so where a task separates nothing."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from make import PERPLEXITY, records_of

from attn_zoo.leaderboard import Table, tables
from attn_zoo.leaderboard.heatmap import heat_map, unshaded


def table_of(scores: Mapping[str, float | tuple[float, ...]], **changes) -> Table:
    """A table of rows with these scores, one a seed."""
    rows = {name: found if isinstance(found, tuple) else (found,) for name, found in scores.items()}
    (table,) = tables(records_of(rows, **changes))
    return table


def shades(table: Table) -> Mapping[str, float]:
    """Shades by label, without cells that have none."""
    cells = [line.cells[0] for line in heat_map([table]).lines]
    return {cell.row.label: cell.shade for cell in cells if cell.row and cell.shade is not None}


def test_shade_is_nothing_at_the_best_control_and_deepest_at_the_best_mechanism():
    table = table_of({"softmax": 0.9, "linformer": 0.7, "performer": 0.45, "uniform": 0.5, "none": 0.2})
    assert shades(table) == pytest.approx({"softmax": 1.0, "linformer": 0.5, "performer": 0.0, "uniform": 0.0, "none": 0.0})


def test_chance_is_no_lower_end():
    table = table_of({"softmax": 0.9, "linformer": 0.6, "uniform": 0.5}, chance=0.1)
    assert shades(table)["linformer"] == pytest.approx(0.25)


def test_lower_is_better_turns_the_scale_round():
    table = table_of({"softmax": 8.0, "linformer": 13.0, "performer": 20.0, "uniform": 18.0, "none": 30.0}, card=PERPLEXITY)
    assert shades(table) == pytest.approx({"softmax": 1.0, "linformer": 0.5, "performer": 0.0, "uniform": 0.0, "none": 0.0})


def test_without_a_control_or_with_one_that_is_not_beaten_nothing_is_shaded():
    for scores, why in (
        ({"softmax": 0.9, "linformer": 0.6}, "no control was run"),
        ({"softmax": 0.9, "linformer": 0.6, "uniform": 0.95}, "better than the control uniform"),
        ({"softmax": 0.975, "linformer": 0.9, "uniform": 0.969}, "no mechanism is better than the control uniform by a point"),
        ({"uniform": 0.9}, "no mechanism has a score"),
    ):
        table = table_of(scores)
        assert why in (unshaded(table, table.rows) or "") and shades(table) == {}


def test_what_noise_explains_is_not_shaded():
    noisy = table_of({"softmax": (0.50, 0.60, 0.70), "uniform": (0.55, 0.55, 0.55)})
    assert "no better than the best control, uniform" in (unshaded(noisy, noisy.rows) or "") and shades(noisy) == {}
    clear = table_of({"softmax": (0.70, 0.71, 0.72), "uniform": (0.55, 0.55, 0.55)})
    assert unshaded(clear, clear.rows) is None and shades(clear)["softmax"] == 1.0
    turned = table_of({"softmax": (5.0, 5.1, 5.2), "uniform": (9.0, 9.0, 9.0)}, card=PERPLEXITY)
    assert unshaded(turned, turned.rows) is None


def test_a_noisy_leader_hides_no_row_that_is_sure():
    scores = {"reformer": (0.6, 0.99, 0.99), "softmax": (0.85, 0.85, 0.851), "uniform": (0.6, 0.6, 0.61)}
    table = table_of(scores)
    verdicts = [row.verdict for row in table.rows if not row.control]
    assert verdicts == ["not distinguishable from the best", "best"]
    assert shades(table)["softmax"] > 0.9
