"""Random inputs that fit the card of a mechanism, and functions that change these inputs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from jaxtyping import Bool
from torch import Tensor
from torch.func import functional_call

from attn_zoo.conformance.harness import require, require_finite
from attn_zoo.contract import Attention

Change = Callable[[str, Tensor], Tensor]


@dataclass(frozen=True)
class Request:
    """Arguments of one call of a mechanism."""

    query: Tensor | None
    key: Tensor | None
    value: Tensor
    key_valid: Tensor | None = None
    streams: Mapping[str, Tensor] = field(default_factory=dict)
    sides: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """For each tensor, ``queries`` if it has one position per query, ``keys`` if it has one per key, and both if it serves as
    queries and keys. The values, and streams that replace values, also have ``values``."""

    @property
    def shared(self) -> bool:
        """True if queries and keys are the same tensor."""
        return self.query is not None and self.key is self.query

    @property
    def tensors(self) -> dict[str, Tensor]:
        """Distinct input tensors by name. An additional input (stream) is named ``stream NAME``. If queries and keys are the same
        tensor, it appears once, as the query."""
        named = {"query": self.query, "key": None if self.shared else self.key, "value": self.value}
        named |= {f"stream {name}": tensor for name, tensor in self.streams.items()}
        return {name: tensor for name, tensor in named.items() if tensor is not None}

    @property
    def is_padded(self) -> bool:
        """True if there is a padding mask."""
        return self.key_valid is not None

    @property
    def positions(self) -> int:
        """Number of output positions per example."""
        return (self.value if self.query is None else self.query).shape[2]

    def __call__(self, module: Callable[..., Any]) -> Tensor:
        """Call the module with these arguments."""
        out: Tensor = module(self.query, self.key, self.value, key_valid=self.key_valid, streams=self.streams or None)
        return out

    def changed(self, change: Change) -> Request:
        """Return a copy in which ``change(name, tensor)`` replaces each distinct tensor. If queries and keys are the same tensor,
        they stay the same tensor."""
        new = {name: change(name, tensor) for name, tensor in self.tensors.items()}
        key = new.get("query") if self.shared else new.get("key")
        streams = {name: new[f"stream {name}"] for name in self.streams}
        return replace(self, query=new.get("query"), key=key, value=new["value"], streams=streams)

    def times(self, factor: float) -> Request:
        """Return a copy with all tensors multiplied by ``factor``."""
        return self.changed(lambda _, tensor: factor * tensor)

    def holding(self, tensors: Mapping[str, Tensor]) -> Request:
        """Return a copy with the given tensors, by the names of ``Request.tensors``."""
        return self.changed(lambda name, _: tensors[name])

    def padded(self, key_valid: Tensor | None) -> Request:
        """Return a copy with the padding mask ``key_valid``, or without a mask if it is None."""
        return replace(self, key_valid=key_valid)

    def rows(self, index: Tensor | slice) -> Request:
        """Return a copy with only the examples that ``index`` selects."""
        mask = None if self.key_valid is None else self.key_valid[index]
        return self.changed(lambda _, tensor: tensor[index]).padded(mask)

    def first(self, length: int) -> Request:
        """Return a copy with the first ``length`` positions of every tensor and without a mask."""
        return self.changed(lambda _, tensor: tensor[:, :, :length]).padded(None)

    def between(self, start: int, stop: int | None) -> Request:
        """Return a copy with the positions from ``start`` to ``stop`` of every tensor and without a mask. An additional input
        (stream) that ends before ``start`` becomes empty."""
        return self.changed(lambda _, tensor: tensor[:, :, start:stop]).padded(None)

    def leaves(self) -> Request:
        """Return a copy whose tensors are leaves that require gradients. They share memory with the tensors of this request."""
        return self.changed(lambda _, tensor: tensor.detach().requires_grad_())

    def cast(self, dtype: torch.dtype) -> Request:
        """Return a copy with all tensors converted to ``dtype``."""
        return self.changed(lambda _, tensor: tensor.to(dtype))

    def filled_at_padding(self, fill: Callable[[Tensor], Tensor], side: str = "keys") -> Request:
        """Return a copy in which ``fill(tensor)`` replaces the padded positions in the tensors of one side: ``keys`` or
        ``queries``."""
        mask = self.key_valid
        if mask is None:
            return self

        def change(name: str, tensor: Tensor) -> Tensor:
            if side not in self.sides[name]:
                return tensor
            return torch.where(mask[:, None, : tensor.shape[2], None], tensor, fill(tensor))

        return self.changed(change)


def draw(
    module: Attention,
    dtype: torch.dtype,
    device: torch.device,
    *,
    batch: int = 3,
    queries: int | None = None,
    keys: int | None = None,
    seed: int = 1,
    unread: bool = False,
    tied: bool = False,
) -> Request:
    """Return random inputs for ``module`` from a standard normal distribution, with the additional inputs (streams) that its card
    requires.

    Args:
        queries, keys: numbers of queries and keys; those of the module's geometry by default.
        unread: if True, also draw the inputs that the card does not list as read. By default they are None.
        tied: if True, each stream is computed from the queries, keys or values, as in a newly built layer. By default it is drawn.
    """
    card, geometry = module.card, module.geometry
    lengths = {"queries": queries or geometry.queries, "keys": keys or geometry.keys}
    generator = torch.Generator().manual_seed(seed)

    def normal(length: int) -> Tensor:
        drawn = torch.randn(batch, geometry.heads, length, geometry.head_dim, dtype=torch.float64, generator=generator)
        return drawn.to(device, dtype)

    # Everything is drawn in one order, so that None for an unread input does not shift the others.
    drawn = {"query": normal(lengths["queries"]), "key": normal(lengths["keys"]), "value": normal(lengths["keys"])}
    sides = {"query": frozenset({"queries"}), "key": frozenset({"keys"}), "value": frozenset({"keys", "values"})}
    given: dict[str, Tensor | None] = {name: tensor if unread or name in card.reads else None for name, tensor in drawn.items()}
    if card.can.shares_query_key:
        given["key"] = drawn["key"] = drawn["query"]
        sides["query"] = frozenset({"queries", "keys"})
    streams = {}
    for stream in card.streams(geometry, module.options):
        own = normal(lengths[stream.of])[:, :, : stream.first]
        streams[stream.name] = stream.of_channels(drawn[stream.starts_as][:, :, : stream.first] if tied else own)
        sides[f"stream {stream.name}"] = frozenset({stream.of, "values"} if stream.starts_as == "value" else {stream.of})
    return Request(given["query"], given["key"], drawn["value"], None, streams, sides)


def require_like_queries(request: Request, out: Tensor, where: str) -> None:
    """Require that an output has the shape of the queries, the dtype and device of the inputs, and finite numbers only.

    Raises:
        Violation: a rule is broken; the message begins with ``where``.
    """
    like = request.value if request.query is None else request.query
    require(isinstance(out, Tensor), f"{where}: the output must be a tensor; got {type(out).__name__}")
    require(out.shape == like.shape, f"{where}: the output has shape {tuple(out.shape)}, but the queries have {tuple(like.shape)}")
    require(out.dtype == like.dtype, f"{where}: the output has dtype {out.dtype}, but the inputs have {like.dtype}")
    require(out.device == like.device, f"{where}: the output is on {out.device}, but the inputs are on {like.device}")
    require_finite(out, f"{where}: output")


def without_padded_queries(request: Request, out: Tensor) -> Tensor:
    """Return the outputs. If queries and keys are the same tensor, outputs of padded queries are undefined, so a copy with zeros in
    their place is returned."""
    if request.shared and request.key_valid is not None:
        return out.masked_fill(~request.key_valid[:, None, :, None], 0)
    return out


def weighed(out: Tensor) -> Tensor:
    """Return a weighted sum of the outputs, whose gradients the checks compare. The fixed weights are at most 1 and depend
    quadratically on the position, so differences of neighbouring positions do not cancel."""
    # Rounded last: 16 bits hold no x near -1 but -1 itself, whose weight is zero.
    line = torch.linspace(-1, 1, out.numel(), dtype=torch.float64, device=out.device).reshape(out.shape)
    return (out * ((line + line.square()) / 2).to(out.dtype)).sum()


def trained_parameters(module: Attention) -> dict[str, Tensor]:
    """Return the parameters of ``module`` that require gradients, by name."""
    return {name: parameter for name, parameter in module.named_parameters() if parameter.requires_grad}


def answers(
    request: Request,
    module: Attention,
    call: Callable[..., Any] | None = None,
    *,
    asked: Collection[str] | None = None,
    along: Callable[[Tensor], Tensor] | None = None,
) -> dict[str, Tensor]:
    """Return the output of a call, and the gradients of a weighted sum of the output with respect to every input, stream and
    trainable parameter. A gradient that does not exist is returned as zeros.

    Args:
        call: function that is called instead of ``module``, if given.
        asked: names of the inputs and streams that require gradients. None means all.
        along: function of the output that returns its gradient. None means the weights of ``weighed``.
    """
    leaves = request.changed(lambda name, tensor: tensor.detach().requires_grad_(asked is None or name in asked))
    out = without_padded_queries(request, leaves(module if call is None else call))
    named = {name: leaf for name, leaf in leaves.tensors.items() if leaf.requires_grad} | trained_parameters(module)
    grads: Sequence[Tensor | None] = [None] * len(named)
    if named and out.requires_grad:
        total, weights = (weighed(out), None) if along is None else (out, along(out))
        grads = torch.autograd.grad(total, list(named.values()), weights, allow_unused=True)
    found = {
        f"gradient of {name}": torch.zeros_like(named[name]) if grad is None else grad
        for name, grad in zip(named, grads, strict=True)
    }
    return {"output": out.detach(), **found}


def influence(out: Tensor, request: Request) -> Tensor:
    """Return for each key position how much its value, and streams that replace values, influence the sum of ``out``: the sum of
    absolute gradients, (keys). ``request`` holds the leaves that ``out`` was computed from."""
    values = [tensor for name, tensor in request.tensors.items() if "values" in request.sides[name]]
    total = torch.zeros(request.value.shape[2], dtype=out.dtype, device=out.device)
    for grad in torch.autograd.grad(out.sum(), values, retain_graph=True, allow_unused=True):
        if grad is not None:
            total[: grad.shape[2]] += grad.abs().sum(dim=(0, 1, 3))
    return total


def called_with(request: Request, module: Attention, given: Mapping[str, Tensor]) -> Tensor:
    """Call ``module`` with other inputs and trainable parameters, and return the outputs without padded queries.

    Args:
        given: inputs by the names of ``Request.tensors``, and each parameter NAME as ``parameter NAME``.
    """
    held = request.holding(given)
    parameters = {name: given[f"parameter {name}"] for name in trained_parameters(module)}
    arguments = {"key_valid": held.key_valid, "streams": held.streams or None}
    return without_padded_queries(held, functional_call(module, parameters, (held.query, held.key, held.value), arguments))


def key_masks(keys: int, device: torch.device | str = "cpu") -> Bool[Tensor, "6 keys"]:
    """Return six masks, which are True at valid keys. They hide, in this order: nothing, keys on the right, on the left, at both
    ends, every third key, and all keys but one."""
    valid = torch.ones(6, keys, dtype=torch.bool)
    third = max(1, keys // 3)
    valid[1, keys - third :] = False
    valid[2, :third] = False
    valid[3, : third // 2] = False
    valid[3, keys - third // 2 - 1 :] = False
    valid[4, 1::3] = False
    valid[5] = False
    valid[5, keys // 2] = True
    return valid.to(device)
