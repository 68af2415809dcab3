"""torch.compile makes few graphs of a layer over many lengths: no more than the page says, with the right values."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from tiers import covering
from torch._dynamo.backends.debugging import aot_eager

from attn_zoo import MultiHeadAttention, card

LENGTHS = (64, 96, 130, 200, 257)
PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "pytorch.md"
STATED = {name: int(most) for name, most in re.findall(r"^\| `(\w+)` \| (\d) \|$", PAGE.read_text(encoding="utf-8"), re.M)}
"""Largest number of graphs, by mechanism."""


def test_the_table_holds_the_mechanisms_that_people_compile():
    assert set(STATED) >= {"softmax", "linear", "linformer", "performer", "longformer", "nystrom", "reformer"}
    assert max(STATED.values()) <= 3


@pytest.mark.parametrize(("name", "padded"), covering(STATED, [False, True], enough=("linformer", "softmax")))
def test_few_graphs_serve_all_lengths(name, padded):
    for causal in sorted({False, card(name).can.causal}):
        torch._dynamo.reset()
        torch.manual_seed(0)
        layer = MultiHeadAttention(32, 4, name, length=max(LENGTHS), causal=causal)
        graphs = 0

        def counted(graph: torch.fx.GraphModule, inputs: list[Any]) -> Any:
            nonlocal graphs
            graphs += 1
            return aot_eager(graph, inputs)

        compiled = torch.compile(layer, backend=counted)
        for n in LENGTHS:
            tokens = torch.randn(2, n, 32, requires_grad=True)
            valid = torch.arange(n) < torch.tensor([[n], [n // 2]]) if padded else None
            out, want = compiled(tokens, key_valid=valid), layer(tokens, key_valid=valid)
            torch.testing.assert_close(out, want, rtol=1e-4, atol=1e-5)
            grads, wanted = (torch.autograd.grad(x.square().sum(), [tokens, *layer.parameters()]) for x in (out, want))
            for grad, right in zip(grads, wanted, strict=True):
                torch.testing.assert_close(grad, right, rtol=1e-3, atol=1e-3)
        assert graphs <= STATED[name], f"causal={causal}"
    torch._dynamo.reset()
