"""Models with a short convolution before every attention: all kinds of tasks, shared weights, and counted FLOPs and parameters."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from model_formula import agrees
from tiers import of_each_kind
from torch import Tensor

from attn_zoo import attentions, card
from attn_zoo.contract import Batch, Pairs, Patches, TaskSpec, Tokens
from attn_zoo.count import count_model, count_parameters
from attn_zoo.encoder import build_model, build_paired_model
from attn_zoo.layer import MultiHeadAttention

SIZES: dict[str, Any] = {"implementation": "eager", "dim": 16, "depth": 3, "heads": 2, "mlp_ratio": 2.0, "dropout": 0.0}
WORDS = TaskSpec(Tokens(12), length=20, classes=3)
TASKS = {
    "words": WORDS,
    "pairs": TaskSpec(Pairs(12), length=20, classes=3),
    "positions": TaskSpec(Tokens(12), length=20, classes=3, labels="position", causal=True),
    "images": TaskSpec(Patches(1, 8, 8, 2), length=16, classes=3),
}
INPUTS = {"images": torch.randn(1, 1, 8, 8), "pairs": torch.ones(1, 2, 20, dtype=torch.long)}


def model(task: TaskSpec = WORDS, attention: str = "softmax", width: int = 4, **changes: Any) -> Any:
    torch.manual_seed(0)
    built = build_model(task, attention=attention, options={}, short_convolution=width, **{**SIZES, **changes}).eval()
    for layer in layers(built):
        if layer.short_convolution is not None:
            torch.nn.init.normal_(layer.short_convolution.weight)
    return built


def layers(built: torch.nn.Module) -> list[MultiHeadAttention]:
    return [module for module in built.modules() if isinstance(module, MultiHeadAttention)]


def ids(seed: int = 1) -> Tensor:
    return torch.randint(1, 12, (2, 20), generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("kind", TASKS)
def test_every_attention_of_a_model_is_convolved_and_counted(kind):
    built, plain = model(TASKS[kind]), model(TASKS[kind], width=0)
    taps = 4 if TASKS[kind].causal else 5
    assert [layer.short_convolution is not None for layer in layers(built)] == [True] * 3
    assert count_parameters(built) - count_parameters(plain) == 3 * taps * 16
    batch = Batch(INPUTS.get(kind, torch.ones(1, 20, dtype=torch.long)), None, torch.zeros(1).long())
    counted, before = count_model(built, batch), count_model(plain, batch)
    assert agrees(built, batch)
    length = layers(built)[0].mechanism.geometry.keys
    for figure, times in (("flops", 2), ("backward_flops", 4)):
        more = getattr(counted, figure) - getattr(before, figure)
        assert more == times * 3 * taps * length * 16 * (2 if kind == "pairs" else 1)


@pytest.mark.parametrize("reuse", [False, True])
@pytest.mark.parametrize("attention", ["softmax", "linformer", "longformer", "transformer_xl", "uniform"])
def test_the_formula_of_a_shared_convolved_model_is_what_pytorch_counts(attention, reuse):
    form = card(attention).counted_implementation
    built = model(attention=attention, shared_weights=True, reuse_keys=reuse, implementation=form)
    assert agrees(built, Batch(ids()[:1], None, torch.zeros(1).long()))


@pytest.mark.parametrize("attention", of_each_kind(name for name in attentions() if card(name).can.key_padding))
def test_padding_does_not_reach_the_class_through_the_convolution(attention):
    built, valid = model(attention=attention), torch.arange(20) < torch.tensor([20, 9])[:, None]
    other = torch.where(valid, ids(), ids(seed=2))
    torch.testing.assert_close(built(ids(), valid), built(other, valid), rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("added", "taps", "gates"),
    [({"short_convolution": 4}, 3, 0), ({"output_gate": "elementwise"}, 0, 6), ({"shared_weights": True}, 0, 0)],
    ids=["taps", "gates", "shared weights"],
)
def test_rows_of_a_table_start_from_the_same(added, taps, gates):
    built = [
        build_paired_model(WORDS, seed=3, attention=name, options={}, **added, **SIZES).state_dict()
        for name in ("softmax", "linformer", "performer", "uniform")
    ]
    plain = build_paired_model(WORDS, seed=3, attention="softmax", options={}, **SIZES).state_dict()
    of_taps, of_gates = ([key for key in built[0] if kind in key] for kind in ("short_convolution", "gate"))
    assert (len(of_taps), len(of_gates)) == (taps, gates)
    for weights in built:
        assert all(torch.equal(weights[key], built[0][key]) for key in weights if key in built[0])
        assert not taps or all(torch.equal(weights[key], plain[key]) for key in weights if key in plain)
        assert set(of_gates) <= set(weights), "rows without projections are gated as well"
        assert all(torch.equal(weights[key][:, 2], torch.ones(16)) and weights[key].sum() == 16 for key in of_taps)
