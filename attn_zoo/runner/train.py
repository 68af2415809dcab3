"""The training loop: short, the same for every attention, its clock on training steps only."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Protocol

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from jaxtyping import Int
from torch import Tensor, nn

from attn_zoo.contract import Batch, Examples
from attn_zoo.cost import peak_bytes
from attn_zoo.records import Budget

EVALUATION_BATCH = 256


class Progress(Protocol):
    """What a training loop tells whoever watches."""

    def start(self, label: str, steps: int) -> None:
        """A run begins that will take so many steps."""

    def advance(self, step: int, loss: float, valid: float | None) -> None:
        """So many steps are done."""

    def stop(self) -> None:
        """The run is over, however it ended."""


class DivergedError(ArithmeticError):
    """The loss stopped being a number."""


class TimedOutError(TimeoutError):
    """Training took longer than the budget allows."""


@dataclass
class Trained:
    """What training left behind. ``best_weights`` are those of the best look at validation."""

    best_valid: float = -math.inf
    best_weights: dict[str, Tensor] = field(default_factory=dict)
    curve: list[dict[str, float]] = field(default_factory=list)
    step_seconds: list[float] = field(default_factory=list)
    peak_bytes: int = 0


def batches(examples: Examples, batch_size: int, seed: int) -> Iterator[Batch]:
    """Endless batches, reshuffled every epoch: a function of the seed alone, so every attention sees the same order."""
    generator = torch.Generator().manual_seed(seed)
    size = min(batch_size, len(examples))
    while True:
        order = torch.randperm(len(examples), generator=generator)
        for at in range(0, len(order) - size + 1, size):
            yield examples.batch(order[at : at + size])


@torch.inference_mode()
def accuracy(model: nn.Module, examples: Examples, accelerator: Accelerator, limit: int | None = None) -> float:
    """Share of examples, none dropped, whose highest class score is the label's; ``limit`` takes the first so many."""
    was_training = model.training
    model.eval()
    count = len(examples) if limit is None else min(limit, len(examples))
    right = 0
    for at in range(0, count, EVALUATION_BATCH):
        batch = to_device(examples.batch(range(at, min(at + EVALUATION_BATCH, count))), accelerator.device)
        with accelerator.autocast():
            scores = model(batch.inputs, batch.valid)
        right += int((scores.argmax(dim=-1) == batch.labels).sum())
    model.train(was_training)
    return right / count


def majority_accuracy(train_labels: Int[Tensor, " train"], test_labels: Int[Tensor, " test"]) -> float:
    """Test accuracy of always answering the most frequent training label: chance, for one who knows the shares."""
    return float((test_labels == train_labels.mode().values).float().mean())


def train(
    model: nn.Module,
    examples: Examples,
    valid: Examples,
    budget: Budget,
    seed: int,
    accelerator: Accelerator,
    progress: Progress,
    state: Trained,
) -> None:
    """Train in place for ``budget``, looking at ``valid`` as often as it says; ``state`` holds what is known even if it fails.

    Raises:
        DivergedError: a loss is NaN or infinite.
        TimedOutError: the steps took longer than ``budget.max_seconds``.
    """
    optimizer = torch.optim.AdamW(_decay_groups(model, budget.weight_decay), lr=budget.learning_rate)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: _warmup_cosine(step, budget))
    model, optimizer, schedule = accelerator.prepare(model, optimizer, schedule)
    source = batches(examples, budget.batch_size, seed)
    loss = math.nan

    def one_step() -> None:
        nonlocal loss
        loss = _step(model, next(source), optimizer, schedule, accelerator, budget.clip_norm)

    model.train()
    for step in range(1, budget.steps + 1):
        started = time.perf_counter()
        if step == 2:  # the first step also allocates the optimiser's state, which is not the model's doing
            state.peak_bytes = peak_bytes(one_step, accelerator.device)
        else:
            one_step()
            state.step_seconds.append(time.perf_counter() - started)
        if not math.isfinite(loss):
            raise DivergedError(f"the loss became {loss} at step {step}")
        look = step % budget.evaluate_every == 0 or step == budget.steps
        score = accuracy(model, valid, accelerator) if look else None
        if score is not None:
            _remember(state, model, accelerator, step, loss, score)
        progress.advance(step, loss, score)
        if budget.max_seconds and sum(state.step_seconds) > budget.max_seconds:
            raise TimedOutError(f"training took more than {budget.max_seconds:g} s after {step} of {budget.steps} steps")


def to_device(batch: Batch, device: torch.device) -> Batch:
    """The same batch on ``device``."""
    valid = None if batch.valid is None else batch.valid.to(device)
    return Batch(batch.inputs.to(device), valid, batch.labels.to(device))


def _step(
    model: nn.Module,
    batch: Batch,
    optimizer: torch.optim.Optimizer,
    schedule: torch.optim.lr_scheduler.LRScheduler,
    accelerator: Accelerator,
    clip_norm: float,
) -> float:
    batch = to_device(batch, accelerator.device)
    with accelerator.autocast():
        loss = F.cross_entropy(model(batch.inputs, batch.valid), batch.labels)
    accelerator.backward(loss)
    accelerator.clip_grad_norm_(model.parameters(), clip_norm)
    optimizer.step()
    schedule.step()
    optimizer.zero_grad()
    return loss.item()  # waits for the device, so the clock around this call is honest


def _remember(state: Trained, model: nn.Module, accelerator: Accelerator, step: int, loss: float, score: float) -> None:
    seconds = sum(state.step_seconds)
    state.curve.append({"step": step, "train_seconds": seconds, "train_loss": loss, "valid": score})
    if score > state.best_valid:
        state.best_valid = score
        weights = accelerator.unwrap_model(model).state_dict()
        state.best_weights = {name: tensor.detach().clone() for name, tensor in weights.items()}


def _decay_groups(model: nn.Module, weight_decay: float) -> list[dict[str, object]]:
    """Matrices decay; biases, norms and other vectors do not."""
    trained = [p for p in model.parameters() if p.requires_grad]
    return [
        {"params": [p for p in trained if p.dim() >= 2], "weight_decay": weight_decay},
        {"params": [p for p in trained if p.dim() < 2], "weight_decay": 0.0},
    ]


def _warmup_cosine(step: int, budget: Budget) -> float:
    """Share of the learning rate at a step: up linearly, down to zero along half a cosine."""
    if step < budget.warmup_steps:
        return (step + 1) / budget.warmup_steps
    done = (step - budget.warmup_steps) / max(1, budget.steps - budget.warmup_steps)
    return 0.5 * (1 + math.cos(math.pi * min(1.0, done)))
