"""Layers and models exported as programs: run by real runtimes at other sizes, compared, and refused where they would be wrong."""

from __future__ import annotations

import importlib.util
import math
from pathlib import Path
from typing import Any

import onnx
import onnxruntime
import pytest
import torch
from torch import nn

from attn_zoo.contract import UnknownNameError, UnsupportedError
from attn_zoo.encoder.token import TokenClassifier
from attn_zoo.export import TOLERANCE, ExportRefused, export_layer, export_model
from attn_zoo.export.reasons import KINDS, reason_of
from attn_zoo.integrations.timm import attention_layer
from attn_zoo.layer import MultiHeadAttention


def layer(attention: str = "softmax", *, length: int = 24, **options) -> MultiHeadAttention:
    torch.manual_seed(3)
    return MultiHeadAttention(16, 2, attention, length=length, **options).eval()


def run_onnx(path: Path, **inputs: torch.Tensor) -> torch.Tensor:
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return torch.from_numpy(session.run(None, {name: tensor.numpy() for name, tensor in inputs.items()})[0])


def apart(got: torch.Tensor, want: torch.Tensor) -> float:
    return ((got - want).abs().max() / want.abs().max()).item()


def padded(batch: int, length: int) -> tuple[torch.Tensor, torch.Tensor]:
    valid = torch.ones(batch, length, dtype=torch.bool)
    valid[0, length // 2 :] = False
    return torch.randn(batch, length, 16, generator=torch.Generator().manual_seed(9)), valid


@pytest.mark.parametrize("width", [0, 4])
def test_an_onnx_file_answers_at_any_batch_and_length(width, tmp_path):
    eager = layer(causal=True, short_convolution=width)
    made = export_layer(eager, tmp_path / "layer.onnx")
    assert made.open_sizes == ("batch", "length") and made.opset == 20 and 0 < made.difference <= TOLERANCE
    assert made.nbytes == made.path.stat().st_size
    onnx.checker.check_model(str(made.path))
    assert [i.name for i in onnx.load(str(made.path)).graph.input] == ["tokens", "key_valid"]
    for batch, length in ((1, 24), (5, 61)):
        tokens, valid = padded(batch, length)
        with torch.no_grad():
            want = eager(tokens, key_valid=valid)
        real = valid[..., None]
        assert apart(run_onnx(made.path, tokens=tokens, key_valid=valid) * real, want * real) <= TOLERANCE


@pytest.mark.parametrize("width", [0, 4])
def test_a_torch_file_answers_at_any_batch_and_length(width, tmp_path):
    eager = layer(short_convolution=width)
    made = export_layer(eager, tmp_path / "layer.pt2", format="torch")
    assert made.open_sizes == ("batch", "length") and made.opset is None
    tokens, valid = padded(5, 61)
    with torch.no_grad():
        got, want = torch.export.load(made.path).module()(tokens, valid), eager(tokens, key_valid=valid)
    assert apart(got, want) <= TOLERANCE


def test_random_features_are_part_of_the_program(tmp_path):
    eager = layer("performer")
    made = export_layer(eager, tmp_path / "layer.onnx", sizes="fixed")
    assert made.open_sizes == ()
    tokens = torch.randn(4, 24, 16)
    valid = torch.ones(4, 24, dtype=torch.bool)
    first, second = (run_onnx(made.path, tokens=tokens, key_valid=valid) for _ in range(2))
    with torch.no_grad():
        assert torch.equal(first, second) and apart(first, eager(tokens)) <= TOLERANCE


def test_linformer_inside_a_whole_encoder_and_a_vision_transformer(tmp_path):
    sizes = {"dim": 16, "depth": 2, "heads": 2, "mlp_ratio": 2.0, "dropout": 0.1, "attention": "linformer"}
    options = {"projected_length": 4, "sharing": "layerwise"}
    encoder = TokenClassifier(classes=3, vocabulary=11, length=20, implementation="sdpa", options=options, **sizes)
    inputs = {"tokens": torch.randint(1, 11, (2, 20)), "valid": torch.ones(2, 20, dtype=torch.bool)}
    inputs["valid"][1, 9:] = False
    made = export_model(encoder, inputs, tmp_path / "encoder.onnx", sizes={name: {0: "batch"} for name in inputs})
    assert made.open_sizes == ("batch",) and encoder.training
    more = {name: tensor.repeat(3, *[1] * (tensor.dim() - 1)) for name, tensor in inputs.items()}
    with torch.no_grad():
        assert apart(run_onnx(made.path, **more), encoder.eval()(**more)) <= TOLERANCE

    from timm.models.vision_transformer import VisionTransformer

    attention = attention_layer("linformer", length=17, projected_length=4, implementation="sdpa")
    shape: dict[str, Any] = {"img_size": 16, "patch_size": 4, "embed_dim": 16, "depth": 2, "num_heads": 2, "num_classes": 5}
    images = torch.randn(2, 3, 16, 16)
    vit = VisionTransformer(**shape, attn_layer=attention)
    seen = export_model(vit, {"images": images}, tmp_path / "vit.onnx", sizes={"images": {0: "batch"}})
    more = {"images": images.repeat(2, 1, 1, 1) + 1}
    with torch.no_grad():
        assert apart(run_onnx(seen.path, **more), vit.eval()(*more.values())) <= TOLERANCE


class Sorts(nn.Module):
    """Module that sorts few distinct numbers, so that there are ties."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        up = x.sort(dim=1, stable=True)
        down = (x * 4).long().sort(dim=-1, stable=True, descending=True)
        return torch.cat([up.values, up.indices, down.values, down.indices], dim=1).float()


def test_a_stable_sort_keeps_equal_numbers_in_their_order(tmp_path):
    x = torch.randint(0, 4, (3, 40, 6), generator=torch.Generator().manual_seed(1)) / 4
    made = export_model(Sorts(), {"x": x}, tmp_path / "sorts.onnx", sizes={"x": {0: "batch"}}, others=[{"x": x[:1]}])
    assert made.difference == 0


class Twofaced(nn.Module):
    """Module whose output is different while it is exported."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * (1.002 if torch.compiler.is_exporting() else 1.0)


@pytest.mark.parametrize("format", ["onnx", "torch"])
def test_a_program_that_answers_something_else_is_not_handed_over(tmp_path, format):
    with pytest.raises(
        ExportRefused, match=r"Twofaced cannot be exported: differs by 0\.00\d of the largest number for x \(2, 3\)"
    ) as caught:
        export_model(Twofaced(), {"x": torch.randn(2, 3)}, tmp_path / "file", format=format)
    assert caught.value.reason.kind == "numbers" and not list(tmp_path.iterdir())


def test_sizes_that_cannot_stay_open_are_refused_and_others_taken(tmp_path):
    eager = layer("frozen_random")
    with pytest.raises(
        ExportRefused, match=r"frozen_random \(batch and length open\) cannot be exported: length becomes a constant \(sizes\)"
    ):
        export_layer(eager, tmp_path / "layer.pt2", format="torch", sizes="batch and length")
    assert not list(tmp_path.iterdir())
    assert export_layer(eager, tmp_path / "layer.pt2", format="torch").open_sizes == ("batch",)


def test_an_operator_that_onnx_lacks_is_named_and_no_file_is_left(tmp_path):
    with pytest.raises(ExportRefused, match=r"no ONNX function for aten\.linalg_solve_triangular \(operator\)"):
        export_layer(layer("delta_rule"), tmp_path / "layer.onnx", sizes="fixed")
    assert not list(tmp_path.iterdir())
    assert export_layer(layer("delta_rule"), tmp_path / "layer.pt2", format="torch", sizes="fixed").nbytes > 0


def test_the_layer_is_left_as_it_was(tmp_path):
    eager = layer("linformer", dropout=0.5).train()
    before = {name: tensor.clone() for name, tensor in eager.state_dict().items()}
    export_layer(eager, tmp_path / "layer.pt2", format="torch", sizes="fixed")
    assert eager.training and all(parameter.requires_grad for parameter in eager.parameters())
    assert all(torch.equal(tensor, before[name]) for name, tensor in eager.state_dict().items())


def test_what_is_asked_wrongly_is_refused_before_work_starts(tmp_path, monkeypatch):
    there = tmp_path / "there.onnx"
    there.write_text("mine")
    monkeypatch.setattr(torch.export, "export", lambda *args, **rest: pytest.fail("work has started"))
    with pytest.raises(FileExistsError, match="is there already; choose another file"):
        export_layer(layer(), there)
    assert there.read_text() == "mine"
    with pytest.raises(FileNotFoundError, match="make the folder first"):
        export_layer(layer(), tmp_path / "nowhere" / "layer.onnx")
    with pytest.raises(UnknownNameError, match="no format is called 'onxx'; did you mean 'onnx'"):
        export_layer(layer(), tmp_path / "layer.onnx", format="onxx")
    with pytest.raises(UnknownNameError, match="no sizes is called 'length'"):
        export_layer(layer(), tmp_path / "layer.onnx", sizes="length")
    with pytest.raises(UnsupportedError, match="fnet cannot leave keys out, so it takes no padding mask; export it without one"):
        export_layer(layer("fnet"), tmp_path / "layer.onnx", padded=True)
    with pytest.raises(UnsupportedError, match="built with a context"):
        export_layer(layer(context_length=9), tmp_path / "layer.onnx")
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name == "onnxscript" else found(name, *rest))
    with pytest.raises(UnsupportedError, match=r"ONNX needs onnxscript; install attn-zoo\[export\], or take format=torch"):
        export_layer(layer(), tmp_path / "layer.onnx")


