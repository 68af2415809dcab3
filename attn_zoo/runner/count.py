"""Counted cost of a run's network, from a copy of it on the meta device: shapes without numbers."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import asdict, replace
from typing import Any

import torch
from torch import Tensor, nn

from attn_zoo.contract import Batch, Frames, Geometry, Pairs, Patches, TaskSpec, UnsupportedError
from attn_zoo.cost import count_flops, count_model
from attn_zoo.cost.counted import as_on_a_cpu, kept_bytes
from attn_zoo.encoder import PositionClassifier, build_model, build_token_reader
from attn_zoo.records import RunSpec
from attn_zoo.registry import card, make_options
from attn_zoo.runner.pretrain import asked_tokens

LONG = 4096
"""Length in tokens at which the cost of a mechanism is reported beside its abilities."""


def model_arguments(spec: RunSpec) -> dict[str, Any]:
    """Arguments of ``build_model`` that follow from a spec, without task and implementation."""
    return {"attention": spec.attention, "options": spec.options, **asdict(spec.model)}


def geometry_of(spec: RunSpec, task: TaskSpec) -> Geometry:
    """Geometry of the mechanisms of a run."""
    model = spec.model
    return Geometry(model.heads, model.dim // model.heads, task.positions, task.positions, task.causal)


def count_per_example(spec: RunSpec, task: TaskSpec, implementation: str) -> dict[str, int]:
    """``flops_per_example`` (forward), ``training_flops_per_example`` (backward too) and ``activation_bytes_per_example``.

    Examples have full length and no padding. FLOPs are those of the implementation that the card counts. Activation bytes are what
    autograd keeps of a whole training batch, without the loss, divided by its examples. They are counted only where they surely
    equal those of the run: in fp32, without dropout (whose masks differ by device), and for ``eager``, ``tiled`` or, on a CPU,
    ``sdpa``. Counts that cannot be made from shapes alone are left out.
    """
    with torch.device("meta"):
        twin = build_model(task, implementation=card(spec.attention).counted_implementation, **model_arguments(spec))
        try:
            found = count_model(twin, _batch(task, 1))
        except (NotImplementedError, RuntimeError):  # a plugin's backward pass may need numbers
            return {"flops_per_example": count_flops(twin, _batch(task, 1))}
    assert found.flops is not None and found.backward_flops is not None
    counted = {"flops_per_example": found.flops, "training_flops_per_example": found.flops + found.backward_flops}
    counted |= count_mechanisms(spec, task)
    if spec.budget.pretrain_steps:
        counted["pretraining_flops_per_example"] = count_pretraining(spec, task)
    kept = _activation_bytes(spec, task, implementation)
    return counted if kept is None else {**counted, "activation_bytes_per_example": kept}


def count_mechanisms(spec: RunSpec, task: TaskSpec) -> dict[str, int]:
    """Cost of the attention mechanisms of all layers, without projections, by the formulas of the card.

    ``mechanism_flops`` (forward, one example) and, in causal tasks, ``state_bytes``; and the same at 4,096 tokens, if the
    mechanism supports that length with these options: ``mechanism_flops_4096`` and ``state_bytes_4096``.
    """
    entry, model = card(spec.attention), spec.model
    options = make_options(f"attention {spec.attention}", entry.options, spec.options)
    geometry = geometry_of(spec, task)
    here = entry.cost(geometry, options)
    counted = {"mechanism_flops": model.depth * here.flops}
    if here.state_bytes is not None:
        counted["state_bytes"] = model.depth * here.state_bytes
    long = replace(geometry, queries=LONG, keys=LONG)
    with torch.device("meta"), suppress(UnsupportedError):
        entry.build(long, options)
        there = entry.cost(long, options)
        counted[f"mechanism_flops_{LONG}"] = model.depth * there.flops
        if there.state_bytes is not None:
            counted[f"state_bytes_{LONG}"] = model.depth * there.state_bytes
    return counted


def count_pretraining(spec: RunSpec, task: TaskSpec) -> int:
    """FLOPs of a pretraining step, forward and backward, for one example of full length; the head reads masked positions only.

    Raises:
        UnsupportedError: the task has no pretraining.
    """
    with torch.device("meta"):
        form = card(spec.attention).counted_implementation
        reader = build_token_reader(build_model(task, implementation=form, **model_arguments(spec)), task)
        batch = _batch(task, 1)
        found = count_model(_PredictFirst(reader), batch._replace(inputs=batch.inputs.flatten(0, -2)))
    assert found.flops is not None and found.backward_flops is not None
    return found.flops + found.backward_flops


class _PredictFirst(nn.Module):
    """Prediction of the first tokens, as many as pretraining masks: on the meta device the masked positions are unknown."""

    def __init__(self, reader: PositionClassifier) -> None:
        super().__init__()
        self.reader = reader

    def forward(self, tokens: Tensor, valid: None) -> Tensor:
        encoder, count = self.reader.encoder, int(asked_tokens(torch.tensor(tokens.shape[1], device="cpu")))
        return self.reader.head(encoder.norm(encoder(tokens, valid)[:, :count]))


def _activation_bytes(spec: RunSpec, task: TaskSpec, implementation: str) -> int | None:
    fused = implementation == "sdpa" and spec.device == "cpu"
    if spec.precision != "fp32" or spec.model.dropout or spec.options.get("dropout"):
        return None
    if implementation not in ("eager", "tiled") and not fused:
        return None
    with torch.device("meta"):
        twin = build_model(task, implementation=implementation, **model_arguments(spec)).eval()
    try:
        with as_on_a_cpu(twin) if fused else torch.device("meta"):
            inputs = _batch(task, spec.budget.batch_size).inputs
            _, kept = kept_bytes(lambda: twin(inputs, None), [inputs, *twin.parameters(), *twin.buffers()])
    except (NotImplementedError, RuntimeError):
        return None
    return kept // spec.budget.batch_size


def _batch(task: TaskSpec, examples: int) -> Batch:
    if isinstance(task.inputs, Patches):
        inputs = torch.zeros(examples, task.inputs.channels, task.inputs.height, task.inputs.width)
    elif isinstance(task.inputs, Frames):
        inputs = torch.zeros(examples, task.length, task.inputs.channels)
    else:
        shape = (examples, 2, task.length) if isinstance(task.inputs, Pairs) else (examples, task.length)
        inputs = torch.zeros(shape, dtype=torch.long)
    return Batch(inputs, None, torch.zeros(examples, dtype=torch.long))
