"""flash-linear-attention's own kernels, called by our layers: in Triton's interpreter where there is no GPU."""

from __future__ import annotations

import builtins
import importlib
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from attn_zoo import Geometry, build_attention
from attn_zoo.conformance.requests import answers, draw

pytest.importorskip("fla", reason="fla-core is not installed (extra: gpu or peers)")

ALLOWED = 0.02
"""Tolerance relative to the largest number: about five roundings to bfloat16."""
NEGATIVE = 0.025
"""Tolerance of negative eigenvalues, whose strengths up to 2 take a sixth rounding: 0.022 measured."""


@pytest.fixture
def kernels(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    """Adapt the kernels to a CPU: no autotuning, which needs a GPU, and Triton tensors as loop counters, as in compiled code."""
    if device.type == "cuda":
        return
    import triton.language as tl
    from triton.runtime.autotuner import Autotuner
    from triton.runtime.interpreter import TensorHandle

    def first_tile(tuner: Any, *arguments: Any, **named: Any) -> Any:
        return tuner.fn.run(*arguments, **named, **tuner.configs[0].all_kwargs())

    def counters(*ends: Any) -> Iterator[Any]:
        for i in builtins.range(*(end if isinstance(end, int) else end.handle.data.item() for end in ends)):
            yield tl.tensor(TensorHandle(np.array([i], dtype=np.int32), tl.int32), tl.int32)

    monkeypatch.setattr(Autotuner, "run", first_tile)
    monkeypatch.setattr("attn_zoo.contract.attention.unavailable", lambda *_: None)
    for operator in ("linear_attn", "gla", "delta_rule", "gated_delta_rule", "kda", "simple_gla"):
        importlib.import_module(f"fla.ops.{operator}")
    for name, loaded in list(sys.modules.items()):
        if name.startswith("fla.ops.") and getattr(loaded, "tl", None) is tl:
            monkeypatch.setattr(loaded, "range", counters, raising=False)


@pytest.mark.filterwarnings("ignore:Triton is not supported on current platform")
# The kernels compute the weights of later keys, which may overflow, before they mask them:
@pytest.mark.filterwarnings("ignore:overflow encountered in exp2", "ignore:invalid value encountered in multiply")
@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize(
    ("name", "options", "causal"),
    [
        ("linear", {}, True),
        pytest.param("cosformer", {}, True, marks=pytest.mark.exhaustive),  # the kernel of linear attention, as the next
        pytest.param("performer", {"features": 48}, True, marks=pytest.mark.exhaustive),
        ("performer", {"features": 272}, True),
        ("gated_linear", {"normalise": False}, True),
        ("gated_linear", {"normalise": False}, False),
        ("delta_rule", {"normalise": False, "negative_eigenvalues": True}, True),
        ("delta_rule", {"normalise": False}, False),
        ("gated_delta_rule", {"normalise": False}, True),
        ("kda", {"normalise": False}, True),
        ("retention", {"normalise": False}, True),
        pytest.param("ssd", {"normalise": False}, True, marks=pytest.mark.exhaustive),  # the kernel of retention
    ],
    ids=str,
)
def test_kernels_give_what_eager_gives(name, options, causal, device):
    n, heads = 70, 1 if options.get("features", 0) > 256 else 2  # so many features take the interpreter seconds for each head
    geometry = Geometry(heads, 16, n, n, causal)
    eager, fused = (build_attention(name, geometry, implementation=which, **options) for which in ("eager", "fla"))
    fused.load_state_dict(eager.state_dict())
    eager, fused = eager.to(device, torch.float64), fused.to(device)
    request = draw(eager, torch.bfloat16, device, batch=2)
    valid = torch.ones(2, n, dtype=torch.bool, device=device)
    valid[0, 3:60:5] = valid[1, :9] = valid[1, 50:] = False
    padded = request.padded(valid)
    want, got = answers(padded.cast(torch.float64), eager), answers(padded, fused)
    allowed = NEGATIVE if options.get("negative_eigenvalues") else ALLOWED
    for what in want:
        gap, largest = (got[what] - want[what]).abs().max().item(), want[what].abs().max().item()
        assert gap <= allowed * largest, (what, gap, largest)
