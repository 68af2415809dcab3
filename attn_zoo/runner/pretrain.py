"""Self-pretraining: before an encoder is trained on a task, it learns to predict masked tokens of the task's training inputs.

Source: Amos, Berant, Gupta 2023 (Never Train from Scratch), arXiv:2310.02980, their masked objective for bidirectional models.
Tokens are masked as in Devlin et al. 2018 (BERT), arXiv:1810.04805, Section 3.1.

Differs: on every task, the share of masked tokens is that of BERT. The padding id is also the id of the mask token, so the network
is the same with and without pretraining. Learning rate, warm-up and batch size are those of training on the task.
"""

from __future__ import annotations

import torch
from torch import Generator, Tensor

from attn_zoo.contract import UNASKED, Batch, Examples
from attn_zoo.encoder import PositionClassifier
from attn_zoo.runner.state import BatchSource
from attn_zoo.runner.train import Setup, next_step, require_time, resumable, start_training

PER_CENT = 15
"""Percentage of a sequence's tokens that must be predicted. The number of tokens is rounded down, but is at least one."""
HIDDEN, ALTERED = 0.8, 0.9
"""``HIDDEN`` is the share of the tokens to predict that is replaced by the mask token. ``ALTERED - HIDDEN`` is the share that is
replaced by random tokens. The other tokens to predict are not changed."""
MASK = 0
"""Id of the mask token. It is the id of padding, which no real token has."""


def pretrain(reader: PositionClassifier, examples: Examples, setup: Setup) -> None:
    """Train ``reader`` to predict masked tokens for ``budget.pretrain_steps`` steps. ``reader`` shares its encoder with the network
    that is trained on the task afterwards, which then starts from pretrained weights.

    If the checkpoint was saved after pretraining, nothing is done. Batches and masks depend on the seed alone. The errors are those
    of ``train``.
    """
    if setup.checkpoint is not None and setup.checkpoint.is_past_pretraining():
        return
    budget, vocabulary = setup.budget, reader.head.out_features
    steps = budget.pretrain_steps

    def mask(batch: Batch, chance: Generator) -> Batch:
        return masked(setup.task.augment(batch, chance), vocabulary, chance)

    source = BatchSource(examples, budget.batch_size, setup.seed, mask)
    training = start_training(reader, source, steps, setup, pretraining=True)
    with resumable(training, setup.checkpoint):
        for step in range(training.step + 1, steps + 1):
            next_step(training, setup)
            setup.progress.advance(step - steps, training.loss, None)
            require_time(training, budget, steps)
    setup.accelerator.free_memory()  # else it also unscales gradients of this optimiser, which shares parameters with the next


def masked(batch: Batch, vocabulary: int, chance: Generator) -> Batch:
    """Return a batch in which some tokens are masked. Their labels are the original tokens. A pair of sequences becomes two
    examples.

    Args:
        vocabulary: number of ids from which random tokens are drawn.
    """
    ids = batch.inputs.flatten(0, -2)
    real = torch.ones_like(ids, dtype=torch.bool) if batch.valid is None else batch.valid.flatten(0, -2)
    order = torch.rand(ids.shape, generator=chance).masked_fill(~real, 2.0).argsort(dim=1, stable=True)  # padding comes last
    selected = (order.argsort(dim=1) < asked_tokens(real.sum(dim=1, keepdim=True))) & real
    uniform = torch.rand(ids.shape, generator=chance)
    other = torch.randint(1, vocabulary, ids.shape, generator=chance)
    replaced = torch.where(uniform < HIDDEN, MASK, torch.where(uniform < ALTERED, other, ids))
    valid = None if batch.valid is None else real
    return Batch(torch.where(selected, replaced, ids), valid, torch.where(selected, ids, UNASKED))


def asked_tokens(tokens: Tensor) -> Tensor:
    """Return how many tokens of each sequence must be predicted. ``tokens`` has the number of real tokens of each sequence."""
    return (tokens * PER_CENT // 100).clamp(min=1)
