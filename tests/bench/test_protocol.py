"""The timing protocol: it survives JSON, orders rounds and rotates inputs."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import fields
from types import SimpleNamespace
from typing import Any

import torch

from attn_zoo.bench.protocol import MOST_COPIES, TimingProtocol

OTHERS: dict[str, Any] = {"device": "cuda", "rounds": 7, "seed": 2, "warmup": 3, "seconds": 0.5}
OTHERS |= {"most_repeats": 10, "rotate_bytes": 2**20, "threads": 3}


def test_it_survives_json_also_that_of_earlier_versions():
    protocol = TimingProtocol(**OTHERS)
    assert {field.name for field in fields(TimingProtocol)} == set(OTHERS)
    stored = json.loads(json.dumps(protocol.to_dict()))
    assert TimingProtocol.from_dict({**stored, "order": "in turn"}) == protocol != TimingProtocol()


def test_rounds_are_interleaved_and_their_order_is_a_function_of_seed_and_round():
    items = ["A", "B", "C"]
    rounds = [TimingProtocol().ordered(items, turn) for turn in range(300)]
    assert all(sorted(visited) == items for visited in rounds), "each round visits each once"
    assert rounds == [TimingProtocol().ordered(items, turn) for turn in range(300)]
    assert rounds != [TimingProtocol(seed=2).ordered(items, turn) for turn in range(300)]
    assert min(Counter(visited[0] for visited in rounds).values()) > 70, "and everyone is first about as often"


def test_the_protocol_of_cuda_rotates_through_its_second_level_cache(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(L2_cache_size=50 * 2**20))
    protocol = TimingProtocol.on("cuda", rounds=3)
    assert (protocol.rotate_bytes, protocol.warmup, protocol.rounds, protocol.threads) == (50 * 2**20, 2, 3, None)
    assert TimingProtocol.on("cpu").threads == torch.get_num_threads()


def test_between_two_visits_of_a_copy_more_is_read_than_the_cache_holds():
    protocol = TimingProtocol(rotate_bytes=1000)
    for size in (1, 7, 300, 999, 1000, 5000):
        assert (protocol.copies(size) - 1) * size >= 1000 > (protocol.copies(size) - 2) * size
    assert TimingProtocol(rotate_bytes=2**30).copies(1) == MOST_COPIES
    assert TimingProtocol().copies(300) == TimingProtocol(rotate_bytes=1000).copies(0) == 1
