"""Layers that read a sequence in steps give the outputs of one call, with and without a short convolution."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, replace
from functools import partial

import pytest
import torch
import written_layers
from tiers import covering
from torch import Tensor
from written_layers import DIM, HEADS, LENGTH, in_steps, tokens

from attn_zoo import UnsupportedError, attentions, card
from attn_zoo.contract import CarriedState
from attn_zoo.count.formulas import layer_cost
from attn_zoo.integrations.timm import attention_layer
from attn_zoo.layer import LayerState

STEPWISE = [name for name in attentions() if card(name).can.stepwise]
PIECES = [2, 1, 7, 1, LENGTH - 11]
FORMS = [(4, False), (0, True), (1, False), (2, True), (LENGTH + 3, False), (0, False), (4, True)]
FORMS += [(1, True), (2, False), (LENGTH + 3, True)]
"""Width of the short convolution, and whether one projection makes queries, keys and values."""

build = partial(written_layers.build, width=4, causal=True)


@pytest.mark.parametrize(("name", "form"), covering(STEPWISE, FORMS))
def test_stepwise_matches_full_in_outputs_and_gradients(name, form):
    layer = build(name, width=form[0], fused=form[1])
    found: dict[str, list[Tensor]] = {}
    ways = {"token by token": [1] * LENGTH, "in pieces": PIECES, "a prefix and the last": [LENGTH - 1, 1]}
    for way, sizes in {"in one call": None, "in one piece": [LENGTH], **ways}.items():
        x = tokens().requires_grad_()
        out = layer(x) if sizes is None else in_steps(layer, x, sizes)
        found[way] = [out, *torch.autograd.grad(out.square().sum(), [x, *layer.parameters()])]
    for way, answers in found.items():
        for mine, whole in zip(answers, found["in one call"], strict=True):
            assert torch.allclose(mine, whole, rtol=0, atol=1e-10 * max(1.0, whole.abs().max().item())), way


@pytest.mark.parametrize("name", STEPWISE)
def test_steps_are_possible_under_autocast(name):
    layer, given = build(name).float(), tokens(2).float()
    with torch.autocast("cpu", dtype=torch.bfloat16), torch.no_grad():
        state = layer.initial_state(2)
        for piece in given.split(PIECES, dim=1):
            out, state = layer.step(piece, state)
    assert bool(out.isfinite().all())


def test_a_state_from_outside_autocast_is_refused_with_a_remedy_that_works():
    layer, given = build("transformer_xl", width=0).float(), tokens(2).float()
    state = layer.initial_state(2)
    with torch.autocast("cpu", dtype=torch.bfloat16), torch.no_grad():
        with pytest.raises(ValueError, match=r"For a layer, call initial_state\(2\) under the same autocast as step"):
            layer.step(given, state)
        assert layer.step(given, layer.initial_state(2))[0].isfinite().all()
    with pytest.raises(ValueError, match=r"device='cpu'\)$"):
        layer.double().step(given.double(), state)


@pytest.mark.parametrize(("name", "width"), covering(STEPWISE, [4, 0]))
def test_a_state_is_as_small_as_stated_and_left_alone(name, width):
    layer = build(name, width=width).float()
    with torch.no_grad():
        state = layer.initial_state(2)
        for piece in tokens(2).float().split([1, 1, 5, LENGTH - 7], dim=1):
            tail, first = state.tail.clone(), layer.step(piece, state)[0]
            assert torch.equal(layer.step(piece, state)[0], first) and torch.equal(state.tail, tail)
            _, state = layer.step(piece, state)
            assert isinstance(state, CarriedState)
            assert state.tail.shape[1] == min(max(width - 1, 0), state.position)
            assert state.tail.untyped_storage().nbytes() == state.tail.nbytes, "the tail holds on to tokens that are not in it"
            assert state.nbytes == state.mechanism.nbytes + state.tail.nbytes
    stated = layer_cost(layer).state_bytes
    assert stated is not None and state.nbytes <= 2 * stated
    with pytest.raises(FrozenInstanceError):
        state.tail = tail  # type: ignore[misc]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_other_dtypes(dtype):
    layer, x = build("linear").to(dtype), tokens().to(dtype)
    assert layer.initial_state(3).tail.dtype is dtype
    with torch.no_grad():
        rough, exact = in_steps(layer, x, PIECES), build("linear")(tokens())
    assert rough.dtype is dtype
    assert (rough.double() - exact).norm() < 0.05 * exact.norm()


def test_a_layer_of_timm_steps_with_its_norms():
    torch.manual_seed(0)
    kind = attention_layer("gated_linear", length=LENGTH, causal=True, short_convolution=4)
    layer = kind(DIM, HEADS, qk_norm=True, scale_norm=True, norm_layer=torch.nn.LayerNorm).double().eval()
    torch.testing.assert_close(in_steps(layer, tokens(), PIECES), layer(tokens(), is_causal=True), rtol=0, atol=1e-10)


def test_what_cannot_step_is_refused():
    x = tokens()
    for layer, words in (
        (build("softmax"), "softmax cannot be called step by step, because it has no recurrent state"),
        (build("linear", causal=False), "linear must be built with causal=True"),
        (build("linear", width=0, context_dim=DIM), "with a context cannot process tokens in steps"),
    ):
        with pytest.raises(UnsupportedError, match=words):
            layer.initial_state(3)
        with pytest.raises(UnsupportedError, match=words):
            layer.step(x, None)  # type: ignore[arg-type]
    layer = build("linear")
    state = layer.initial_state(3)
    with pytest.raises(UnsupportedError, match="built for 24 tokens, but this step ends at token 25"):
        build("cosformer").step(tokens(length=LENGTH + 1), build("cosformer").initial_state(3))
    _, after = layer.step(x[:, :5], state)
    bad: tuple[tuple[Tensor, object, str], ...] = (
        (x[:, :0], state, "must get at least one token; got none"),
        (x[..., :7], state, "dim=8"),
        (x, None, r"from initial_state\(\) of this layer or from the previous step\(\); got NoneType"),
        (x, state.mechanism, r"from initial_state\(\) of this layer or from the previous step\(\); got"),
        (x[:2], after, r"its tail \(the latest tokens\) must be \(2, 3, 8\) torch.float64 on cpu; got \(3, 3, 8\)"),
        (x.float(), after, r"tokens must have the dtype of the layer.s weights, torch.float64; got torch.float32"),
        (x, replace(after, tail=after.tail[:, 1:]), r"got \(3, 2, 8\)"),
        (x, LayerState(after.mechanism, state.tail), r"got \(3, 0, 8\)"),
    )
    for given, carried, words in bad:
        with pytest.raises(ValueError, match=words):
            layer.step(given, carried)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"its tail \(the latest tokens\) must be \(3, 0, 8\)"):
        build("linear", width=0).step(x, after)
