"""Training loop, which is the same for every mechanism. Only training steps are timed."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Protocol

import torch
from accelerate import Accelerator
from accelerate.utils import send_to_device
from torch import nn

from attn_zoo.contract import Batch, Examples, Problem, Split, Task, auxiliary_loss
from attn_zoo.count import peak_bytes
from attn_zoo.encoder import LOSSES
from attn_zoo.records import Budget
from attn_zoo.records.criterion import is_met
from attn_zoo.runner.checkpoint import Checkpoint
from attn_zoo.runner.interrupts import Interrupts, StoppedError, asked
from attn_zoo.runner.metrics import answers, evaluate, measure_of
from attn_zoo.runner.patience import beat
from attn_zoo.runner.state import BatchSource, DivergedError, Trained, Training
from attn_zoo.runner.weights import KeptWeights


class Progress(Protocol):
    """Observer of a training loop, such as a progress bar."""

    def start(self, label: str, steps: int) -> None:
        """Note that a run begins.

        Args:
            label: name of the run.
            steps: number of steps of the run.
        """

    def advance(self, step: int, loss: float, valid: float | None) -> None:
        """Note the progress of the run.

        Args:
            step: number of steps done. During pretraining, it is minus the number of pretraining steps that are left.
            loss: training loss of the step.
            valid: validation score after the step; None if there was no validation.
        """

    def stop(self) -> None:
        """Note the end of the run, even if it failed."""


class TimedOutError(TimeoutError):
    """Error for training that takes longer than the time limit of its budget."""


@dataclass(frozen=True, slots=True)
class Setup:
    """Task, budget and all else that the pretraining and the training of a run share."""

    task: Task
    budget: Budget
    seed: int
    accelerator: Accelerator
    progress: Progress
    trained: Trained = field(default_factory=Trained)
    """Results so far, which are there even after a failure."""
    checkpoint: Checkpoint | None = None
    """Checkpoint from which training continues, and to which it saves. If there is one, Ctrl-C and SIGTERM take effect at the end
    of the step, after it is saved."""
    kept: KeptWeights | None = None
    """Writer of the weights of the network to a file after each of its chosen steps."""


def train(model: nn.Module, splits: Mapping[Split, Examples], setup: Setup) -> None:
    """Train ``model`` in place for its budget. Validate every ``budget.evaluate_every`` steps and at the end.

    If ``budget.until`` is the criterion, training ends as soon as validation scores meet it.

    Raises:
        DivergedError: a loss is NaN or infinite.
        TimedOutError: the steps took longer than ``budget.max_seconds``.
    """
    task, budget = setup.task, setup.budget
    source = BatchSource(splits["train"], budget.batch_size, setup.seed, task.augment)
    training = start_training(model, source, budget.steps, setup, problem=task.spec.problem)
    with resumable(training, setup.checkpoint):
        if setup.kept is not None and training.step == 0:
            setup.kept.save(model, 0)
        _remaining_steps(training, splits["valid"], setup)


def start_training(
    model: nn.Module,
    source: Iterator[Batch],
    steps: int,
    setup: Setup,
    *,
    problem: Problem = "classification",
    pretraining: bool = False,
) -> Training:
    """Return a training of the model at step 0, with the optimiser and the learning-rate schedule of the budget, which spans
    ``steps`` steps."""
    budget, accelerator, state = setup.budget, setup.accelerator, setup.trained
    optimizer = torch.optim.AdamW(_decay_groups(model, budget.weight_decay), lr=budget.learning_rate)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: _rate(step, steps, budget, state.spent))
    return Training(
        model=accelerator.prepare_model(model, evaluation_mode=True),
        optimizer=accelerator.prepare_optimizer(optimizer),
        schedule=accelerator.prepare_scheduler(schedule),
        source=source,
        accelerator=accelerator,
        state=state,
        criterion=LOSSES[problem],
        pretraining=pretraining,
    )


@contextmanager
def resumable(training: Training, checkpoint: Checkpoint | None) -> Iterator[None]:
    """Return a context that first sets a training to the state of its checkpoint. After Ctrl-C or SIGTERM in the context, a new
    checkpoint is saved and the run ends. If ``checkpoint`` is None, none of this happens."""
    if checkpoint is not None:
        checkpoint.resume(training)
    training.model.train()
    with Interrupts() if checkpoint is not None else nullcontext():
        try:
            yield
        except StoppedError as stopped:
            assert checkpoint is not None
            checkpoint.save(training)
            raise stopped.pass_on() from None


def _remaining_steps(training: Training, valid: Examples, setup: Setup) -> None:
    """Do the remaining steps. The checkpoint of a step is saved before its validation, which draws no random numbers and can be
    repeated.
    """
    task, budget, state = setup.task, setup.budget, training.state
    measure = measure_of(task.card.metric, task.spec)
    for step in range(max(1, training.step), budget.steps + 1):
        if step > training.step:
            next_step(training, setup)
        if step == budget.steps and setup.checkpoint is not None:  # also after a resume at this step
            setup.checkpoint.hand_on(training)
        if setup.kept is not None:
            setup.kept.save(training.model, step)
        last = step == budget.steps or (bool(budget.seconds) and state.spent >= 1)
        validates = last or step % budget.evaluate_every == 0
        score = evaluate(training.model, valid, task.spec, measure, training.accelerator) if validates else None
        if score is not None:
            _add_score(training, score, budget, measure.better(score, state.best_valid))
            last = last or is_met(state.curve, budget.ceiling)
        setup.progress.advance(step, training.loss, score)
        require_time(training, budget, budget.steps)
        if last:
            return


def next_step(training: Training, setup: Setup) -> None:
    """Do one training step and time it. If a checkpoint is due, save it.

    Raises:
        DivergedError: the loss is NaN or infinite.
        StoppedError: a signal stops the run.
    """
    step, state, budget = training.step + 1, training.state, setup.budget
    beat()
    started = time.perf_counter()
    if step == 2 and not training.pretraining:  # the first step also allocates the optimiser's state
        device = training.accelerator.device
        state.peak_bytes = peak_bytes(lambda: _step(training, next(training.source), budget.clip_norm), device)
    else:
        _step(training, next(training.source), budget.clip_norm)
        state.count(time.perf_counter() - started, training.pretraining)
    training.step = step
    if not training.pretraining:
        state.losses.append(training.loss)
    if not math.isfinite(training.loss):
        raise DivergedError(f"the loss became {training.loss} at step {step}{_phase(training)}")
    state.spent = _spent(state, budget)
    if number := asked():
        raise StoppedError(number)
    if setup.checkpoint is not None and setup.checkpoint.due(step):
        setup.checkpoint.save(training)


def require_time(training: Training, budget: Budget, steps: int) -> None:
    """Raise TimedOutError if the steps so far took longer than ``budget.max_seconds``.

    Args:
        steps: planned number of steps, which the message names.
    """
    if budget.max_seconds and training.state.spent >= 1:
        done = f"{training.step} of {steps} steps{_phase(training)}"
        raise TimedOutError(f"training reached max_seconds={budget.max_seconds:g} at {done}")


def _phase(training: Training) -> str:
    return " of pretraining" if training.pretraining else ""


def _spent(state: Trained, budget: Budget) -> float:
    """Return the elapsed share of ``budget.seconds`` (training) or ``budget.max_seconds`` (with pretraining)."""
    if budget.seconds:
        return state.seconds / budget.seconds
    return (state.pretrain_seconds + state.seconds) / budget.max_seconds if budget.max_seconds else 0.0


def _step(training: Training, batch: Batch, clip_norm: float) -> None:
    """Do one step of the optimiser."""
    accelerator = training.accelerator
    with accelerator.autocast():
        loss = training.criterion(*answers(training.model, send_to_device(batch, accelerator.device)))
    accelerator.backward(loss + auxiliary_loss(training.model))
    accelerator.clip_grad_norm_(training.model.parameters(), clip_norm)
    training.optimizer.step()
    training.schedule.step()
    training.optimizer.zero_grad()
    training.loss = loss.item()  # waits for the device, so that the timing around this call is correct


def _add_score(training: Training, score: float, budget: Budget, is_best: bool) -> None:
    """Add a point to the curve. With a fixed budget, keep the weights if they are the best so far."""
    state = training.state
    loss = sum(state.losses) / len(state.losses) if budget.until == "criterion" else training.loss
    state.curve.append({"step": training.step, "train_seconds": state.seconds, "train_loss": loss, "valid": score})
    state.losses.clear()
    if is_best and budget.until == "steps":
        state.best_valid = score
        state.best_weights = {name: tensor.detach().clone() for name, tensor in training.model.state_dict().items()}


def _decay_groups(model: nn.Module, weight_decay: float) -> list[dict[str, object]]:
    """Return the parameter groups: weight decay for matrices, and none for biases, norms and other vectors."""
    trained = [p for p in model.parameters() if p.requires_grad]
    return [
        {"params": [p for p in trained if p.dim() >= 2], "weight_decay": weight_decay},
        {"params": [p for p in trained if p.dim() < 2], "weight_decay": 0.0},
    ]


def _rate(step: int, steps: int, budget: Budget, spent: float) -> float:
    """Return the factor of the learning rate at a step: linear warm-up, then constant or a cosine decay to zero.

    Args:
        spent: elapsed share of the time budget.
    """
    if step < budget.warmup_steps:
        return (step + 1) / budget.warmup_steps
    if budget.schedule == "constant":
        return 1.0
    done = (step - budget.warmup_steps) / max(1, steps - budget.warmup_steps)
    if budget.seconds:
        done = max(done, spent)
    return 0.5 * (1 + math.cos(math.pi * min(1.0, done)))
