"""Linformer over two and four processes against one: outputs, all gradients, collectives and their bytes, state, refusals."""

from __future__ import annotations

from typing import Any

import parallel_cases
import pytest
from parallel_cases import BATCH, COUNTED, DIM, HEADS, LAYERS, LENGTH
from together import together

from attn_zoo.contract import UnsupportedError
from attn_zoo.layer import MultiHeadAttention
from attn_zoo.parallel import parallelise
from attn_zoo.parallel.slices import slices

RANKS = (2, 4)
FLOAT = 4


@pytest.fixture(scope="module")
def found() -> dict[int, list[dict[str, dict[str, Any]]]]:
    """Results of each process, by the number of processes that share the sequence."""
    by_process = together(4, parallel_cases.run)
    return {n: [process[n] for process in by_process] for n in RANKS}


def differences(found, ranks: int, case: str) -> dict[str, float]:
    """Return the largest difference over the processes, by what was compared."""
    by_process = [process[case] for process in found[ranks]]
    for seen in by_process:
        assert "failed" not in seen, seen["failed"]
    return {what: max(seen[what] for seen in by_process) for what in by_process[0]}


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("case", [*LAYERS, "headwise without a mask", "no_sharing without a mask", "mean without a mask"])
def test_a_layer_is_exact_forward_and_backward(found, ranks, case):
    gaps = differences(found, ranks, case)
    assert {"output", "tokens", "out.weight"} < set(gaps)
    assert max(gaps.values()) < 1e-12, gaps


@pytest.mark.parametrize("ranks", RANKS)
def test_a_layer_in_float32_is_exact_to_rounding(found, ranks):
    gaps = differences(found, ranks, "float32")
    assert 0 < max(gaps.values()) < 2e-6, gaps


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("layer", ["headwise_compress_first", "no_sharing", "mean", "max", "convolution"])
def test_a_sequence_that_ends_early_leaves_some_processes_without_tokens(found, ranks, layer):
    gaps = differences(found, ranks, f"shorter {layer}")
    assert max(gaps.values()) < 1e-12, gaps


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("case", ["encoder", "encoder layerwise", "encoder by layer"])
def test_an_encoder_trains_as_in_one_process(found, ranks, case):
    gaps = differences(found, ranks, case)
    assert "blocks.0.attention.mechanism.own_maps.0.weight" in gaps
    assert max(gaps.values()) < 1e-12, gaps


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("layer", COUNTED)
def test_one_all_reduce_each_way_of_as_many_bytes_as_the_formula_says(found, ranks, layer):
    r, d = 4, DIM // HEADS
    windows = {"mean": r, "convolution": r}.get(layer, 0)
    numbers = {
        "headwise_project_first": 2 * HEADS * r * d,
        "headwise_compress_first": 2 * r * (DIM + 1),
        "key_value": r * (DIM + 1),
        "uneven_heads": 2 * (3 + 5 + 3) * d,
        "mean": r * (DIM + 1),
        "convolution": 2 * HEADS * r * d,
    }[layer]
    nbytes = BATCH * (numbers + windows + 1) * FLOAT
    for process in found[ranks]:
        seen = process[f"counted {layer}"]
        assert seen["forward"] == seen["backward"] == [("allreduce_.default", nbytes)]
        assert seen["said"] == nbytes


@pytest.mark.parametrize("ranks", RANKS)
def test_a_gradient_that_is_missing_counts_as_zero_unless_all_miss_it(found, ranks):
    for process in found[ranks]:
        assert process["unused weight"] == {"some": [[1.0, 1.0], [1.0, 1.0]], "never": True}


@pytest.mark.parametrize("ranks", RANKS)
def test_the_collective_can_be_differentiated_twice(found, ranks):
    assert max(differences(found, ranks, "second derivative").values()) < 1e-12


@pytest.mark.parametrize("ranks", RANKS)
def test_what_is_not_offered_is_refused_by_name(found, ranks):
    said = found[ranks][0]["refusals"]
    wanted = {
        "another mechanism": "softmax cannot be cut along the sequence; this is offered for linformer",
        "window": "linformer_window cannot be cut",
        "cross": "built with a context",
        "convolved": "build the model with short_convolution=0",
        "nothing": "Linear holds no MultiHeadAttention",
        "twice": "only a plain MultiHeadAttention can",
        "unjoined": "call attn_zoo.join_layers(model) first",
        "few tokens": f"too few for {ranks} processes",
        "windows of heads": "windows that begin at different positions",
        "few windows": f"{LENGTH} tokens in windows of {LENGTH} make 1 pieces, too few for {ranks}",
        "whole sequence": f"got {LENGTH}; give it tokens[:, layer.positions]",
        "context": "leave context and remembered out",
        "remember": "does not remember keys",
        "resize": "cannot be resized",
        "gradients": "no sequence-parallel layer",
        "state": "no sequence-parallel layer",
    }
    for what, words in wanted.items():
        assert words in said[what] and said[what].startswith("UnsupportedError"), f"{what}: {said[what]}"
    assert said["mask of the whole"].startswith("ValueError: linformer: key_valid must be boolean of the shape of this process's")
    assert set(said) == {*wanted, "mask of the whole"}


def test_without_a_process_group_nothing_is_cut():
    with pytest.raises(ValueError, match="start the script by torchrun"):
        parallelise(MultiHeadAttention(DIM, HEADS, "linformer", length=LENGTH))


def test_slices_are_as_even_as_whole_windows_allow():
    assert slices(22, 4) == (slice(0, 6), slice(6, 12), slice(12, 17), slice(17, 22))
    assert slices(22, 2, window=6) == (slice(0, 12), slice(12, 22))
    assert slices(22, 3, window=6) == (slice(0, 12), slice(12, 18), slice(18, 22))
    with pytest.raises(UnsupportedError, match="3 tokens in windows of 1 make 3 pieces, too few for 4 processes"):
        slices(3, 4)
