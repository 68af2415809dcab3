"""Adapters, pruning, hooks, parametrisations and quantisation of a layer's projections take effect in every call or are refused."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize, prune

from attn_zoo import MultiHeadAttention, UnsupportedError
from attn_zoo.layer import Order

LENGTH, DIM = 12, 8


class LowRankAdapter(nn.Linear):
    """Linear map with a correction of rank 1, as a subclass of ``nn.Linear``."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__(base.in_features, base.out_features, base.bias is not None, dtype=base.weight.dtype)
        self.load_state_dict(base.state_dict())
        self.up = nn.Parameter(torch.linspace(-1, 1, base.out_features, dtype=base.weight.dtype))

    def forward(self, tokens: Tensor) -> Tensor:
        return super().forward(tokens) + tokens.sum(dim=-1, keepdim=True) * self.up


class Doubled(nn.Module):
    def forward(self, weight: Tensor) -> Tensor:
        return 2 * weight


def _pruned(linear: nn.Linear) -> nn.Linear:
    prune.l1_unstructured(linear, "weight", 0.5)
    with torch.no_grad():
        linear.get_parameter("weight_orig").mul_(3)  # the product with the mask, linear.weight, is now out of date
    return linear


def _normed(linear: nn.Linear) -> nn.Linear:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        nn.utils.weight_norm(linear)
    with torch.no_grad():
        linear.get_parameter("weight_g").mul_(2)
    return linear


def _parametrised(linear: nn.Linear) -> nn.Linear:
    parametrize.register_parametrization(linear, "weight", Doubled())
    return linear


def _with_hook(linear: nn.Linear) -> nn.Linear:
    linear.register_forward_hook(lambda _, given, out: 2 * out)
    return linear


def _with_hook_before(linear: nn.Linear) -> nn.Linear:
    linear.register_forward_pre_hook(lambda _, given: (2 * given[0],))
    return linear


def _with_new_forward(linear: nn.Linear) -> nn.Linear:
    before = linear.forward
    vars(linear)["forward"] = lambda tokens: 2 * before(tokens)  # as accelerate does
    return linear


CHANGES: dict[str, Callable[[nn.Linear], nn.Module]] = {
    "adapter": LowRankAdapter,
    "wrapper": lambda linear: nn.Sequential(linear, Doubled()),
    "pruning": _pruned,
    "weight norm": _normed,
    "parametrisation": _parametrised,
    "hook": _with_hook,
    "hook before": _with_hook_before,
    "forward": _with_new_forward,
}
"""Functions that change what a linear map computes, by name."""

LAYERS: dict[str, tuple[str, dict[str, Any]]] = {
    "softmax": ("softmax", {"output_gate": "headwise"}),
    "fused": ("softmax", {"fused": True}),
    "latents": ("softmax", {"latent_dim": 4}),
    "stepwise": ("linear", {"causal": True}),
    "streams of heads": ("delta_rule", {"causal": True}),
    "fused, streams": ("gated_linear", {"causal": True, "fused": True}),
    "compressing": ("linformer", {"projected_length": 3}),
    "fused, compressing": ("linformer", {"projected_length": 3, "fused": True}),
}
"""Mechanisms and options of layers that call their projections in different ways."""


def build(kind: str, **more: Any) -> MultiHeadAttention:
    torch.manual_seed(0)
    attention, options = LAYERS[kind]
    layer = MultiHeadAttention(DIM, 2, attention, length=LENGTH, **options, **more).double().eval()
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return layer


