"""The ``flex`` implementations: which pairs they compute, forward on a CPU through FlexAttention's plain form, and dispatch."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn.attention.flex_attention import flex_attention

from attn_zoo import Geometry, UnsupportedError, attentions, build_attention, card
from attn_zoo.attention.sparse import _flex as flex
from attn_zoo.conformance.requests import draw
from attn_zoo.contract import auto_may_take

N = 300
CASES = [
    ("longformer", {"window": 9, "dilation": 2, "global_tokens": 3}),
    ("local", {"block": 40, "neighbours": 1}),
    ("strided", {"stride": 30}),
    ("fixed", {"stride": 30, "summary": 2}),
    ("block_sparse", {"block": 20, "random_blocks": 2}),
    ("block_sparse", {"block": 200}),
    ("bigbird", {"block": 20, "random_blocks": 2}),
]
CAUSAL = [(name, options, causal) for name, options in CASES for causal in (False, True) if card(name).can.causal or not causal]


def test_every_pattern_has_the_implementation():
    assert {name for name in attentions() if "flex" in card(name).implementations} >= {name for name, _ in CASES}


@pytest.mark.filterwarnings("ignore:flex_attention called without")
@pytest.mark.parametrize(("name", "options", "causal"), CAUSAL, ids=str)
def test_gives_what_eager_gives(name, options, causal, monkeypatch):
    monkeypatch.setattr("attn_zoo.contract.attention.unavailable", lambda *_: None)
    monkeypatch.setattr(flex, "compiled_flex", lambda: flex_attention)
    monkeypatch.setattr("attn_zoo.kernels.cpu._tiling.CHEAP_BYTES", 1)
    geometry = Geometry(2, 16, N, N, causal)
    eager, fused = (build_attention(name, geometry, implementation=which, **options).double() for which in ("eager", "flex"))
    fused.load_state_dict(eager.state_dict())
    request = draw(eager, torch.float64, torch.device("cpu"))
    holes = torch.arange(N) < torch.tensor([N, N // 2, 0])[:, None]
    holes[0, 2::5] = False
    for valid in (None, holes):
        torch.testing.assert_close(request.padded(valid)(fused), request.padded(valid)(eager), rtol=0, atol=1e-12)


@pytest.mark.parametrize("rows", [1, 2**30])
def test_blocks_that_hold_pairs_are_found_without_all_pairs(rows, monkeypatch):
    monkeypatch.setattr("attn_zoo.kernels.cpu._tiling.CHEAP_BYTES", rows)

    def sees(head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return ((query - key).abs() < 140 * (head + 1)) & (key <= query)

    n, heads = 700, 2
    some, whole = flex.seen_blocks(sees, n, heads, torch.device("cpu"))
    every, positions = torch.arange(heads)[:, None, None], torch.arange(n)
    pairs = torch.zeros(heads, 768, 768, dtype=torch.bool)
    pairs[:, :n, :n] = sees(every, positions[:, None], positions)
    squares = pairs.view(heads, 6, 128, 6, 128)
    assert torch.equal(some[0], squares.any(4).any(2)) and torch.equal(whole[0], squares.all(4).all(2))
    assert whole.any() and not whole.all() and not some.all()


@pytest.mark.parametrize("name", sorted({name for name, _ in CASES}))
def test_refuses_dropout_and_cpu(name, monkeypatch):
    geometry = Geometry(2, 16, 60, 60)
    with pytest.raises(UnsupportedError, match=f"{name}.dropout needs implementation=eager"):
        build_attention(name, geometry, implementation="flex", dropout=0.1)
    built = build_attention(name, geometry, implementation="flex")
    with pytest.raises(UnsupportedError, match="CUDA"):
        draw(built, torch.float32, torch.device("cpu"))(built)


@pytest.mark.parametrize("name", sorted({name for name, _ in CASES}))
def test_auto_takes_it_on_a_gpu_and_not_under_dropout(name):
    geometry, gpu = Geometry(2, 16, 60, 60), torch.device("cuda")
    assert auto_may_take("flex", gpu)
    assert build_attention(name, geometry, implementation="auto", device=gpu).implementation == "flex"
    assert build_attention(name, geometry, implementation="auto", device=gpu, dropout=0.1).implementation == "eager"
    assert build_attention(name, geometry, implementation="auto").implementation == "tiled"
