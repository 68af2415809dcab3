"""Timers and statistics: quartiles by hand, paired quotients, and what counts as unstable."""

from __future__ import annotations

import pytest
import torch

from attn_zoo.bench import timing
from attn_zoo.bench.timing import quartiles, quotients, seconds_of, seconds_of_parts, unstable

CPU = torch.device("cpu")


def test_quartiles_by_hand():
    assert quartiles([5.0, 1.0, 4.0, 2.0, 3.0]) == (2.0, 3.0, 4.0)
    assert quartiles([1.0, 2.0]) == (1.25, 1.5, 1.75)
    assert quartiles([7.0]) == (7.0, 7.0, 7.0)
    with pytest.raises(ValueError, match="at least one"):
        quartiles([])


def test_quotients_are_of_the_same_round_so_that_a_slow_round_cancels():
    slow = [1.0, 10.0, 1.0]
    assert quotients([4 * s for s in slow], [2 * s for s in slow]) == [2.0, 2.0, 2.0]
    assert quotients([4.0, 6.0], [2.0]) == [2.0], "a round that one side did not finish has no quotient"


def test_unstable_is_more_than_a_fifth_of_the_median():
    assert not unstable((0.9, 1.0, 1.09))
    assert unstable((0.9, 1.0, 1.11))


class Clock:
    """Time that only steps advance."""

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(timing, "time", clock)
    return clock


@pytest.mark.parametrize(("at_least", "timed"), [(0.0, 1), (10.0, 2), (20.0, 4), (1e9, timing.MOST_REPEATS)])
def test_a_short_step_is_repeated_and_the_first_is_not_timed(clock, at_least, timed):
    steps = 0

    def step() -> None:
        nonlocal steps
        steps += 1
        clock.now += 5.0 if steps == 1 else 1.0

    assert seconds_of(step, CPU, at_least) == 1.0
    assert steps == 1 + timed


def test_each_part_gets_what_the_one_before_it_returned(clock):
    seen: list[float] = []

    def first() -> torch.Tensor:
        clock.now += 1.0
        return torch.full((), 3.0)

    def second(result: torch.Tensor) -> None:
        seen.append(float(result))
        clock.now += 3.0

    assert seconds_of_parts((lambda _: first(), second), CPU, 8.0) == (1.0, 3.0)
    assert seen == [3.0] * 3, "one to warm up and two of 4 s each"


def test_on_cuda_events_take_the_time_in_milliseconds(clock, monkeypatch):
    class Event:
        def __init__(self, *, enable_timing: bool) -> None:
            assert enable_timing

        def record(self) -> None:
            self.at = clock.now

        def elapsed_time(self, later: Event) -> float:
            return 1e3 * (later.at - self.at)

    waited: list[object] = []
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "synchronize", waited.append)

    def advance(seconds: float) -> torch.Tensor:
        clock.now += seconds
        return torch.zeros(())

    device = torch.device("cuda", 0)
    assert seconds_of(lambda: advance(2.0), device, 6.0) == pytest.approx(2.0)
    assert waited, "the clock is read only when the device is done"
    halves = seconds_of_parts((lambda _: advance(1.0), lambda _: advance(3.0)), device, 8.0)
    assert halves == pytest.approx((1.0, 3.0))