def tokens(length: int = LENGTH) -> Tensor:
    return torch.randn(2, length, DIM, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def maps(layer: MultiHeadAttention) -> list[str]:
    """Return the paths of the linear maps of a layer."""
    return [path for path, module in layer.named_modules() if type(module) is nn.Linear]


def put(layer: MultiHeadAttention, path: str, module: nn.Module) -> None:
    above, _, name = path.rpartition(".")
    layer.get_submodule(above).register_module(name, module)


def merged(linear: Any, width: int) -> nn.Linear:
    """Return the plain linear map that computes what a call of ``linear`` computes."""
    with torch.no_grad():
        bias = linear(torch.zeros(1, width, dtype=torch.float64))
        weight = (linear(torch.eye(width, dtype=torch.float64)) - bias).T
        plain = nn.Linear(width, len(weight), dtype=torch.float64)
        plain.load_state_dict({"weight": weight, "bias": bias[0]})
    return plain


def stepwise(layer: MultiHeadAttention, x: Tensor) -> Tensor:
    first, state = layer.step(x[:, :5], layer.initial_state(len(x)))
    return torch.cat([first, layer.step(x[:, 5:], state)[0]], dim=1)


@pytest.mark.parametrize("kind", LAYERS)
@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_projection_takes_effect_in_every_call(kind, change):
    """Each linear map in turn is changed. The layer must equal one whose linear map has the changed weights."""
    x, valid = tokens(), torch.ones(2, LENGTH, dtype=torch.bool)
    valid[0, 7:] = False
    original = build(kind)
    plain = original(x)
    for path in maps(original):
        layer, wanted = build(kind), build(kind)
        linear, twin = layer.get_submodule(path), wanted.get_submodule(path)
        assert isinstance(linear, nn.Linear) and isinstance(twin, nn.Linear)
        put(layer, path, CHANGES[change](linear))
        put(wanted, path, merged(CHANGES[change](twin), twin.in_features))  # another module, because calls update pruned weights
        expected = wanted(x)
        assert (expected - plain).abs().max() > 1e-6
        torch.testing.assert_close(layer(x), expected, rtol=0, atol=1e-11, msg=path)
        torch.testing.assert_close(layer(x, remembered=layer.remember(x)), expected, rtol=0, atol=1e-11, msg=path)
        masked = layer(x, key_valid=valid)[valid]
        torch.testing.assert_close(masked, wanted(x, key_valid=valid)[valid], rtol=0, atol=1e-11, msg=path)
        if layer.mechanism.card.can.stepwise:
            torch.testing.assert_close(stepwise(layer, x), expected, rtol=0, atol=1e-11, msg=path)


@pytest.mark.parametrize("kind", LAYERS)
def test_pruned_projections_are_trained(kind):
    layer, losses = build(kind).train(), []
    for path in maps(layer):
        prune.random_unstructured(layer.get_submodule(path), "weight", 0.5)
    optimiser = torch.optim.SGD(layer.parameters(), lr=1e-2)
    for _ in range(3):
        losses.append(layer(tokens()).square().mean())
        optimiser.zero_grad()
        losses[-1].backward()
        optimiser.step()
    assert losses[0] > losses[1] > losses[2]


def _note(seen: list[str], path: str, *given: Any) -> None:
    seen.append(path)


@pytest.mark.parametrize("kind", LAYERS)
def test_hooks_of_the_backward_pass_run(kind):
    layer, seen = build(kind), list[str]()
    for path in maps(layer):
        linear = layer.get_submodule(path)
        linear.register_full_backward_hook(partial(_note, seen, path))
        linear.register_full_backward_pre_hook(partial(_note, seen, path))
    layer(tokens().requires_grad_()).sum().backward()
    assert sorted(seen) == sorted(2 * maps(layer))


@pytest.mark.parametrize("kind", LAYERS)
def test_a_quantised_layer_stays_close(kind):
    layer, x = build(kind).float(), tokens().float()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch moves this function to another package
        small = torch.ao.quantization.quantize_dynamic(layer, {nn.Linear})
    with torch.no_grad():
        out, wanted = small(x), layer(x)
        assert 0 < (out - wanted).norm() < 0.1 * wanted.norm()
        torch.testing.assert_close(small(x, remembered=small.remember(x)), out)
        if small.mechanism.card.can.stepwise:
            assert (stepwise(small, x) - wanted).norm() < 0.1 * wanted.norm()


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("change", CHANGES)
def test_a_layer_that_was_told_to_compress_first_refuses_changed_projections(change, fused):
    kind = "fused, compressing" if fused else "compressing"
    path = "projection" if fused else "projections.value"
    layer = build(kind, order="compress_first")
    plain = layer.get_submodule(path)
    assert isinstance(plain, nn.Linear)
    put(layer, path, CHANGES[change](copy.deepcopy(plain)))
    for call in (layer, layer.remember):
        with pytest.raises(UnsupportedError, match=rf"linformer: {path} must be an nn.Linear without hooks.*order='project_first'"):
            call(tokens())
    assert layer.order is Order.compress_first and "compress_first" in str(layer)
    put(layer, path, plain)
    torch.testing.assert_close(layer(tokens()), build(kind)(tokens()), rtol=0, atol=1e-12)


def test_the_order_follows_the_projections_to_keys_and_values():
    layer, wanted = build("compressing"), build("compressing", order="project_first")
    orders, remembered = [layer.order], layer.remember(tokens())
    hooks = [layer.projections[name].register_forward_hook(lambda *given: None) for name in ("query", "key")]
    orders.append(layer.order)
    torch.testing.assert_close(layer(tokens()), wanted(tokens()), rtol=0, atol=1e-12)
    torch.testing.assert_close(layer(tokens(), remembered=remembered), wanted(tokens()), rtol=0, atol=1e-12)
    hooks[1].remove()
    orders.append(layer.order)  # queries are projected in the same way in both orders
    assert orders == [Order.compress_first, Order.project_first, Order.compress_first]


def test_hooks_see_all_queries_at_once(monkeypatch):
    monkeypatch.setattr("attn_zoo.layer.multi_head.CACHED_BYTES", 1)
    layer, seen = build("compressing"), list[tuple[int, ...]]()
    for linear in (layer.projections["query"], layer.out):
        linear.register_forward_hook(lambda module, given, out: seen.append(tuple(out.shape)))
    with torch.no_grad():
        layer(tokens())
    assert seen == [(2, LENGTH, DIM)] * 2


def test_streams_cannot_start_as_a_changed_projection():
    layer = build("streams of heads")
    layer.projections["key"] = _with_hook(build("stepwise").projections["key"])  # type: ignore[arg-type]
    with pytest.raises(
        UnsupportedError, match=r"delta_rule: projections\.\w+ must be an nn.Linear without hooks.*got one with hooks"
    ):
        layer.start_streams()
