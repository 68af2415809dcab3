"""Second derivatives of whole layers, which may compress their tokens first, are right or refused by an error that names eager."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from tiers import covering
from torch import Tensor

from attn_zoo import Geometry, MultiHeadAttention, UnsupportedError, attentions, build_attention, card
from attn_zoo.conformance.requests import draw
from attn_zoo.conformance.second_derivatives import FORMS, Form, by_backward, by_grad, functional_hvp
from attn_zoo.contract import unavailable
from attn_zoo.kernels.derivatives import OnceDifferentiable

LENGTH, DIM, HEADS = 40, 32, 4
ADVICE = 'implementation="eager"'


def settings(name: str) -> list[tuple[bool, dict[str, Any]]]:
    """Causality and options of every variant."""
    entry = card(name)
    return list(itertools.product(sorted({False, entry.can.causal}), [{}, *map(dict, entry.variants.values())]))


def layer_of(name: str, causal: bool, options: dict[str, Any], implementation: str) -> MultiHeadAttention:
    torch.manual_seed(0)
    given = {"length": LENGTH, "causal": causal, "implementation": implementation, **options}
    return MultiHeadAttention(DIM, HEADS, name, **given).double().eval()


def derivative(layer: MultiHeadAttention, form: Form, power: int) -> Tensor:
    """Product of the Hessian with a direction, for a residual block; the weights count as constants of the loss."""
    torch.manual_seed(7)
    tokens, direction = torch.randn(2, 2, LENGTH, DIM, dtype=torch.float64)
    return form(lambda x: (x + layer(x)).pow(power).sum(), (tokens,), (direction,))[0]


def others(name: str) -> list[str]:
    """Implementations besides eager that run here."""
    return [other for other in card(name).implementations if other != "eager" and not unavailable(other, torch.device("cpu"))]


@pytest.mark.parametrize("which", ["defaults", pytest.param("variants", marks=pytest.mark.exhaustive)])
@pytest.mark.parametrize(("name", "frozen"), covering([name for name in attentions() if others(name)], [False, True]))
def test_second_derivatives_of_a_layer_are_right_or_refused(name, frozen, which):
    forms = (by_grad, by_backward, functional_hvp) if frozen else FORMS
    for causal, options in settings(name):
        if bool(options) != (which == "variants"):
            continue
        eager = layer_of(name, causal, options, "eager").requires_grad_(not frozen)
        wanted = {(form, power): derivative(eager, form, power) for form, power in itertools.product(forms, (1, 2))}
        for implementation in others(name):
            try:
                layer = layer_of(name, causal, options, implementation).requires_grad_(not frozen)
            except UnsupportedError:
                continue  # the implementation does not take these options
            for (form, power), right in wanted.items():
                try:
                    found = derivative(layer, form, power)
                except UnsupportedError as error:
                    if ADVICE not in str(error):
                        raise
                else:
                    torch.testing.assert_close(found, right, rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("name", [name for name in attentions() if others(name)])  # eager has no gradient of its own
def test_kernels_save_the_inputs_that_have_gradients(name, monkeypatch):

    def saves(function: type[OnceDifferentiable], *inputs: Any) -> Any:
        found = function.apply(*inputs)
        node: Any = (found if isinstance(found, Tensor) else found[0]).grad_fn
        saved = [] if node is None else [t for t in node.saved_tensors if t is not None]
        for x in inputs:
            if isinstance(x, Tensor) and x.requires_grad:
                assert any(t.grad_fn is x.grad_fn and t.data_ptr() == x.data_ptr() for t in saved), function
        return found

    monkeypatch.setattr(OnceDifferentiable, "run", classmethod(saves))
    for causal, options in settings(name):
        mechanism = build_attention(name, Geometry(2, 8, 72, 72, causal), implementation="auto", **options)
        draw(mechanism, torch.float32, torch.device("cpu")).leaves()(mechanism)


@pytest.mark.parametrize("name", ["softmax", "topk", "linformer"])
def test_first_derivatives_by_torch_func_are_unchanged(name):
    layer = layer_of(name, False, {}, "auto")
    tokens = torch.randn(2, LENGTH, DIM, dtype=torch.float64, requires_grad=True)
    (wanted,) = torch.autograd.grad(layer(tokens).square().sum(), tokens)
    found = torch.func.grad(lambda x: layer(x).square().sum())(tokens)
    torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-12)


def test_gradients_of_each_example_by_torch_func_are_those_of_eager():
    tokens, found = torch.randn(3, 1, LENGTH, DIM, dtype=torch.float64), []
    for implementation in ("eager", "sdpa"):
        layer = layer_of("softmax", False, {}, implementation)
        gradient = torch.func.grad(lambda held, x, layer=layer: torch.func.functional_call(layer, held, (x,)).square().sum())
        found.append(torch.func.vmap(gradient, (None, 0))(dict(layer.named_parameters()), tokens))
    torch.testing.assert_close(found[1], found[0], rtol=1e-9, atol=1e-9)


def test_a_graph_of_gradients_may_be_made_and_left_alone():
    mechanism = build_attention("linear", Geometry(2, 8, 9, 9), implementation="tiled")
    request = draw(mechanism, torch.float32, torch.device("cpu")).leaves()
    every = list(request.tensors.values())
    plain, graph = (torch.autograd.grad(request(mechanism).sum(), every, create_graph=create) for create in (False, True))
    assert all(torch.equal(a, b) and b.requires_grad for a, b in zip(plain, graph, strict=True))


@pytest.mark.parametrize("name", [name for name in attentions() if "tiled" in card(name).implementations])
def test_gradients_requested_under_autocast_are_close_to_those_requested_after_it(name):
    mechanism = build_attention(name, Geometry(2, 8, 72, 72), implementation="tiled")
    request = draw(mechanism, torch.float32, torch.device("cpu")).leaves()
    with torch.autocast("cpu", torch.bfloat16):
        loss = request(mechanism).float().square().sum()
        inside = torch.autograd.grad(loss, list(request.tensors.values()), retain_graph=True)
    after = torch.autograd.grad(loss, list(request.tensors.values()))
    for found, wanted in zip(inside, after, strict=True):
        assert (found - wanted).abs().max() <= 0.05 * wanted.abs().max()
