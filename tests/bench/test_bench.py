"""The bench: what it holds, how it bounds CUDA's memory, and that it keeps inference and training apart."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace

import torch

from attn_zoo.bench.bench import Bench
from attn_zoo.count.rigs import Subject, build_layer, random_tokens

LAYER = partial(build_layer, Subject("softmax", {}, "sdpa"), 8, 2)
TOKENS = partial(random_tokens, 8)


def test_what_is_held_before_a_step_by_hand():
    assert Bench(LAYER, TOKENS).held("forward", 3, 5) == 4 * (4 * (8 * 8 + 8) + 3 * 5 * 8)
    assert Bench(LAYER, TOKENS, precision="bf16").held("forward", 3, 5) == 2 * (4 * (8 * 8 + 8) + 3 * 5 * 8)


def test_inference_and_training_have_layers_of_their_own_which_stay():
    bench = Bench(LAYER, TOKENS)
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
    assert Bench(LAYER, TOKENS).largest_batch("forward", 5, 16 * 2**30) == 37
    assert fractions == [0.25, 1.0], "and the bound is lifted afterwards"
