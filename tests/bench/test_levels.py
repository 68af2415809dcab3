"""Levels of measurement: every level runs, is given what it reads, and holds what is counted by hand."""

from __future__ import annotations

import copy

import pytest
import torch

from attn_zoo.bench.bench import Bench
from attn_zoo.bench.protocol import TimingProtocol
from attn_zoo.count.rigs import LEVELS, Sizes, Subject, rig_for


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("attention", ["softmax", "longformer", "reformer"])
def test_every_level_runs_and_leaves_weights_and_gradients_as_they_were(level, attention):
    rig = rig_for(level, Subject(attention, {}), Sizes(16, 2))
    bench = Bench(rig.build, inputs=rig.inputs, protocol=TimingProtocol(seconds=0.0))
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
    reformer = rig_for("mechanism", Subject("reformer", {}), Sizes(16, 2))
    assert [tuple(t.shape) for t in reformer.inputs(3, 32, torch.float32)] == [(3, 2, 32, 8)] * 2
    softmax = rig_for("mechanism", Subject("softmax", {}), Sizes(16, 2))
    assert len(softmax.inputs(3, 32, torch.float32)) == 3
    assert not list(softmax.build(32).parameters())


def test_what_a_block_holds_before_a_step_by_hand():
    rig = rig_for("block", Subject("softmax", {}), Sizes(8, 2))
    bench = Bench(rig.build, inputs=rig.inputs)
    parameters = 4 * (8 * 8 + 8) + (8 * 16 + 16) + (16 * 8 + 8) + 2 * 2 * 8
    assert bench.held("forward", 3, 5) == 4 * (parameters + 3 * 5 * 8)
    assert bench.held("training", 3, 5) == 4 * (parameters + 2 * 3 * 5 * 8)
