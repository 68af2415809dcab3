"""The bench: what it times and holds, how it visits copies of inputs and bounds CUDA's memory, and timers by a scripted clock."""

from __future__ import annotations

import copy
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from attn_zoo.bench import bench as bench_module
from attn_zoo.bench.bench import Bench, largest_that_fits, seconds_of_parts
from attn_zoo.bench.protocol import TimingProtocol
from attn_zoo.count.subjects import SCOPES, Subject, build_module, random_inputs

CPU = torch.device("cpu")


def bench_of(scope: str = "layer", attention: str = "softmax", dim: int = 8, **more: Any) -> Bench:
    what = (scope, Subject(attention, {}, "sdpa" if attention == "softmax" else "auto"), dim, 2)
    return Bench(partial(build_module, *what), partial(random_inputs, *what), **more)


@pytest.mark.parametrize("scope", SCOPES)
@pytest.mark.parametrize("attention", ["softmax", "longformer", "reformer"])
def test_every_scope_runs_and_leaves_weights_and_gradients_as_they_were(scope, attention):
    bench = bench_of(scope, attention, 16, protocol=TimingProtocol(seconds=0.0))
    module = bench._module("training", 32)
    before = copy.deepcopy(module.state_dict())
    parts = bench.parts("training", 2, 32)
    assert len(parts) == 2 and min(parts) > 0
    assert len(bench.parts("forward", 2, 32)) == 1
    for name, tensor in module.state_dict().items():
        torch.testing.assert_close(tensor, before[name], rtol=0, atol=0)
    assert all(p.grad is None for p in module.parameters())
    assert bench.peak("training", 2, 32) > bench.peak("forward", 2, 32) > 0


def test_a_mechanism_is_given_what_it_reads_and_no_projection_is_measured():
    reformer = random_inputs("mechanism", Subject("reformer", {}), 16, 2, 3, 32, torch.float32)
    assert [tuple(t.shape) for t in reformer] == [(3, 2, 32, 8)] * 2
    softmax = Subject("softmax", {})
    assert len(random_inputs("mechanism", softmax, 16, 2, 3, 32, torch.float32)) == 3
    assert not list(build_module("mechanism", softmax, 16, 2, 32).parameters())


def test_what_is_held_before_a_step_by_hand():
    parameters = 4 * (8 * 8 + 8)
    assert bench_of().held("forward", 3, 5) == 4 * (parameters + 3 * 5 * 8)
    assert bench_of().held("training", 3, 5) == 4 * (parameters + 2 * 3 * 5 * 8)
    assert bench_of(precision="bf16").held("forward", 3, 5) == 2 * (parameters + 3 * 5 * 8)


def test_inference_and_training_have_layers_of_their_own_which_stay():
    bench = bench_of()
    forward, training = (bench._module(kind, 5) for kind in ("forward", "training"))
    assert forward is bench._module("forward", 5) is not training
    assert (forward.training, training.training) == (False, True)
    assert bench._module("forward", 6) is not forward
    assert all(torch.equal(a, b) for a, b in zip(forward.parameters(), training.parameters(), strict=True))


def test_the_largest_batch_is_sought_within_the_budget_alone(monkeypatch):
    fractions: list[float] = []
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(total_memory=64 * 2**30))
    monkeypatch.setattr(torch.cuda, "set_per_process_memory_fraction", lambda fraction, device: fractions.append(fraction))
    monkeypatch.setattr(Bench, "_fits", lambda self, kind, batch, length: fractions[-1] == 0.25 and batch <= 37)
    assert bench_of().largest_batch("forward", 5, 16 * 2**30) == 37
    assert fractions == [0.25, 1.0], "and the bound is lifted afterwards"


@pytest.mark.parametrize("most", [0, 1, 2, 3, 7, 8, 63, 64, 99, 100, 1000])
def test_trying_finds_the_edge_within_few_trials_and_nothing_is_tried_twice_or_above_the_limit(most):
    tried: list[int] = []

    def fits(batch: int) -> bool:
        tried.append(batch)
        return batch <= most

    assert largest_that_fits(fits, limit=100) == min(most, 100)
    assert len(set(tried)) == len(tried) <= 2 * most.bit_length() + 1 and max(tried) <= 100


class Visited(nn.Module):
    """Remembers where the tokens lie that it was given."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))
        self.seen: list[int] = []

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        self.seen.append(tokens.data_ptr())
        return self.weight * tokens


@pytest.mark.parametrize("kind", ["forward", "training"])
def test_a_bench_visits_equal_copies_in_turn(kind):
    module, token = Visited(), 4 * 8 * 4
    protocol = TimingProtocol(rotate_bytes=2 * token, seconds=0.01, most_repeats=7, warmup=2)
    bench = Bench(lambda length: module, lambda batch, length, dtype: (torch.randn(batch, length, 8),), protocol=protocol)
    bench.parts(kind, 1, 4)
    assert len(module.seen) == 2 + 7
    assert len(set(module.seen)) == 3
    assert module.seen == (module.seen[:3] * 3)[:9]
    module.seen.clear()
    bench.peak(kind, 1, 4)
    assert len(set(module.seen)) == 1, "memory is that of one copy"


class Clock:
    """Time that only steps advance."""

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        return self.now

    def advance(self, seconds: float) -> torch.Tensor:
        self.now += seconds
        return torch.full((), seconds)


@pytest.fixture
def clock(monkeypatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(bench_module, "time", clock)
    return clock


@pytest.mark.parametrize(("seconds", "timed"), [(0.0, 1), (10.0, 2), (20.0, 4), (1e9, TimingProtocol().most_repeats)])
def test_a_short_step_is_repeated_and_the_first_is_not_timed(clock, seconds, timed):
    steps = 0

    def step(_: object) -> None:
        nonlocal steps
        steps += 1
        clock.advance(5.0 if steps == 1 else 1.0)

    assert seconds_of_parts((step,), CPU, TimingProtocol(seconds=seconds)) == (1.0,)
    assert steps == 1 + timed


def test_each_part_gets_what_the_one_before_it_returned(clock):
    seen: list[float] = []

    def second(result: torch.Tensor) -> None:
        seen.append(float(result))
        clock.advance(3.0)

    assert seconds_of_parts((lambda _: clock.advance(1.0), second), CPU, TimingProtocol(seconds=8.0)) == (1.0, 3.0)
    assert seen == [1.0] * 3, "one to warm up and two of 4 s each"


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
    halves = (lambda _: clock.advance(1.0), lambda _: clock.advance(3.0))
    assert seconds_of_parts(halves, torch.device("cuda", 0), TimingProtocol(seconds=8.0)) == pytest.approx((1.0, 3.0))
    assert waited, "the clock is read only when the device is done"