@pytest.mark.parametrize(
    ("message", "kind", "line"),
    [
        (
            "Constraints violated (batch)!\n  - Not all values of batch = L['tokens'].size()[0] in the specified range satisfy "
            "the generated guard torch.sym_max(1, 128 // L['tokens'].size()[0]) == 42.\n",
            "sizes",
            "needs max(1, 128 // batch) == 42",
        ),
        (
            "Constraints violated (a)!\n  - You marked a as dynamic but your code specialized it to be a constant (3).",
            "sizes",
            "a becomes a constant",
        ),
        ("Guard failed: tokens.size()[0] == 4", "sizes", "the program turns out to hold for the size of its example alone"),
        (
            "Could not guard on data-dependent expression Eq(u0, 1)\nmore",
            "data",
            "Could not guard on data-dependent expression Eq(u0, 1)",
        ),
        (
            "No ONNX function found for <OpOverload(op='aten.cummax', overload='default')>. Failure",
            "operator",
            "no ONNX function for aten.cummax",
        ),
        ("\n at 0x7f00 \nmore", "exporter", "RuntimeError: at 0x…"),
        ("", "exporter", "RuntimeError: no message"),
    ],
)
def test_reasons_are_read_from_the_bottom_of_an_error(message, kind, line):
    try:
        try:
            raise RuntimeError(message)
        except RuntimeError as inner:
            raise ValueError("wrapped") from inner
    except ValueError as error:
        reason = reason_of(error)
    assert (reason.kind, reason.line) == (kind, line) and kind in KINDS


def test_a_long_reason_is_cut():
    assert len(reason_of(ValueError("x" * 500)).line) <= math.ceil(160 + len("ValueError: "))
