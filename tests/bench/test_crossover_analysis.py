"""Crossovers: located by hand, intervals that cover the truth, and what is not compared."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from attn_zoo.bench.experiments.crossover import FITTED_LENGTHS, Crossover, baseline, crossover, exponent, last_fall, round_length
from attn_zoo.bench.measurement import Cell
from attn_zoo.count.subjects import Subject


def point(label: str, length: int, seconds: Any = (), **more: Any) -> Cell:
    failures, bytes, backend = (more.pop(name, None) for name in ("failures", "bytes", "backend"))
    cell = Cell(label, "forward", length, subject=Subject("softmax", {}, "sdpa", backend), **more)
    kept = {"seconds": list(seconds), "held_bytes": [0] if bytes else [], "peak_bytes": [bytes] if bytes else []}
    cell.values.update({quantity: values for quantity, values in kept.items() if values})
    cell.failures.update(failures or {})
    return cell


def pair(length: int, ours: Any, theirs: Any) -> list[Cell]:
    return [point("ours", length, ours), point("softmax", length, theirs, role="sdpa")]


def time_crossover(points: list[Cell]) -> Crossover:
    found = crossover(points, "ours", "sdpa", "forward", "time")
    assert found is not None
    return found


def test_a_crossover_by_hand():
    """Quotients 2 at 100 and 1/2 at 400: half way in log-log is 200."""
    points = pair(100, [2.0] * 9, [1.0] * 9) + pair(400, [0.5] * 9, [1.0] * 9)
    found = time_crossover(points)
    assert [found.at, found.low, found.high] == pytest.approx([200, 200, 200])
    assert (found.shortest, found.longest, found.exact) == (100, 400, False)
    rounds = [1.0, 1.0, 2.0, 2.0, 2.0, 2.0, 2.0, 4.0, 4.0]  # median 2, second smallest 1, second largest 4
    found = time_crossover(pair(100, rounds, [1.0] * 9) + pair(400, [0.5] * 9, [1.0] * 9))
    assert found.at == pytest.approx(200)
    assert found.low == pytest.approx(100), "where the lower bound, which is 1 at 100, leaves 1"
    assert found.high == pytest.approx(100 * 4 ** (2 / 3)), "log 4 to log 1/2: two thirds of the way"
    assert found.describe() == "200 (100 to 250)"


def test_rounds_are_paired():
    """A round that slows both down says nothing of the quotient."""
    slow = [1.0, 50.0, 2.0, 9.0, 1.0, 3.0, 7.0]
    found = time_crossover(pair(100, [2 * s for s in slow], slow) + pair(400, [0.5 * s for s in slow], slow))
    assert found.low == pytest.approx(200) == found.high


@pytest.mark.parametrize(
    ("logs", "at"),
    [
        ([1.0, 1.0, -1.0], 200 * 2**0.5),
        ([3.0, -1.0, -2.0], 100 * 2**0.75),
        ([-1.0, -1.0, -1.0], 0.0),
        ([-1.0, -1.0, 0.0], math.inf),
        ([1.0, -1.0, 1.0], math.inf),
        ([-1.0, 1.0, -1.0], 200 * 2**0.5),
        ([0.0, -1.0, -1.0], 100.0),
        ([1.0, math.inf, -1.0], 400.0),
        ([1.0, -math.inf, -math.inf], 200.0),
    ],
)
def test_the_last_fall_counts(logs, at):
    assert last_fall([100, 200, 400], logs) == pytest.approx(at)


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (Crossover(0.0, 0.0, 0.0, 512, 16384, False), "from 512 on"),
        (Crossover(0.0, 0.0, 640.0, 512, 16384, False), "≤ 512 (≤ 512 to 640)"),
        (Crossover(math.inf, math.inf, math.inf, 512, 16384, False), "never up to 16,384"),
        (Crossover(math.inf, 9411.0, math.inf, 512, 16384, False), "> 16,384 (9,400 to > 16,384)"),
        (Crossover(1234.0, 987.0, 1999.0, 512, 16384, False), "1,230 (990 to 2,000)"),
        (Crossover(1234.0, 1234.0, 1234.0, 512, 16384, True), "1,230"),
        (Crossover(513.0, 0.0, 16390.0, 512, 16384, False), "512 (≤ 512 to 16,384)"),
    ],
)
def test_crossovers_in_words(found, words):
    assert found.describe() == words


def test_lengths_are_rounded_to_what_is_known():
    rounded = {7.2: 7, 96.0: 96, 104.0: 104, 196.4: 196, 204.0: 200, 1049.0: 1050, 1996.0: 2000, 7777.0: 7800}
    assert {n: round_length(n) for n in rounded} == rounded


def test_the_interval_covers_the_true_crossover():
    """Costs n^1 and n^2/1500 with 8 % noise on each timing and rounds that are slow altogether: at 1,500 they meet."""
    rng = np.random.default_rng(5)
    lengths, covered = (256, 512, 1024, 2048, 4096), 0
    for _ in range(150):
        points = []
        for n in lengths:
            common, noise = rng.uniform(1, 3, 12), rng.lognormal(0, 0.08, (2, 12))
            points += pair(n, n * common * noise[0], n**2 / 1500 * common * noise[1])
        found = time_crossover(points)
        covered += found.low <= 1500 <= found.high
    assert covered >= 0.95 * 150


def test_who_runs_out_of_memory_has_lost():
    lost: dict[str, Any] = {"failures": {"seconds": "OOM: scripted", "peak_bytes": "OOM: scripted"}}
    ran = [1.0] * 6
    both = pair(100, [2.0] * 6, ran)
    theirs = [point("ours", 400, ran), point("softmax", 400, role="sdpa", **lost)]
    assert time_crossover(both + theirs).at == 400, "somewhere up to there; where, nobody measured"
    ours = [point("ours", 400, **lost), point("softmax", 400, ran, role="sdpa")]
    assert time_crossover(pair(100, ran, [2.0] * 6) + ours).at == math.inf
    neither = [point("ours", 400, **lost), point("softmax", 400, role="sdpa", **lost)]
    assert crossover(both + neither, "ours", "sdpa", "forward", "time") is None, "one length is left"


def test_what_was_stopped_or_has_too_few_rounds_is_not_compared():
    points = pair(100, [2.0] * 6, [1.0] * 6) + pair(200, [0.5] * 6, [1.0] * 6)
    stopped = point("softmax", 400, role="sdpa", failures={"seconds": "time limit: scripted"})
    assert time_crossover([*points, point("ours", 400, [1.0] * 6), stopped]).longest == 200
    assert time_crossover(points + pair(400, [0.5] * 6, [1.0] * 5)).longest == 200
    assert time_crossover(points + pair(400, [0.5] * 6, [1.0] * 6)).longest == 400


def test_memory_is_exact():
    points = []
    for n, ours, theirs in ((100, 4, 2), (400, 8, 16)):
        points += [point("ours", n, bytes=ours), point("softmax", n, role="sdpa", bytes=theirs)]
    memory = crossover(points, "ours", "sdpa", "forward", "memory")
    assert memory is not None and memory.at == pytest.approx(200) and memory.describe() == "200"
    assert crossover(points, "ours", "sdpa", "forward", "time") is None


def test_the_best_back_end_is_taken_at_each_length():
    points = [
        point(f"softmax:sdpa ({name})", n, [seconds] * 6, role="sdpa", backend=name)
        for name, both in (("flash", (3.0, 4.0)), ("efficient", (2.0, 5.0)))
        for n, seconds in zip((100, 200), both, strict=True)
    ] + [point("softmax:sdpa (cudnn)", n, role="sdpa", failures={"seconds": "failed: no kernel"}) for n in (100, 200)]
    assert [cell.subject and cell.subject.backend for cell in baseline(points, "sdpa", "forward", "time")] == [
        "efficient",
        "flash",
    ]


def test_exponents_are_of_the_longest_lengths():
    points = [point("ours", n, [1.0 if n < 100 else n**2.0]) for n in (10, 20, 100, 200, 400, 800)]
    assert exponent(points, "time") == pytest.approx(2.0) and FITTED_LENGTHS == 4
    assert exponent(points[:2], "time") is None
