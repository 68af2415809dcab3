"""Layers of the zoo go through PyTorch's own exporters, and their programs answer as the layer does, at other sizes too."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from extras import missing
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from attn_zoo import MultiHeadAttention

LENGTH, DIM = 24, 16
ANY_LENGTH = ["softmax", "linear", "clustered"]
FIXED_LENGTH = ["linformer", "performer", "longformer"]
ENOUGH = ("softmax", "linformer", "linear")
"""Mechanisms of both kinds that are exported before the exhaustive tier."""
OPTIONS: dict[str, dict[str, Any]] = {"linformer": {"projected_length": 4}}


class Masked(nn.Module):
    """Layer with the mask as a positional argument, as the page on export says."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, tokens: Tensor, key_valid: Tensor) -> Tensor:
        return self.layer(tokens, key_valid=key_valid)


def layer(attention: str) -> nn.Module:
    torch.manual_seed(3)
    built = MultiHeadAttention(DIM, 2, attention, length=LENGTH, implementation="eager", **OPTIONS.get(attention, {}))
    return Masked(built).eval().requires_grad_(False)


def inputs(batch: int, length: int) -> tuple[Tensor, Tensor]:
    """Draw tokens, (batch, length, dim), and a mask, (batch, length), that leaves out a third of the last row."""
    tokens = torch.randn(batch, length, DIM, generator=torch.Generator().manual_seed(batch + length))
    valid = torch.ones(batch, length, dtype=torch.bool)
    valid[-1, length - length // 3 :] = False
    return tokens, valid


def exported(module: nn.Module, attention: str) -> tuple[ExportedProgram, list[tuple[Tensor, Tensor]]]:
    """Return a program with an open batch and, if the mechanism allows it, length, and inputs of other sizes."""
    axes = {0: Dim("batch")} | ({1: Dim("length")} if attention in ANY_LENGTH else {})
    others = [inputs(7, LENGTH), *([inputs(2, 37)] if attention in ANY_LENGTH else [])]
    return torch.export.export(module, inputs(4, LENGTH), dynamic_shapes=(axes, axes)), others


def assert_equal_at_real_tokens(got: Tensor, want: Tensor, valid: Tensor) -> None:
    torch.testing.assert_close(got[valid], want[valid], rtol=1e-4, atol=1e-5)


def exported_before(names: list[str]) -> list[Any]:
    """Parameters for mechanisms, those outside of ``ENOUGH`` in the exhaustive tier."""
    return [pytest.param(name, marks=() if name in ENOUGH else pytest.mark.exhaustive) for name in names]


@pytest.mark.parametrize("attention", exported_before([*ANY_LENGTH, *FIXED_LENGTH]))
def test_a_saved_program_answers_as_the_layer(attention, tmp_path):
    module = layer(attention)
    program, others = exported(module, attention)
    torch.export.save(program, tmp_path / "layer.pt2")
    loaded = torch.export.load(tmp_path / "layer.pt2").module()
    for tokens, valid in others:
        assert_equal_at_real_tokens(loaded(tokens, valid), module(tokens, valid), valid)


@pytest.mark.skipif(missing("export") is not None, reason="onnx or onnxruntime is not installed (extra: export)")
@pytest.mark.parametrize("attention", exported_before(["softmax", "linformer", "performer"]))
def test_an_onnx_file_answers_as_the_layer(attention, tmp_path):
    import onnxruntime

    module = layer(attention)
    program, others = exported(module, attention)
    made = torch.onnx.export(program, dynamo=True, opset_version=20, input_names=["tokens", "key_valid"], verbose=False)
    assert made is not None
    made.save(tmp_path / "layer.onnx")
    session = onnxruntime.InferenceSession(str(tmp_path / "layer.onnx"), providers=["CPUExecutionProvider"])
    for tokens, valid in others:
        (answer,) = session.run(None, {"tokens": tokens.numpy(), "key_valid": valid.numpy()})
        assert_equal_at_real_tokens(torch.from_numpy(answer), module(tokens, valid), valid)


@pytest.mark.skipif(missing("export") is not None, reason="onnx or onnxruntime is not installed (extra: export)")
def test_an_operator_that_onnx_lacks_is_named():
    program = torch.export.export(layer("delta_rule"), inputs(4, LENGTH))
    with pytest.raises(Exception, match="solve_triangular"):
        torch.onnx.export(program, dynamo=True, opset_version=20, verbose=False)


def test_a_length_that_must_be_fixed_is_refused_by_the_exporter():
    axes = {1: Dim("length")}
    with pytest.raises(Exception, match="length"):
        torch.export.export(layer("linformer"), inputs(4, LENGTH), dynamic_shapes=(axes, axes))
