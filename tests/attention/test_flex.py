"""The ``flex`` implementations: the pairs that they compute, forward through FlexAttention's uncompiled form, and dispatch.

A CPU runs FlexAttention forward, so only outputs are compared, at randomly drawn sizes.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn.attention.flex_attention import flex_attention

from attn_zoo import Attention, Geometry, UnsupportedError, attentions, build_attention, card
from attn_zoo.attention.sparse._pairs import PairwiseAttention
from attn_zoo.conformance.requests import draw, key_masks
from attn_zoo.conformance.sizes import BORDERS
from attn_zoo.conformance.subject import DEFAULTS_AT, Subject
from attn_zoo.contract import auto_may_take
from attn_zoo.kernels import flex
from attn_zoo.registry import attention_options

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


NAMES = [name for name in attentions() if "flex" in card(name).implementations]
SETTINGS = [
    pytest.param(name, variant, id=f"{name}-{variant}", marks=pytest.mark.exhaustive if at > 1 else ())
    for name in NAMES
    for at, variant in enumerate(["default", *card(name).variants])
]
CPU = torch.device("cpu")


def test_every_pattern_has_the_implementation():
    assert set(NAMES) >= {name for name, _ in CASES}


def subject_of(name: str, variant: str, implementation: str) -> Subject:
    options = attention_options(card(name), DEFAULTS_AT, card(name).variants.get(variant, {}))
    return Subject(card(name), variant, options, implementation, CPU)


@pytest.mark.filterwarnings("ignore:flex_attention called without")
@pytest.mark.parametrize(("name", "variant"), SETTINGS)
@torch.no_grad()
def test_gives_what_eager_gives(name, variant, monkeypatch):
    for module in ("contract.attention", "conformance.subject"):
        monkeypatch.setattr(f"attn_zoo.{module}.unavailable", lambda *_: None)
    monkeypatch.setattr(flex, "compiled_flex", lambda: flex_attention)
    monkeypatch.setattr(flex, "_CACHE", {})
    subject = subject_of(name, variant, "flex")
    if "sinks" in card(name).variants.get(variant, {}):
        pytest.skip("flex has no sinks")
    for geometry in subject.sized(longest=subject.sizes.blocks, shortest=min(BORDERS)):
        fused, eager = subject.build(geometry), subject.as_eager().build(geometry)
        fused.load_state_dict(eager.state_dict())
        request = subject.draw(eager, batch=6)
        for mask in (None, key_masks(geometry.keys)):
            padded = request.padded(mask)
            subject.equal(padded(fused), padded(eager), f"{geometry}, padded={mask is not None}")


@pytest.mark.parametrize("at_once", [1, flex.PAIRS_AT_ONCE])
@pytest.mark.parametrize(("name", "variant"), SETTINGS)
def test_block_tables_hold_every_pair_and_no_other(name, variant, at_once, monkeypatch):
    monkeypatch.setattr(flex, "PAIRS_AT_ONCE", at_once)
    subject = subject_of(name, variant, "eager")
    for geometry in subject.sized():
        built = subject.build(geometry)
        assert isinstance(built, PairwiseAttention)
        n, pairs, heads = geometry.keys, built.mask_mod(geometry.keys, CPU), geometry.heads if built.by_head() else 1
        some, whole = flex.blocks_of_pairs(pairs, n, heads, CPU)
        blocks = some.shape[-1]
        every, positions = torch.arange(heads)[:, None, None], torch.arange(n)
        allowed = torch.zeros(heads, blocks * flex.BLOCK, blocks * flex.BLOCK, dtype=torch.bool)
        allowed[:, :n, :n] = pairs(every, positions[:, None], positions)
        squares = allowed.view(heads, blocks, flex.BLOCK, blocks, flex.BLOCK)
        assert torch.equal(some[0], squares.any(4).any(2)), geometry
        assert torch.equal(whole[0], squares.all(4).all(2)), geometry


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
