"""Counted costs of a run's network, computed on a copy on the meta device, where tensors have shapes but no values."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from attn_zoo.contract import Batch, Frames, Geometry, Pairs, Patches, TaskSpec, UnsupportedError, join_stacks
from attn_zoo.count import as_on_a_cpu, count_flops, count_model, kept_bytes
from attn_zoo.encoder import PositionClassifier, build_model, build_token_reader
from attn_zoo.records import Budget, RunSpec
from attn_zoo.records.spec import digest_of
from attn_zoo.registry import card, make_options
from attn_zoo.rows import row_of
from attn_zoo.runner.pretrain import asked_tokens

LONG = 4096
"""Number of tokens at which costs of mechanisms are counted, in addition to the length of the task."""
_COUNTED: dict[Any, dict[str, int]] = {}
"""Counts of this process, by everything on which they depend."""


def counted_implementation(spec: RunSpec) -> str:
    """Return the name of the implementation for which the card of a run's mechanism states FLOPs.

    A hybrid has layers with different mechanisms. If their cards name different implementations, the names are joined by ``+``.
    """
    names = [card(part.attention).counted_implementation for part in row_of(spec).parts()]
    return names[0] if len(set(names)) == 1 else "+".join(names)


def geometry_of(spec: RunSpec, task: TaskSpec) -> Geometry:
    """Return the geometry (heads, head width, lengths, direction) for which the mechanisms of a run are built."""
    model = spec.model
    sizes = model.heads, model.dim // model.heads, task.positions, task.positions
    return Geometry(*sizes, task.causal, model.key_value_heads, model.latent_dim)


def count_per_example(spec: RunSpec, task: TaskSpec, implementation: str) -> dict[str, int]:
    """Return the counted costs of a run's network for one example without padding. Its length is that of training inputs or, for
    ``flops_per_example`` and the mechanisms, that of the longest inputs:

    - ``flops_per_example`` (forward) and ``training_flops_per_example`` (forward and backward), for the implementation
      that ``counted_implementation`` names;
    - ``pretraining_flops_per_example`` (forward and backward, full length), if the run has pretraining;
    - ``activation_bytes_per_example``: bytes that autograd saves for a training batch, except those of the loss, divided by the
      number of examples;
    - the counts of ``count_mechanisms``.

    Activation bytes are left out if they may differ from those of the run. They are counted only if the run is in fp32, without
    dropout (whose masks differ by device), and ``implementation`` is ``eager``, ``tiled`` or, on a CPU, ``sdpa``. Counts that
    depend on more than shapes are left out too.
    """
    budget = Budget(batch_size=spec.budget.batch_size, pretrain_steps=min(1, spec.budget.pretrain_steps))
    same = replace(spec, seed=1, task_options={}, budget=budget)  # runs with other seeds and learning rates have the same counts
    cards = [card(part.attention) for part in row_of(spec).parts()]
    key = digest_of(same.to_dict()), task, implementation, *((entry.build, entry.cost) for entry in cards)
    if key not in _COUNTED:
        _COUNTED[key] = _count(same, task, implementation)
    return dict(_COUNTED[key])


def _count(spec: RunSpec, task: TaskSpec, implementation: str) -> dict[str, int]:
    with torch.device("meta"):
        twin = build_model(task, implementation=counted_implementation(spec), **spec.network)
        forward = count_flops(twin, _batch(task, 1))
        try:
            training = sum(_flops(twin, _batch(task.in_training, 1)))
        except (NotImplementedError, RuntimeError):  # a plugin's backward pass may need values
            return {"flops_per_example": forward, **count_mechanisms(spec, task)}
    counted = {"flops_per_example": forward, "training_flops_per_example": training}
    counted |= count_mechanisms(spec, task)
    if spec.budget.pretrain_steps:
        with torch.device("meta"):
            batch = _batch(task, 1)
            sequences = batch._replace(inputs=batch.inputs.flatten(0, -2))
            counted["pretraining_flops_per_example"] = sum(_flops(_PredictFirst(build_token_reader(twin, task)), sequences))
    kept = _activation_bytes(spec, task, implementation)
    return counted if kept is None else {**counted, "activation_bytes_per_example": kept}


def _flops(model: nn.Module, batch: Batch) -> tuple[int, int]:
    """Return the FLOPs of a forward pass and of its backward pass."""
    found = count_model(model, batch)
    assert found.flops is not None and found.backward_flops is not None
    return found.flops, found.backward_flops


def count_mechanisms(spec: RunSpec, task: TaskSpec) -> dict[str, int]:
    """Return the costs of the attention mechanisms of all layers together, without projections, by the formulas of their cards.

    The keys are ``mechanism_flops`` (forward, one example) and, for causal tasks, ``state_bytes``. If every mechanism supports
    4,096 tokens with these options, ``mechanism_flops_4096`` and ``state_bytes_4096`` are the costs at that length.
    """
    geometry = geometry_of(spec, task)
    counted = _sum_of_layers(spec, geometry, "")
    with suppress(UnsupportedError):
        counted |= _sum_of_layers(spec, replace(geometry, queries=LONG, keys=LONG), f"_{LONG}")
    return counted


def _sum_of_layers(spec: RunSpec, geometry: Geometry, suffix: str) -> dict[str, int]:
    """Return the FLOPs of all layers together and, if every mechanism states them, the bytes of their states.

    Raises:
        UnsupportedError: a mechanism does not support the geometry.
    """
    blocks = 1 if spec.model.shared_weights else spec.model.depth
    stack = []
    with torch.device("meta"):
        for row in row_of(spec).layers(blocks):
            entry = card(row.attention)
            stack.append(entry.build(geometry, make_options(f"attention {row.attention}", entry.options, row.options)))
        join_stacks(stack)  # which divides options that are given by layer
    costs = [mechanism.card.cost(geometry, mechanism.options) for mechanism in stack]
    states = [cost.state_bytes for cost in costs if cost.state_bytes is not None]
    times = spec.model.depth // blocks
    kept = 1 if spec.model.reuse_keys else times  # applications that reuse keys and values read one state
    found = {f"mechanism_flops{suffix}": times * sum(cost.flops for cost in costs)}
    return found | ({f"state_bytes{suffix}": kept * sum(states)} if len(states) == len(costs) else {})


class _PredictFirst(nn.Module):
    """Model that predicts the first tokens, as many as pretraining masks. On the meta device, masked positions are not known."""

    def __init__(self, reader: PositionClassifier) -> None:
        super().__init__()
        self.reader = reader

    def forward(self, tokens: Tensor, valid: None) -> Tensor:
        encoder, count = self.reader.encoder, int(asked_tokens(torch.tensor(tokens.shape[1], device="cpu")))
        return self.reader.head(encoder.norm(encoder(tokens, valid)[:, :count]))


def _activation_bytes(spec: RunSpec, task: TaskSpec, implementation: str) -> int | None:
    """Return the value of ``activation_bytes_per_example``, or None if it may differ from that of the run."""
    taken = set(implementation.split("+"))
    known = {"eager", "tiled", "sdpa"} if spec.device == "cpu" else {"eager", "tiled"}
    dropout = spec.model.dropout or any(part.options.get("dropout") for part in row_of(spec).parts())
    if spec.precision != "fp32" or dropout or not taken <= known:
        return None
    fused = "sdpa" in taken
    with torch.device("meta"):
        twin = build_model(task, implementation=implementation, **spec.network).eval()
    try:
        with as_on_a_cpu(twin) if fused else torch.device("meta"):
            inputs = _batch(task.in_training, spec.budget.batch_size).inputs
            _, kept = kept_bytes(lambda: twin(inputs, None), [inputs, *twin.parameters(), *twin.buffers()])
    except (NotImplementedError, RuntimeError):
        return None
    return kept // spec.budget.batch_size


def _batch(task: TaskSpec, examples: int) -> Batch:
    """Return a batch of zeros with the shapes of the examples of the task, at full length and without padding."""
    if isinstance(task.inputs, Patches):
        inputs = torch.zeros(examples, task.inputs.channels, task.inputs.height, task.inputs.width)
    elif isinstance(task.inputs, Frames):
        inputs = torch.zeros(examples, task.length, task.inputs.channels)
    else:
        shape = (examples, 2, task.length) if isinstance(task.inputs, Pairs) else (examples, task.length)
        inputs = torch.zeros(shape, dtype=torch.long)
    return Batch(inputs, None, torch.zeros(examples, dtype=torch.long))
