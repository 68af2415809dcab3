"""The kernels' measurement: floors by hand, what is timed and what is checked, settings and verdicts."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from attn_zoo.cli import main
from attn_zoo.cost.linformer_kernels import floors
from attn_zoo.cost.linformer_kernels.cases import cases
from attn_zoo.cost.linformer_kernels.floors import STATED, Size, floor_seconds
from attn_zoo.cost.linformer_kernels.setting import CUDA_DEFAULTS, Setting, cells, resolve_setting
from attn_zoo.cost.linformer_kernels.targets import judge

TOKENS = 65536

GIVEN: dict[str, Any] = {
    "device": "interpreter",
    "sharing": "headwise",
    "rounds": 2,
    "repeat_seconds": 0.0,
    "seconds": 100.0,
    "time_limit": 60.0,
    "workers": None,
}

CUDA = Setting("cuda", **CUDA_DEFAULTS, sharing="headwise", rounds=2, repeat_seconds=0.1)


def size(length: int, rows: int) -> Size:
    return Size(TOKENS // length, length, rows, dim=768, heads=12)


def microseconds(stages: Any, precision: str = "bf16") -> int:
    return round(1e6 * floor_seconds(stages, STATED, precision))


@pytest.mark.parametrize(
    ("length", "rows", "forward", "backward"),
    [
        (512, 128, 59, 105),
        (1024, 128, 53, 88),
        (4096, 128, 48, 82),
        (65536, 128, 47, 82),
        (512, 256, 70, 163),
        (4096, 256, 65, 163),
    ],
)
def test_floors_of_the_core_by_hand(length, rows, forward, backward):
    assert microseconds([floors.core("forward", size(length, rows))]) == forward
    assert microseconds([floors.core("backward", size(length, rows))]) == backward


@pytest.mark.parametrize(
    ("length", "rows", "roles", "forward", "training"),
    [
        (512, 128, 1, 332, 1009),
        (4096, 128, 1, 275, 832),
        (16384, 128, 1, 269, 818),
        (65536, 128, 1, 271, 823),
        (512, 256, 1, 399, 1243),
        (512, 128, 2, 338, None),
        (4096, 128, 2, 283, None),
        (65536, 128, 2, 276, None),
    ],
)
def test_floors_of_the_layer_by_hand(length, rows, roles, forward, training):
    assert microseconds(floors.layer("forward", size(length, rows), roles)) == forward
    if training is not None:
        assert microseconds(floors.layer("training", size(length, rows), roles)) == training


def test_terms_of_a_floor_one_by_one():
    stage = floors.core("forward", size(4096, 128))
    assert (stage.flops, stage.bytes, stage.exponentials) == (25769803776, 207618048, 100663296)
    assert microseconds([floors.projection("forward", size(4096, 256))]) == 33, "arithmetic"
    assert microseconds([floors.projection("forward", size(512, 256))]) == 35, "bytes"
    assert STATED.exponentials == pytest.approx(3.9e12, rel=0.01)
    slow = floors.Ceilings(half_flops=1e18, tf32_flops=1e18, bytes=1e18, exponentials=1e12)
    assert stage.seconds(slow, "bf16") == pytest.approx(100.663296e-6), "exponentials"
    assert STATED.flops("fp32") == STATED.tf32_flops / 3, "three products"
    fp32 = Size(16, 4096, 128, 768, 12, itemsize=4)
    assert floors.core("forward", fp32).bytes == 2 * stage.bytes
    assert floors.core("backward", fp32).bytes == 4 * (3 * TOKENS * 768 + 2 * 16 * 128 * 768) + 8 * 16 * 128 * 768


def test_what_is_timed():
    found = cells(CUDA)
    assert len({cell.key for cell in found}) == len(found)
    core = [cell for cell in found if cell.part == "core" and cell.precision == "bf16"]
    assert len(core) == 2 * 4 * 2 * 4, "r, n, forward and backward, ours and three of PyTorch's"
    assert {cell.rows for cell in found if cell.part == "projection"} == {128, 256, 512}, "one matrix, and two stacked"
    layers = {(cell.who, cell.rows) for cell in found if cell.part == "layer"}
    ours = {(who, rows) for who in ("triton", "sdpa") for rows in (128, 256)}
    assert layers == ours | {("flash", 0), ("cudnn", 0), ("efficient", 0)}
    spots = [cell for cell in found if cell.precision != "bf16"]
    assert {cell.length for cell in spots} == {4096}
    assert {cell.who for cell in spots if cell.precision == "fp32"} == {"triton", "efficient", "matmul"}


def test_every_size_of_ours_that_is_timed_is_checked():
    checked = {(case.part, case.precision, case.length, case.rows) for case in cases(CUDA)}
    for cell in cells(CUDA):
        if cell.who == "triton":
            assert (cell.part, cell.precision, cell.length, cell.rows) in checked
    awkward = [case for case in cases(CUDA) if case.length not in CUDA.lengths]
    assert any(case.length % 16 for case in awkward)
    assert any(case.layout == "gaps" for case in awkward)
    assert any(case.padded for case in awkward)
    assert any(case.dropout for case in awkward)
    assert any(case.rows > 256 for case in awkward)
    assert all(case.precision != "bf16" for case in cases(resolve_setting(GIVEN)[0])), "the interpreter computes nonsense in it"


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"device": "cpu"}, "device is cuda or interpreter"),
        ({"precision": "bf16"}, "interpreter cannot compute in bf16"),
        ({"precision": "fp8"}, "are of fp32, bf16, fp16"),
        ({"dim": 33}, "dim must be divisible by heads"),
        ({"projected_lengths": [48]}, "must be below all lengths"),
        ({"lengths": [64, 64]}, "different whole numbers"),
        ({"sharing": "none"}, "sharing is headwise"),
        ({"rounds": 0}, "rounds must be at least 1"),
        ({"seconds": 0.0}, "must be above 0"),
    ],
)
def test_wrong_settings_are_refused(wrong, message):
    with pytest.raises(ValueError, match=message):
        resolve_setting({**GIVEN, **wrong})


def test_without_cuda_the_command_says_what_it_needs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert main(["measure", "experiment=linformer_kernels", "output=found.json"]) == 2
    said = capsys.readouterr().err
    assert "needs a CUDA device" in said
    assert "device=interpreter" in said
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("value", "most", "wrong", "word"),
    [
        (0.7, False, False, "reached"),
        (0.69, False, False, "missed"),
        (0.69, True, False, "reached"),
        (0.71, True, False, "missed"),
        (0.9, False, True, "wrong"),
        ("OOM", False, True, "OOM"),
        ("not measured", False, False, "not measured"),
    ],
)
def test_verdicts(value, most, wrong, word):
    assert judge("x", value, 0.7, most=most, wrong=wrong).word == word
