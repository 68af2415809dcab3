"""The synthesizers against their equations, written out in float64 one query at a time."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from attn_zoo import Geometry, MultiHeadAttention, build_attention, card
from attn_zoo.contract import Attention

SETTINGS: dict[str, tuple[str, dict[str, Any]]] = {
    "dense": ("synthesizer_dense", {}),
    "dense, factorised": ("synthesizer_dense", {"factor": 5}),
    "dense, one factor": ("synthesizer_dense", {"factor": 33}),
    "random": ("synthesizer_random", {}),
    "random, frozen": ("synthesizer_random", {"frozen": True}),
    "factorised": ("synthesizer_factorised", {"rank": 3}),
    "factorised, frozen": ("synthesizer_factorised", {"frozen": True}),
}
every_setting = pytest.mark.parametrize(("name", "options"), SETTINGS.values(), ids=SETTINGS)


def build(name: str, geometry: Geometry, options: dict[str, Any]) -> Attention:
    torch.manual_seed(0)
    return build_attention(name, geometry, **options).double()


def draw(*, queries: int = 33, keys: int = 33) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    query, value = (torch.randn(3, 2, n, 8, dtype=torch.float64, generator=generator) for n in (queries, keys))
    return query, value


def score(built: Attention, query: Tensor, h: int, i: int, j: int) -> Tensor:
    """Return the score B[i, j] of one head."""
    state, kind = built.state_dict(), built.card.name
    if kind == "synthesizer_random":
        return state["scores"][h, i, j]
    if kind == "synthesizer_factorised":
        return state["left"][h, i] @ state["right"][h, j]
    hidden = query[i].clamp(min=0)

    def made(at: int, column: int) -> Tensor:
        return state[f"weights.{at}"][h, :, column] @ hidden + state[f"biases.{at}"][h, 0, column]

    factor = built.options.factor
    return made(0, j % factor) * made(1, j // factor) if factor else made(0, j)


def written_out(built: Attention, query: Tensor, value: Tensor, valid: Tensor | None) -> Tensor:
    out = torch.zeros_like(query)
    for b, h, i in torch.cartesian_prod(*map(torch.arange, query.shape[:3])).tolist():
        seen = [j for j in range(value.shape[2]) if (valid is None or valid[b, j]) and not (built.geometry.causal and j > i)]
        if seen:
            weights = torch.stack([score(built, query[b, h], h, i, j) for j in seen]).softmax(dim=0)
            out[b, h, i] = weights @ value[b, h, seen]
    return out


@every_setting
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("padded", [False, True])
def test_equals_the_equation(name, options, causal, padded):
    built = build(name, Geometry(2, 8, 33, 33, causal), {**options, "implementation": "definition"})
    for parameter in built.parameters():
        with torch.no_grad():
            parameter.add_(0.1 * torch.randn_like(parameter))  # biases start at zero
    query, value = (t[:2, :, :17] for t in draw())  # shorter than it was built for, to be quick
    valid = torch.tensor([[True] * 17, [False] * 2 + [True] * 9 + [False] * 6]) if padded else None
    expected = written_out(built, query, value, valid)
    torch.testing.assert_close(built(query, None, value, key_valid=valid), expected, rtol=0, atol=1e-12)


def test_scores_are_those_of_a_two_layer_network():
    """Section 3.1, with the query projection as the first layer of the network."""
    torch.manual_seed(0)
    layer = MultiHeadAttention(16, 2, "synthesizer_dense", length=20).double()
    assert not hasattr(layer.projections, "key")
    tokens = torch.randn(2, 20, 16, dtype=torch.float64)
    state, value = layer.state_dict(), layer.projections.get_submodule("value")(tokens)
    heads = []
    for h in range(2):
        own = slice(8 * h, 8 * h + 8)
        network = torch.nn.Sequential(torch.nn.Linear(16, 8), torch.nn.ReLU(), torch.nn.Linear(8, 20)).double()
        network.load_state_dict(
            {
                "0.weight": state["projections.query.weight"][own],
                "0.bias": state["projections.query.bias"][own],
                "2.weight": state["mechanism.weights.0"][h].T,
                "2.bias": state["mechanism.biases.0"][h, 0],
            }
        )
        heads.append(network(tokens).softmax(dim=-1) @ value[..., own])
    torch.testing.assert_close(layer(tokens), layer.out(torch.cat(heads, dim=-1)))


@every_setting
def test_scores_start_at_unit_scale(name, options):
    """Scores have a standard deviation near 1, like those of unit queries and keys."""
    torch.manual_seed(0)
    built = build_attention(name, Geometry(4, 64, 128, 128), **options)
    query = torch.randn(1, 4, 128, 64)
    if name == "synthesizer_dense":
        found = [score(built, query[0, h], h, i, j) for h in range(4) for i in range(0, 128, 9) for j in range(0, 128, 9)]
        spread = torch.stack(found).std()
    else:
        state = built.state_dict()
        spread = (state["scores"] if "scores" in state else state["left"] @ state["right"].mT).std()
    assert 0.75 < spread < 1.25


def test_examples_of_a_batch_share_the_weights():
    """Without padding, all examples share one matrix of weights, which is not copied."""
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves

    class Largest(TorchDispatchMode):
        numbers = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            result = func(*args, **(kwargs or {}))
            self.numbers = max([self.numbers, *(t.numel() for t in tree_leaves(result) if isinstance(t, Tensor))])
            return result

    built = build_attention("synthesizer_factorised", Geometry(2, 4, 128, 128))
    value = torch.randn(16, 2, 128, 4, requires_grad=True)
    with Largest() as largest:
        built(None, None, value).sum().backward()
    assert largest.numbers == 2 * 128 * 128


def test_parameters_are_those_of_the_paper():
    """Each head has N d + N, N² or 2 N k parameters, and none where frozen."""
    geometry, found = Geometry(4, 64, 100, 100), {}
    for key, (name, options) in SETTINGS.items():
        found[key] = card(name).cost(geometry, card(name).options(**options)).parameters / 4
    assert found["dense"] == 100 * 64 + 100
    assert found["dense, factorised"] == (5 + 20) * 65
    assert found["random"] == 100**2
    assert found["factorised"] == 2 * 100 * 3
    assert found["random, frozen"] == found["factorised, frozen"] == 0


def test_a_factor_larger_than_the_input():
    """The second factor then has one number."""
    built = build("synthesizer_dense", Geometry(2, 8, 9, 9), {"factor": 12})
    query, value = (t[:, :, :9] for t in draw())
    assert math.ceil(9 / 12) == built.get_parameter("weights.1").shape[-1]
    torch.testing.assert_close(built(query, None, value), written_out(built, query, value, None), rtol=0, atol=1e-12)
