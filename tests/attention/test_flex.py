"""The ``flex`` implementations: the pairs that they compute, forward through FlexAttention's uncompiled form, and dispatch."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn.attention.flex_attention import flex_attention

from attn_zoo import Attention, Geometry, UnsupportedError, attentions, build_attention, card
from attn_zoo.attention.sparse._pairs import PairwiseAttention
from attn_zoo.conformance.requests import draw
from attn_zoo.contract import auto_may_take
from attn_zoo.kernels import flex

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
OTHERS: dict[str, dict[str, int]] = {
    "longformer": {"window": 11},
    "local": {"block": 30},
    "strided": {"stride": 20},
    "fixed": {"summary": 1},
    "block_sparse": {"seed": 1},
    "bigbird": {"random_blocks": 1},
}
"""Options of each mechanism that change its pairs."""
CAUSAL = [(name, options, causal) for name, options in CASES for causal in (False, True) if card(name).can.causal or not causal]


def test_every_pattern_has_the_implementation():
    assert {name for name in attentions() if "flex" in card(name).implementations} >= {name for name, _ in CASES}


@pytest.mark.filterwarnings("ignore:flex_attention called without")
@pytest.mark.parametrize(("name", "options", "causal"), CAUSAL, ids=str)
def test_gives_what_eager_gives(name, options, causal, monkeypatch):
    monkeypatch.setattr("attn_zoo.contract.attention.unavailable", lambda *_: None)
    monkeypatch.setattr(flex, "compiled_flex", lambda: flex_attention)
    monkeypatch.setattr(flex, "PAIRS_AT_ONCE", 1)
    monkeypatch.setattr(flex, "_CACHE", {})
    geometry = Geometry(2, 16, N, N, causal)
    eager, fused = (build_attention(name, geometry, implementation=which, **options).double() for which in ("eager", "flex"))
    fused.load_state_dict(eager.state_dict())
    request = draw(eager, torch.float64, torch.device("cpu"))
    holes = torch.arange(N) < torch.tensor([N, N // 2, 0])[:, None]
    holes[0, 2::5] = False
    for valid in (None, holes):
        torch.testing.assert_close(request.padded(valid)(fused), request.padded(valid)(eager), rtol=0, atol=1e-12)


@pytest.mark.parametrize("pairs", [1, 2**30])
def test_blocks_that_hold_pairs_are_found_without_all_pairs(pairs, monkeypatch):
    monkeypatch.setattr(flex, "PAIRS_AT_ONCE", pairs)

    def allowed(head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return ((query - key).abs() < 140 * (head + 1)) & (key <= query)

    n, heads = 700, 2
    some, whole = flex.blocks_of_pairs(allowed, n, heads, torch.device("cpu"))
    every, positions = torch.arange(heads)[:, None, None], torch.arange(n)
    table = torch.zeros(heads, 768, 768, dtype=torch.bool)
    table[:, :n, :n] = allowed(every, positions[:, None], positions)
    squares = table.view(heads, 6, 128, 6, 128)
    assert torch.equal(some[0], squares.any(4).any(2)) and torch.equal(whole[0], squares.all(4).all(2))
    assert whole.any() and not whole.all() and not some.all()


@pytest.fixture
def made(monkeypatch) -> list[int]:
    """Record the lengths at which block tables are made, with FlexAttention in its uncompiled form."""
    lengths: list[int] = []
    make = flex.blocks_of_pairs

    def counted(mask_mod: flex.MaskMod, n: int, heads: int, device: torch.device) -> tuple[Tensor, Tensor]:
        lengths.append(n)
        return make(mask_mod, n, heads, device)

    monkeypatch.setattr(flex, "blocks_of_pairs", counted)
    monkeypatch.setattr(flex, "compiled_flex", lambda: flex_attention)
    monkeypatch.setattr(flex, "_CACHE", {})
    monkeypatch.setattr("attn_zoo.contract.attention.unavailable", lambda *_: None)
    return lengths


def tables_at(built: Attention, n: int) -> flex.PairTables:
    """Return the block tables at a length of ``n``."""
    assert isinstance(built, PairwiseAttention)
    return built.tables(torch.empty(1, 2, n, 16))


@pytest.mark.parametrize(("name", "options", "causal"), CAUSAL, ids=str)
def test_block_tables_are_made_once_for_each_length(name, options, causal, made):
    geometry = Geometry(2, 16, N, N, causal)
    built = build_attention(name, geometry, implementation="flex", **options)
    for n in (N, N, 200, N):
        tables_at(built, n)
    assert made == [N, 200]
    other = build_attention(name, geometry, implementation="flex", **(options | OTHERS[name]))
    tables_at(other, N)
    assert made == [N, 200, N]


def test_layers_of_one_shape_share_their_block_tables(made):
    first, second = (build_attention("longformer", Geometry(2, 16, N, N), implementation="flex") for _ in range(2))
    assert tables_at(first, N) is tables_at(second, N)
    assert made == [N]


@pytest.mark.filterwarnings("ignore:flex_attention called without")
def test_block_tables_are_made_anew_for_loaded_draws(made):
    torch.manual_seed(0)
    first, other = (build_attention("bigbird", Geometry(2, 16, N, N), implementation="flex", block=20) for _ in range(2))
    request = draw(first, torch.float32, torch.device("cpu"), batch=1)
    before = request(other)
    other.load_state_dict(first.state_dict())
    assert torch.equal(request(other), request(first)) and not torch.equal(request(other), before)
    assert len(made) == 3


def test_block_tables_of_an_evaluation_serve_training(made):
    built = build_attention("local", Geometry(2, 16, N, N), implementation="flex")
    with torch.inference_mode():
        tables = tables_at(built, N)
    assert tables_at(built, N) is tables
    for mask in (tables.plain, tables.padded):  # autograd saves no tensor made in inference mode
        assert not any(tensor.is_inference() for tensor in mask.as_tuple() if isinstance(tensor, Tensor))


def test_no_more_block_tables_are_kept_than_stated(made, monkeypatch):
    monkeypatch.setattr(flex, "MOST_CACHED", 2)
    for n in (10, 20, 30, 30, 20, 10):
        flex.cached_tables("pairs", lambda: lambda _, q, k: q >= k, n, 1, torch.device("cpu"))
    assert made == [10, 20, 30, 10] and len(flex._CACHE) == 2


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
    assert build_attention(name, geometry, implementation="auto").implementation == ("eager" if name == "local" else "tiled")
