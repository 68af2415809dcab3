"""The largest batch, tried and derived."""

from __future__ import annotations

import pytest

from attn_zoo.count.memory import by_line, by_trying


@pytest.mark.parametrize("most", [0, 1, 2, 3, 7, 8, 9, 1000, 1023, 1024])
def test_trying_finds_the_edge_exactly_and_within_few_trials(most):
    tried: list[int] = []

    def fits(batch: int) -> bool:
        tried.append(batch)
        return batch <= most

    assert by_trying(fits) == most
    assert len(tried) <= 2 * most.bit_length() + 1


@pytest.mark.parametrize("most", [0, 1, 2, 63, 64, 99, 100, 1000])
def test_nothing_is_tried_twice_or_above_the_limit(most):
    tried: list[int] = []

    def fits(batch: int) -> bool:
        tried.append(batch)
        return batch <= most

    assert by_trying(fits, limit=100) == min(most, 100)
    assert max(tried) <= 100
    assert len(set(tried)) == len(tried)


def test_the_line_gives_the_largest_batch_within_the_budget():
    """Of 1,000 bytes and 100 for each sequence."""
    assert [by_line((4, 8), (1400, 1800), budget) for budget in (2000, 1999, 900)] == [10, 9, 0]
    with pytest.raises(ValueError, match="must grow"):
        by_line((1, 2), (50, 50), 1000)
