"""Cases that the processes of test_sequence_parallel.py run: each in a group of all four processes and in groups of two."""

from __future__ import annotations

import copy
import traceback
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from attn_zoo.encoder.token import Block
from attn_zoo.layer import MultiHeadAttention, join_layers
from attn_zoo.parallel import SequenceParallelLinformer, all_reduce_sum, gather_state, parallelise, reduce_gradients

LENGTH, DIM, HEADS, BATCH = 22, 12, 3, 3  # 22 = 4 · 5.5 tokens: slices of four processes differ in length

LAYERS: dict[str, dict[str, Any]] = {
    "headwise": {},
    "headwise_project_first": {"order": "project_first"},
    "headwise_compress_first": {"order": "compress_first"},
    "without_bias": {"bias": False, "order": "compress_first"},
    "fused": {"fused": True, "order": "project_first"},
    "sdpa": {"implementation": "sdpa"},
    "no_sharing": {"sharing": "none"},
    "key_value": {"sharing": "key_value", "order": "compress_first"},
    "equalised": {"equalised": True, "sharing": "key_value", "order": "compress_first"},
    "longer_than_a_slice": {"projected_length": 13},
    "uneven_heads": {"sharing": "none", "projected_lengths": "3+5+3"},
    "random": {"projection": "random"},
    "frozen": {"frozen": True},
    "mean": {"projection": "mean", "order": "compress_first"},
    "mean_project_first": {"projection": "mean", "order": "project_first"},
    "max": {"projection": "max", "sharing": "none", "implementation": "sdpa"},
    "convolution": {"projection": "convolution"},
    "convolution_by_head": {"projection": "convolution", "sharing": "none"},
    "kernelized": {"attention": "kernelized_linformer"},
    "kernelized_means": {"attention": "kernelized_linformer", "projection": "mean"},
    "sparse": {"attention": "sparse_linformer"},
}

COUNTED = ("headwise_project_first", "headwise_compress_first", "key_value", "uneven_heads", "mean", "convolution")


def build(dtype: torch.dtype = torch.float64, **options: Any) -> MultiHeadAttention:
    """Build a layer, the same in every process, whose biases are not zero."""
    torch.manual_seed(5)
    attention = options.pop("attention", "linformer")
    if "projected_lengths" not in options:
        options.setdefault("projected_length", 4)
    layer = MultiHeadAttention(DIM, HEADS, attention, length=LENGTH, **options)
    for parameter in layer.parameters():
        if parameter.dim() == 1:
            nn.init.normal_(parameter)
    return layer.to(dtype)


