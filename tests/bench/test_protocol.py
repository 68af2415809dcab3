"""The timing protocol: a value that says all about a timing, orders rounds, rotates inputs and marks what is unstable."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import FrozenInstanceError, fields, replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from attn_zoo.bench.bench import Bench
from attn_zoo.bench.protocol import ALLOCATORS, MOST_COPIES, ORDERS, TimingProtocol
from attn_zoo.bench.tables import spread
from attn_zoo.count.rigs import random_tokens

OTHERS: dict[str, Any] = {
    "device": "cuda",
    "rounds": 7,
    "order": "in turn",
    "seed": 2,
    "warmup": 3,
    "seconds": 0.5,
    "most_repeats": 10,
    "rotate_bytes": 2**20,
    "threads": 3,
    "allocator": "keep",
}


def test_it_is_frozen_and_survives_json():
    protocol = replace(TimingProtocol(), **OTHERS)
    with pytest.raises(FrozenInstanceError):
        protocol.rounds = 1  # type: ignore[misc]
    stored = json.loads(json.dumps(protocol.to_dict()))
    assert TimingProtocol.from_dict(stored) == protocol
    assert stored["clock"] == "events on the stream" and stored["digest"] == protocol.digest()


def test_every_field_is_part_of_the_digest():
    plain = TimingProtocol()
    assert {f.name for f in fields(TimingProtocol)} == set(OTHERS)
    changed = [replace(plain, **{name: value}) for name, value in OTHERS.items()]
    assert len({protocol.digest() for protocol in [plain, *changed]}) == 1 + len(OTHERS)


def test_rounds_are_interleaved_and_their_order_is_a_function_of_seed_and_round():
    items = ["A", "B", "C"]
    rounds = {order: [TimingProtocol(order=order).ordered(items, turn) for turn in range(300)] for order in ORDERS}
    assert all(sorted(visited) == items for order in ORDERS for visited in rounds[order]), "each round visits each once"
    assert rounds["in turn"] == [items] * 300
    assert rounds["there and back"][:3] == [["A", "B", "C"], ["C", "B", "A"], ["A", "B", "C"]]
    assert rounds["shuffled"] == [TimingProtocol().ordered(items, turn) for turn in range(300)]
    assert rounds["shuffled"] != [TimingProtocol(seed=2).ordered(items, turn) for turn in range(300)]
    firsts = Counter(visited[0] for visited in rounds["shuffled"])
    assert min(firsts.values()) > 70, "and everyone is first about as often"


def test_statistic_and_mark():
    assert spread([5.0, 1.0, 4.0, 2.0, 3.0], 1) == "3.0 ± 1.0 unstable"
    assert spread([0.92, 1.0, 1.10], 3) == "1.000 ± 0.045"
    assert spread([0.76, 1.0, 1.20], 3) == "1.000 ± 0.110 unstable"


def test_the_protocol_of_cuda_rotates_through_its_second_level_cache(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(L2_cache_size=50 * 2**20))
    protocol = TimingProtocol.on("cuda", rounds=3)
    assert (protocol.rotate_bytes, protocol.warmup, protocol.rounds, protocol.threads) == (50 * 2**20, 2, 3, None)
    assert TimingProtocol.on("cpu").threads == torch.get_num_threads()
    assert TimingProtocol(allocator="keep").environment() == ALLOCATORS["keep"] != {}


def test_between_two_visits_of_a_copy_more_is_read_than_the_cache_holds():
    protocol = TimingProtocol(rotate_bytes=1000)
    for size in (1, 7, 300, 999, 1000, 5000):
        assert (protocol.copies(size) - 1) * size >= 1000 > (protocol.copies(size) - 2) * size
    assert TimingProtocol(rotate_bytes=2**30).copies(1) == MOST_COPIES
    assert TimingProtocol().copies(300) == TimingProtocol(rotate_bytes=1000).copies(0) == 1


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
    bench = Bench(lambda length: module, partial(random_tokens, 8), protocol=protocol)
    bench.parts(kind, 1, 4)
    assert len(module.seen) == 2 + 7
    assert len(set(module.seen)) == 3
    assert module.seen == (module.seen[:3] * 3)[:9]
    module.seen.clear()
    bench.peak(kind, 1, 4)
    assert len(set(module.seen)) == 1, "memory is that of one copy"
