"""Checks that gradients are correct, and that they reach every input that a card lists as read."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any

import torch
from torch import Tensor
from torch.autograd.gradcheck import GradcheckError

from attn_zoo.conformance.harness import NotApplicable, Violation, require, require_finite, seed_generators
from attn_zoo.conformance.requests import Request, answers, called_with, trained_parameters, weighed, without_padded_queries
from attn_zoo.conformance.sizes import BORDERS
from attn_zoo.conformance.subject import ENDS_AND_HOLES, Subject, attention_check
from attn_zoo.contract import Attention, Geometry, UnsupportedError, auxiliary_loss

# A query has no influence if it sees only one key, for example because it is alone in its bucket.
OWN = 0.5
"""Smallest permitted share of outputs that depend on the query at their own position."""
DRAWS = 16
"""Largest number of random draws of the inputs. Each position must get a gradient in at least one draw."""
STEPS = (1e-6, 1e-7, 1e-8)
"""Step sizes of the finite differences. Each step is taken in a different random direction."""
# The second is needed because finite differences divide the rounding error of the sum by a small step.
SLOPE, ROUNDING = 1e-4, 1e-8
"""A slope computed from gradients may differ from finite differences by ``SLOPE`` times the slope (or the norm of its summands,
if larger) plus ``ROUNDING`` times the sum of the outputs."""


@attention_check("implementation")
def every_position_gets_a_gradient(subject: Subject) -> None:
    """Each valid position of each input and additional input (stream) gets a gradient, even if the numbers of queries and keys
    differ. If a newly built layer computes a stream as a copy of an input, the gradient of the stream also counts for this
    input."""
    masks: list[Tensor | None] = [None]
    if subject.card.can.key_padding:
        holes = torch.ones(1, subject.length, dtype=torch.bool, device=subject.device)
        holes[:, 2::5] = False
        masks.append(holes.expand(4, -1))
    for geometry, mask in product((subject.geometry(), *subject.across()), masks):
        # Four examples and all heads: a hash may leave one position alone in its bucket, but not in each of them.
        found = _without_gradient(subject, subject.build(geometry), 4, mask)
        for name, dead in found.items():
            where = f"{geometry.queries} queries, {geometry.keys} keys, padded={mask is not None}"
            require(not dead, f"{name}: no gradient at {len(dead)} positions ({where}): {dead[:8]}")


def _without_gradient(
    subject: Subject, module: Attention, batch: int, mask: Tensor | None = None, causal: bool = False
) -> dict[str, list[int]]:
    """Return the valid positions of each tensor that get a gradient in none of several random draws.

    A selection by content may leave a position out of all draws. Such a position is tried again with the token of a position that
    gets a gradient. Except for values, positions that see a single value are exempt.

    Args:
        causal: if True, only values are tried, from the second position to three quarters of the length.
    """
    reached: dict[str, Tensor] = {}
    for seed in range(DRAWS):
        request = subject.draw(module, batch=batch, seed=seed).padded(mask)
        for name, positions in _reached(request, module).items():
            if mask is not None and "keys" in request.sides[name]:
                positions = positions | ~mask[0, : len(positions)]
            reached[name] = positions | reached.get(name, torch.zeros_like(positions))
        if causal:
            reached = {"value": reached["value"]}
            reached["value"][[0, *range(3 * module.geometry.keys // 4, module.geometry.keys)]] = True
        if all(positions.all() for positions in reached.values()):
            break
    found = {name: torch.nonzero(~positions).flatten().tolist() for name, positions in reached.items()}
    if module.geometry.queries == module.geometry.keys:
        found = {name: [at for at in dead if name == "value" or not _alone(request, module, at)] for name, dead in found.items()}
    return {name: [at for at in dead if not _reached_by_other_token(request, module, name, at)] for name, dead in found.items()}


def _reached_by_other_token(request: Request, module: Attention, name: str, at: int) -> bool:
    """Return True if a position gets a gradient once it has swapped tokens with a position that gets one, in a single example."""
    one = request.rows(slice(0, 1))
    living = torch.nonzero(_reached(one, module)[name]).flatten().tolist()
    if not living:
        return False
    order = torch.arange(one.tensors[name].shape[2], device=one.value.device)
    order[[at, living[0]]] = order[[living[0], at]]
    swapped = one.changed(lambda _, tensor: tensor[:, :, order] if tensor.shape[2] == len(order) else tensor)
    return bool(_reached(swapped, module)[name][at])


def _reached(request: Request, module: Attention) -> dict[str, Tensor]:
    """Return a mask of the positions with a gradient, for each tensor. If a stream is initialised as a copy of an input, its
    gradient also counts for this input."""
    found = answers(request, module)
    reached = {}
    for name in request.tensors:
        grad = found[f"gradient of {name}"]
        require_finite(grad, f"gradient of {name}")
        reached[name] = (grad != 0).any(dim=3).any(dim=0).any(dim=0)
    for stream in module.card.streams(module.geometry, module.options):
        source = "query" if stream.starts_as == "key" and request.shared else stream.starts_as
        if source in reached and stream.of in request.sides[source]:
            served = reached[f"stream {stream.name}"]
            reached[source][: len(served)] |= served
    return reached


@attention_check("implementation")
def every_position_counts_at_every_size(subject: Subject) -> None:
    """At every tested length from 63 on, each position of each input and additional input (stream) gets a gradient in at least one
    of several random draws.

    In causal attention, this rule applies to values only, from the second position to three quarters of the length, because early
    queries may see a single key, and few queries see late keys. At positions that see a single value, queries, keys and streams are
    exempt.
    """
    for geometry in subject.sized(shortest=min(BORDERS)):
        module = subject.build(geometry)
        for name, dead in _without_gradient(subject, module, 2, causal=geometry.causal).items():
            message = f"{geometry}: {name}: no gradient at {len(dead)} of {geometry.keys} positions: {dead[:8]}"
            require(not dead, message)


def _alone(request: Request, module: Attention, place: int) -> bool:
    """Return True if a position sees only one value, for example in a block of one. Its query and key then have no influence."""
    one = request.rows(slice(0, 1)).leaves()
    grad = torch.autograd.grad(one(module)[:, :, place].sum(), one.value)[0]
    return int((grad != 0).any(dim=3).flatten(0, 1).any(dim=0).sum()) <= 1


@attention_check("variant")
def gradients_follow_outputs_at_every_size(subject: Subject) -> None:
    """Each gradient of ``eager`` equals the slope of the outputs, measured by finite differences. This holds at every tested size,
    with padding, and if the numbers of queries and keys differ."""
    if subject.dtype is not torch.float64:
        raise NotApplicable("gradients are compared with finite differences in float64 only")
    for module in subject.modules((*subject.across(), *subject.sized())):
        for request in subject.requests(module, ENDS_AND_HOLES, fewest=3):
            _require_slopes(module, request, f"{module.geometry}, padded={request.is_padded}")


def _require_slopes(module: Attention, request: Request, where: str, call: Callable[..., Tensor] | None = None) -> None:
    """Compare each gradient along random directions with finite differences of the outputs.

    Args:
        call: function that is called instead of ``module``. If it is given, only gradients of the inputs are compared.
    """
    found = answers(request, module, call)
    for name in (*request.tensors, *(trained_parameters(module) if call is None else ())):
        grad = found[f"gradient of {name}"]
        told = slope = 0.0
        for seed, step in enumerate(STEPS):  # one step may cross a kink or the border of a bucket, but hardly all
            way = torch.randn(grad.shape, generator=torch.Generator().manual_seed(seed), dtype=grad.dtype).to(grad.device)
            ahead, behind = (_weighed(module, call, request, name, way * shift) for shift in (step, -step))
            parts, slope = grad * way, ((ahead - behind) / (2 * step)).item()
            told, size = parts.sum().item(), parts.square().sum().sqrt().item()
            if abs(told - slope) <= SLOPE * max(size, abs(slope)) + ROUNDING * abs(ahead.item()):
                break
        else:
            raise Violation(f"{where}: the gradient of {name} gives a slope of {told:.6g}, finite differences give {slope:.6g}")


@torch.no_grad()
def _weighed(module: Attention, call: Callable[..., Tensor] | None, request: Request, name: str, shift: Tensor) -> Tensor:
    """Return the sum of the outputs with the weights of ``answers``, after a shift of one tensor or parameter."""
    call = module if call is None else call
    if name in request.tensors:
        moved = request.changed(lambda other, tensor: tensor + shift if other == name else tensor)
        return weighed(without_padded_queries(moved, moved(call)))
    parameter = module.get_parameter(name)
    kept = parameter.clone()
    parameter.add_(shift)
    out = request(call)
    parameter.copy_(kept)
    return weighed(without_padded_queries(request, out))


@attention_check("implementation")
def every_parameter_gets_a_gradient(subject: Subject) -> None:
    """Every parameter gets a gradient from the output or, in training, from a term that the mechanism adds to the loss."""
    module = subject.build()
    parameters = trained_parameters(module)
    if not parameters:
        raise NotApplicable("the module has no trainable parameters")
    with torch.no_grad():
        for parameter in parameters.values():  # away from zero, where gradients of other parameters vanish
            parameter.add_(0.01 * torch.randn_like(parameter))
    request = subject.draw(module)
    found = answers(request, module)
    request(module.train())
    if isinstance(term := auxiliary_loss(module), Tensor):
        term.backward()
    for name, parameter in parameters.items():
        grad = found[f"gradient of {name}"] if parameter.grad is None else parameter.grad
        require_finite(grad, f"gradient of the parameter {name}")
        require((grad != 0).any(), f"no gradient reaches the parameter {name}")


@attention_check("implementation")
def gradients_end_in_inputs_and_parameters(subject: Subject) -> None:
    """Gradients flow only into inputs and registered parameters. Optimisers and checkpoints would miss any other tensor."""
    for module in subject.modules():
        leaves = subject.draw(module).leaves()
        known = {id(tensor) for tensor in (*leaves.tensors.values(), *module.parameters())}
        waiting, seen = [leaves(module).grad_fn], set()
        while waiting:
            node = waiting.pop()
            if node is None or node in seen:
                continue
            seen.add(node)
            waiting += [parent for parent, _ in node.next_functions]
            tensor = getattr(node, "variable", None)
            require(
                tensor is None or id(tensor) in known,
                f"a gradient flows into a tensor of shape {tuple(getattr(tensor, 'shape', ()))} that is neither an input nor a "
                "parameter; assign an nn.Parameter to the module, and lists of them as nn.ParameterList",
            )


@attention_check("implementation", "query")
def outputs_follow_their_own_queries(subject: Subject) -> str:
    """If the mechanism uses queries, at least half of the outputs depend on the query at their own position."""
    shares = []
    for module in subject.modules():
        geometry = module.geometry
        places = torch.arange(geometry.keys, device=subject.device)
        leaves = subject.draw(module, batch=1).rows(torch.zeros_like(places)).leaves()
        own = leaves(module)[places, :, places].sum()  # output i of example i
        grad = torch.autograd.grad(own, leaves.tensors["query"], allow_unused=True)[0]
        reached = torch.zeros(geometry.keys) if grad is None else grad[places, :, places].abs().amax(dim=(1, 2))
        shares.append((reached != 0).double().mean().item())
        message = f"causal={geometry.causal}: {shares[-1]:.0%} of the outputs depend on the query at their own position"
        require(shares[-1] >= OWN, f"{message}; at least {OWN:.0%} must")
    return f"at least {min(shares):.0%} of the outputs"


@attention_check("implementation")
def gradients_follow_dropout(subject: Subject) -> None:
    """In training with dropout, gradients with respect to inputs equal slopes of the outputs, measured under the same seed. A
    backward pass that recomputes weights must therefore drop the same weights as the forward pass."""
    names = subject.dropouts()
    if not names or subject.dtype is not torch.float64:
        raise NotApplicable("this check needs an option for dropout and inputs in float64")
    options = replace(subject.options, **dict.fromkeys(names, 0.5))
    for geometry in subject.plain_and_causal():
        try:
            module = subject.build(geometry, options=options).train()
        except UnsupportedError:
            continue
        _require_slopes(module, subject.draw(module, batch=2), f"{geometry}, with dropout", partial(_seeded, module))


def _seeded(module: Attention, *inputs: Any, **given: Any) -> Tensor:
    """Call a copy of the module under a fixed seed."""
    seed_generators(5)
    out: Tensor = copy.deepcopy(module)(*inputs, **given)  # a call in training may change the module
    return out


@attention_check("variant")
def gradients_match_finite_differences(subject: Subject) -> None:
    """In float64, gradients with respect to inputs, additional inputs (streams) and parameters agree with finite differences of the
    outputs."""
    cross = [replace(geometry, queries=3) for geometry in subject.across()[:1]]
    for geometry in (*subject.plain_and_causal(), *cross):
        small = smallest(subject, geometry)
        for request in subject.requests(small, ENDS_AND_HOLES):
            _gradcheck(small, request, f"{small.geometry}, padded={request.is_padded}")


def smallest(subject: Subject, geometry: Geometry) -> Attention:
    few = subject.geometry(7, head_dim=4, causal=geometry.causal)
    small = subject.build_if_allowed(few if geometry.queries == geometry.keys else replace(few, queries=geometry.queries))
    return subject.build(geometry) if small is None else small


def _gradcheck(module: Attention, request: Request, where: str) -> None:
    named = {**request.tensors, **{f"parameter {name}": tensor for name, tensor in trained_parameters(module).items()}}
    leaves = [tensor.detach().clone().requires_grad_() for tensor in named.values()]

    def run(*given: Tensor) -> Tensor:
        return called_with(request, module, dict(zip(named, given, strict=True)))

    try:
        torch.autograd.gradcheck(run, leaves, fast_mode=True, atol=1e-6, rtol=1e-4)
    except GradcheckError as error:
        raise Violation(f"{where}: {' '.join(str(error).split())[:400]}") from error