def inputs(dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Return tokens, the mask of valid ones (one row full, one partial, one empty), and the gradient of the output."""
    generator = torch.Generator().manual_seed(6)
    tokens = torch.randn(BATCH, LENGTH, DIM, dtype=torch.float64, generator=generator).to(dtype)
    weights = torch.randn(BATCH, LENGTH, DIM, dtype=torch.float64, generator=generator).to(dtype)
    real = torch.ones(BATCH, LENGTH, dtype=torch.bool)
    real[1, :7] = real[1, 12:] = False
    real[2] = False
    return tokens, real, weights


def furthest(got: Tensor | None, want: Tensor | None, scale: float | None = None) -> float:
    """Largest difference, relative to the largest number or to ``scale``; infinite where one tensor is missing."""
    if got is None or want is None:
        return 0.0 if got is want else float("inf")
    if not got.isfinite().all() or got.shape != want.shape:
        return float("inf")
    if not want.numel():
        return 0.0
    return ((got - want).abs().max() / (scale or want.abs().max().clamp(min=1e-30))).item()


def one_layer(group: dist.ProcessGroup, dtype: torch.dtype, padded: bool, options: dict[str, Any]) -> dict[str, float]:
    """Compare forward and backward pass of a slice with the same slice of the whole layer."""
    whole = build(dtype, **options)
    shard = parallelise(whole, group)
    assert isinstance(shard, SequenceParallelLinformer)
    tokens, real, weights = inputs(dtype)
    if padded:
        tokens = tokens.masked_fill(~real[..., None], float("nan"))
    all_tokens, at = tokens.clone().requires_grad_(), shard.positions
    expected = whole(all_tokens, key_valid=real if padded else None)
    # Outputs at padded positions are left to the caller, so their gradient is set to zero.
    asked = weights.masked_fill(~real[..., None], 0) if padded else weights
    (expected * asked).sum().backward()
    own = tokens[:, at].clone().requires_grad_()
    got = shard(own, key_valid=real[:, at] if padded else None)
    (got * asked[:, at]).sum().backward()
    reduce_gradients(shard)
    assert all_tokens.grad is not None
    found = {"output": furthest(got, expected[:, at]), "tokens": furthest(own.grad, all_tokens.grad[:, at])}
    return found | _gradients(shard, whole)


def _gradients(shard: nn.Module, whole: nn.Module) -> dict[str, float]:
    """Compare the gradients of all weights; those of E and F are gathered as a state dict would be."""
    held = copy.deepcopy(shard)
    for mine, theirs in zip(held.parameters(), shard.parameters(), strict=True):
        mine.data = torch.zeros_like(theirs) if theirs.grad is None else theirs.grad
    joined = gather_state(held)
    wanted = {name: torch.zeros_like(p) if p.grad is None else p.grad for name, p in whole.named_parameters()}
    # The largest gradient of all weights is the scale: those of some key biases, which softmax cancels, are mere rounding.
    largest = max(gradient.abs().max().item() for gradient in wanted.values())
    return {name: furthest(joined[name], gradient, largest) for name, gradient in wanted.items()}


class Encoder(nn.Module):
    """Encoder of the documentation: positions, two of the zoo's blocks, the mean over valid tokens, class scores."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.positions = nn.Parameter(torch.randn(LENGTH, DIM))
        layers = [MultiHeadAttention(DIM, HEADS, "linformer", length=LENGTH, **options) for _ in range(2)]
        self.blocks = nn.ModuleList(Block(DIM, 2.0, 0.0, layer) for layer in layers)
        self.head = nn.Linear(DIM, 5)

    def forward(self, tokens: Tensor, real: Tensor, group: dist.ProcessGroup | None = None, at: slice = slice(None)) -> Tensor:
        x = tokens + self.positions[at]
        for block in self.blocks:
            x = block(x, real)
        summed, count = (x * real[..., None]).sum(dim=1), real.sum(dim=1, keepdim=True).to(x.dtype)
        if group is not None:
            summed, count = all_reduce_sum(summed, group), all_reduce_sum(count, group)
        return self.head(summed / count.clamp(min=1))


def encoder(group: dist.ProcessGroup, options: dict[str, Any]) -> dict[str, float]:
    """Compare two blocks and pooling over processes with one process: scores, and every weight after two optimiser steps."""
    torch.manual_seed(7)
    whole = Encoder(**options).double()
    join_layers(whole)
    shard = parallelise(whole, group)
    layer = next(part for part in shard.modules() if isinstance(part, SequenceParallelLinformer))
    tokens, real, _ = inputs(torch.float64)
    at, labels, ranks = layer.positions, torch.tensor([0, 3, 1]), dist.get_world_size(group)
    ours, theirs = (torch.optim.AdamW(model.parameters(), lr=0.01) for model in (shard, whole))
    found: dict[str, float] = {}
    for step in range(2):
        expected = whole(tokens, real)
        theirs.zero_grad()
        F.cross_entropy(expected, labels).backward()
        theirs.step()
        got = shard(tokens[:, at], real[:, at], group, at)
        ours.zero_grad()
        (F.cross_entropy(got, labels) / ranks).backward()  # every process computes the same loss
        reduce_gradients(shard)
        ours.step()
        found[f"scores of step {step}"] = furthest(got, expected)
    state = gather_state(shard)
    assert set(state) == set(whole.state_dict())
    again = Encoder(**options).double()
    join_layers(again)
    again.load_state_dict(state)
    return found | {name: furthest(state[name], want) for name, want in whole.state_dict().items()}


class Collectives(TorchDispatchMode):
    """Mode that records the bytes of every collective."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[str, int]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace == "c10d":
            self.seen.append((func.__name__, sum(t.numel() * t.element_size() for t in args[0])))
        return func(*args, **(kwargs or {}))


def counted(group: dist.ProcessGroup, options: dict[str, Any]) -> dict[str, Any]:
    """Return the collectives of a training step, and those that the layer states."""
    shard = parallelise(build(torch.float32, **options), group)
    assert isinstance(shard, SequenceParallelLinformer)
    tokens = inputs(torch.float32)[0][:, shard.positions].requires_grad_()
    with Collectives() as seen:
        out = shard(tokens)
    forward, seen.seen = seen.seen, []
    with torch.autograd.set_multithreading_enabled(False), seen:  # backward in this thread, where the mode sees it
        out.sum().backward()
    return {"forward": forward, "backward": seen.seen, "said": shard.communicated(BATCH), "order": shard.order.value}


def shorter(group: dist.ProcessGroup, options: dict[str, Any]) -> dict[str, float]:
    """Compare outputs and gradients of shorter sequences, of which some processes hold fewer tokens or none."""
    whole = build(**options)
    shard = parallelise(whole, group)
    assert isinstance(shard, SequenceParallelLinformer)
    tokens, _, weights = inputs(torch.float64)
    found: dict[str, float] = {}
    for length in (7, 13):
        at = slice(shard.positions.start, max(shard.positions.start, min(length, shard.positions.stop)))
        whole.zero_grad()
        expected = whole(tokens[:, :length])
        (expected * weights[:, :length]).sum().backward()
        shard.zero_grad()
        got = shard(tokens[:, at])
        (got * weights[:, at]).sum().backward()
        reduce_gradients(shard)
        gradients = _gradients(shard, whole)
        found |= {f"{length} output": furthest(got, expected[:, at][:, : got.shape[1]])}
        found |= {f"{length} {name}": gap for name, gap in gradients.items()}
    return found


def unused_weight(group: dist.ProcessGroup) -> dict[str, Any]:
    """Return the gradients of a weight that only one process uses, and of one that none uses."""
    torch.manual_seed(8)
    model = nn.ModuleDict({"layer": build(), "some": nn.Linear(2, 2).double(), "never": nn.Linear(2, 2).double()})
    shard = parallelise(model, group)
    if dist.get_rank(group) == 1:
        shard.get_submodule("some")(torch.ones(1, 2, dtype=torch.float64)).sum().backward()
    reduce_gradients(shard)
    some, never = (dict(shard.named_parameters())[f"{name}.weight"].grad for name in ("some", "never"))
    return {"some": None if some is None else some.tolist(), "never": never is None}


def second_derivative(group: dist.ProcessGroup) -> dict[str, float]:
    """Compare the derivatives of (Σ x)³, x being summed over processes: the second is 6 Σ x in each."""
    x = torch.tensor(float(dist.get_rank(group) + 1), dtype=torch.float64, requires_grad=True)
    (first,) = torch.autograd.grad(all_reduce_sum(x, group) ** 3 / dist.get_world_size(group), x, create_graph=True)
    total = sum(range(1, dist.get_world_size(group) + 1))
    (second,) = torch.autograd.grad(first / dist.get_world_size(group), x)
    return {"first": furthest(first, torch.tensor(3.0 * total**2)), "second": furthest(second, torch.tensor(6.0 * total))}


def refusals(group: dist.ProcessGroup) -> dict[str, str]:
    """Return the error messages of unsupported requests, by request."""
    shard = parallelise(build(), group)
    assert isinstance(shard, SequenceParallelLinformer)
    tokens = inputs(torch.float64)[0]
    here = tokens[:, shard.positions]
    asked: dict[str, Callable[[], object]] = {
        "another mechanism": lambda: parallelise(MultiHeadAttention(DIM, HEADS, "softmax", length=LENGTH), group),
        "window": lambda: parallelise(MultiHeadAttention(DIM, HEADS, "linformer_window", length=LENGTH), group),
        "cross": lambda: parallelise(build(context_length=LENGTH), group),
        "convolved": lambda: parallelise(build(short_convolution=4), group),
        "nothing": lambda: parallelise(nn.Linear(2, 2), group),
        "twice": lambda: parallelise(shard, group),
        "unjoined": lambda: parallelise(build(projected_lengths="3/4"), group),
        "few tokens": lambda: parallelise(MultiHeadAttention(4, 1, "linformer", length=1, allow_full_rank=True), group),
        "windows of heads": lambda: parallelise(build(projection="mean", sharing="none", projected_lengths="3+5+3"), group),
        "few windows": lambda: parallelise(build(projection="mean", projected_length=1), group),
        "whole sequence": lambda: shard(tokens),
        "mask of the whole": lambda: shard(here, key_valid=torch.ones(BATCH, LENGTH, dtype=torch.bool)),
        "context": lambda: shard(here, here),
        "remember": lambda: shard.remember(here),
        "resize": lambda: shard.resize_length(40),
        "gradients": lambda: reduce_gradients(nn.Linear(2, 2)),
        "state": lambda: gather_state(nn.Linear(2, 2)),
    }
    said = {}
    for what, request in asked.items():
        try:
            request()
            said[what] = "no refusal"
        except ValueError as error:
            said[what] = f"{type(error).__name__}: {error}"
    return said


def cases() -> dict[str, Callable[[dist.ProcessGroup], dict[str, Any]]]:
    """Return the cases by name; each returns its differences from one process, by part, or its observations."""
    double = torch.float64
    found = {name: partial(one_layer, dtype=double, padded=True, options=options) for name, options in LAYERS.items()}
    for name in ("headwise", "no_sharing", "equalised", "mean"):
        found[f"{name} without a mask"] = partial(one_layer, dtype=double, padded=False, options=LAYERS[name])
    found["float32"] = partial(one_layer, dtype=torch.float32, padded=True, options={})
    found |= {f"counted {name}": partial(counted, options=LAYERS[name]) for name in COUNTED}
    for name in ("headwise_compress_first", "no_sharing", "mean", "max", "convolution"):
        found[f"shorter {name}"] = partial(shorter, options=LAYERS[name])
    found["encoder"] = partial(encoder, options={"projected_length": 4})
    found["encoder layerwise"] = partial(encoder, options={"projected_length": 4, "sharing": "layerwise"})
    found["encoder by layer"] = partial(encoder, options={"projected_lengths": "4/6"})
    alone = {"unused weight": unused_weight, "second derivative": second_derivative, "refusals": refusals}
    return {**found, **alone}


def run() -> dict[int, dict[str, Any]]:
    """Run all cases in one of four processes; return their results by the number of processes that share the sequence."""
    patience = timedelta(seconds=300)  # timeout for processes that failed and never arrive
    dist.init_process_group("gloo", timeout=patience)
    pairs = [dist.new_group(ranks, timeout=patience) for ranks in ([0, 1], [2, 3])]
    groups = {4: dist.group.WORLD, 2: pairs[dist.get_rank() // 2]}
    found: dict[int, dict[str, Any]] = {}
    for ranks, group in groups.items():
        found[ranks] = {}
        for name, case in cases().items():
            try:
                found[ranks][name] = case(group)  # type: ignore[arg-type]  # WORLD is None in the types until processes have met
            except Exception:  # reported to the test, which fails; raised here, it would leave the other processes waiting
                found[ranks][name] = {"failed": traceback.format_exc()}
    dist.destroy_process_group()
    return found
