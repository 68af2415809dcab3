"""The training loop: short, the same for every attention, its clock on training steps only."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from torch import Tensor, nn

from attn_zoo.contract import Batch, Examples, Split, Task
from attn_zoo.cost import peak_bytes
from attn_zoo.records import Budget
from attn_zoo.runner.metrics import answers, evaluate, measure_named, to_device


class Progress(Protocol):
    """What a training loop tells whoever watches."""

    def start(self, label: str, steps: int) -> None:
        """A run begins that will take so many steps."""

    def advance(self, step: int, loss: float, valid: float | None) -> None:
        """So many steps are done."""

    def stop(self) -> None:
        """The run is over, however it ended."""


Augment = Callable[[Batch, torch.Generator], Batch]


def unchanged(batch: Batch, chance: torch.Generator) -> Batch:
    """No augmentation."""
    return batch


class DivergedError(ArithmeticError):
    """The loss stopped being a number."""


class TimedOutError(TimeoutError):
    """Training took longer than the budget allows."""


@dataclass
class Trained:
    """What training left behind. ``best_weights`` are those of the best look at validation."""

    best_valid: float | None = None
    best_weights: dict[str, Tensor] = field(default_factory=dict)
    curve: list[dict[str, float]] = field(default_factory=list)
    step_seconds: list[float] = field(default_factory=list)
    peak_bytes: int = 0


def batches(examples: Examples, batch_size: int, seed: int, augment: Augment = unchanged) -> Iterator[Batch]:
    """Endless batches, reshuffled every epoch and augmented: a function of the seed alone, so every attention sees the same."""
    generator, chance = torch.Generator().manual_seed(seed), torch.Generator().manual_seed(seed)
    size = min(batch_size, len(examples))
    while True:
        order = torch.randperm(len(examples), generator=generator)
        for at in range(0, len(order) - size + 1, size):
            yield augment(examples.batch(order[at : at + size]), chance)


def train(
    model: nn.Module,
    task: Task,
    splits: Mapping[Split, Examples],
    budget: Budget,
    seed: int,
    accelerator: Accelerator,
    progress: Progress,
    state: Trained,
) -> None:
    """Train in place for ``budget``, looking at validation as often as it says; ``state`` holds what is known even if it fails.

    Raises:
        DivergedError: a loss is NaN or infinite.
        TimedOutError: the steps took longer than ``budget.max_seconds``.
    """
    optimizer = torch.optim.AdamW(_decay_groups(model, budget.weight_decay), lr=budget.learning_rate)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: _warmup_cosine(step, budget))
    model, optimizer, schedule = accelerator.prepare(model, optimizer, schedule)
    source = batches(splits["train"], budget.batch_size, seed, task.augment)
    measure = measure_named(task.card.metric)
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
        score = evaluate(model, splits["valid"], task.spec, measure, accelerator) if look else None
        if score is not None:
            _remember(state, model, accelerator, step, loss, score, measure.better(score, state.best_valid))
        progress.advance(step, loss, score)
        if budget.max_seconds and sum(state.step_seconds) > budget.max_seconds:
            raise TimedOutError(f"training took more than {budget.max_seconds:g} s after {step} of {budget.steps} steps")


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
        loss = F.cross_entropy(*answers(model, batch))
    accelerator.backward(loss)
    accelerator.clip_grad_norm_(model.parameters(), clip_norm)
    optimizer.step()
    schedule.step()
    optimizer.zero_grad()
    return loss.item()  # waits for the device, so the clock around this call is honest


def _remember(
    state: Trained, model: nn.Module, accelerator: Accelerator, step: int, loss: float, score: float, is_best: bool
) -> None:
    seconds = sum(state.step_seconds)
    state.curve.append({"step": step, "train_seconds": seconds, "train_loss": loss, "valid": score})
    if is_best:
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
