"""Self-pretraining: before a task, its encoder learns to tell masked tokens of the task's own training inputs.

Source: Amos, Berant, Gupta 2023 (Never Train from Scratch), arXiv:2310.02980, their masked objective for models that read both
    ways. Masks as in Devlin et al. 2018 (BERT), arXiv:1810.04805, Section 3.1.
Differs: the share of masked tokens is that of BERT for every task; the id of padding stands for the mask, so that the network is
    the same with and without pretraining; learning rate, warm-up and batch size are the task's.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import torch
from accelerate import Accelerator
from torch import Generator, Tensor

from attn_zoo.contract import UNASKED, Batch, Examples, Task
from attn_zoo.encoder import PositionClassifier
from attn_zoo.records import Budget
from attn_zoo.runner.checkpoint import Checkpoint
from attn_zoo.runner.state import Trained
from attn_zoo.runner.train import Progress, batches, begun, next_step, require_time, resumable

PER_CENT = 15
"""Of the tokens of a sequence, rounded down, so many are asked; at least one."""
HIDDEN, ALTERED = 0.8, 0.9
"""Of the tokens asked, these shares see the mask, and that or another token; the rest sees itself."""
MASK = 0
"""No real token has the id of padding."""


def pretrain(
    reader: PositionClassifier,
    task: Task,
    examples: Examples,
    budget: Budget,
    seed: int,
    accelerator: Accelerator,
    progress: Progress,
    state: Trained,
    checkpoint: Checkpoint | None = None,
    draws: AbstractContextManager[Any] | None = None,
) -> None:
    """Train ``reader``, and with it the encoder that it shares, for ``budget.pretrain_steps`` steps, unless they are done already.

    Batches, masks included, are a function of the seed alone. Arguments and errors else as of ``train``.
    """
    if checkpoint is not None and checkpoint.is_past_pretraining():
        return
    vocabulary, steps = reader.head.out_features, budget.pretrain_steps

    def hide(batch: Batch, chance: Generator) -> Batch:
        return masked(task.augment(batch, chance), vocabulary, chance)

    source = batches(examples, budget.batch_size, seed, hide)
    training = begun(reader, source, budget, steps, accelerator, state, draws, pretraining=True)
    with resumable(training, checkpoint):
        for step in range(training.step + 1, steps + 1):
            next_step(training, budget, checkpoint)
            progress.advance(step - steps, training.loss, None)
            require_time(training, budget, steps)
    accelerator.free_memory()  # else it unscales this optimiser's gradients, which are the next one's as well


def masked(batch: Batch, vocabulary: int, chance: Generator) -> Batch:
    """The same inputs with some tokens masked, and those tokens as labels by position; the two of a pair become two sequences.

    Args:
        vocabulary: ids below which another token is drawn.
        chance: the only source of chance.
    """
    ids = batch.inputs.flatten(0, -2)
    real = torch.ones_like(ids, dtype=torch.bool) if batch.valid is None else batch.valid.flatten(0, -2)
    order = torch.rand(ids.shape, generator=chance).masked_fill(~real, 2.0).argsort(dim=1, stable=True)  # padding comes last
    asked = (order.argsort(dim=1) < asked_tokens(real.sum(dim=1, keepdim=True))) & real
    fate = torch.rand(ids.shape, generator=chance)
    other = torch.randint(1, vocabulary, ids.shape, generator=chance)
    seen = torch.where(fate < HIDDEN, MASK, torch.where(fate < ALTERED, other, ids))
    valid = None if batch.valid is None else real
    return Batch(torch.where(asked, seen, ids), valid, torch.where(asked, ids, UNASKED))


def asked_tokens(tokens: Tensor) -> Tensor:
    """How many are asked of so many tokens."""
    return (tokens * PER_CENT // 100).clamp(min=1)
