"""State of a training run: all that the remaining steps depend on, as tensors and plain data for a checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor, nn

from attn_zoo.contract import Batch, Examples

_PLAIN = ("best_valid", "curve", "losses", "pretrain_seconds", "spent", "peak_bytes", "resumed")
"""Fields of ``Trained`` that are packed as plain data."""
Augment = Callable[[Batch, torch.Generator], Batch]
Criterion = Callable[[Tensor, Tensor], Tensor]


class DivergedError(ArithmeticError):
    """Error for a training loss, or an output of the network, that is NaN or infinite."""


@dataclass
class Trained:
    """Results of a training so far, such as its curve, its times and the weights with the best validation score."""

    best_valid: float | None = None
    best_weights: dict[str, Tensor] = field(default_factory=dict)
    curve: list[dict[str, float]] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    """Losses of the steps since the last validation."""
    step_seconds: list[float] = field(default_factory=list)
    seconds: float = 0.0
    """Sum of ``step_seconds``."""
    pretrain_seconds: float = 0.0
    """Time of the pretraining steps."""
    spent: float = 0.0
    """Share of ``budget.seconds`` or ``budget.max_seconds`` that has elapsed after the last step; 0 if neither is set."""
    peak_bytes: int = 0
    """Peak memory of a training step in bytes; 0 if it is not measured."""
    resumed: list[dict[str, Any]] = field(default_factory=list)
    """Earlier parts of a resumed run, each with its environment and the ``step`` of its last checkpoint. ``pretraining`` is True if
    the step was one of pretraining."""

    def count(self, seconds: float, pretraining: bool) -> None:
        """Add the time of one step. Steps of pretraining are counted separately."""
        if pretraining:
            self.pretrain_seconds += seconds
            return
        self.step_seconds.append(seconds)
        self.seconds += seconds


class BatchSource(Iterator[Batch]):
    """Endless iterator over batches of augmented examples, in a new random order every epoch.

    Batches depend on the seed alone, so every mechanism is trained on the same batches.
    """

    def __init__(self, examples: Examples, batch_size: int, seed: int, augment: Augment) -> None:
        self._examples, self._augment = examples, augment
        self.size = min(batch_size, len(examples))
        self._generator, self._chance = torch.Generator().manual_seed(seed), torch.Generator().manual_seed(seed)
        self._epoch = self._generator.get_state()
        self._order, self._at = torch.empty(0, dtype=torch.long), 0

    def __next__(self) -> Batch:
        if self._at + self.size > len(self._order):
            self._shuffle()
        chosen = self._order[self._at : self._at + self.size]
        self._at += self.size
        return self._augment(self._examples.batch(chosen), self._chance)

    def _shuffle(self) -> None:
        self._epoch = self._generator.get_state()
        self._order, self._at = torch.randperm(len(self._examples), generator=self._generator), 0

    def state(self) -> tuple[dict[str, Tensor], int]:
        """Return the states of two random generators, by name, and the position in the epoch.

        The generator ``epoch`` shuffles the examples. Its state is from before this epoch, so the same order can be drawn again.
        The generator ``chance`` augments the examples. Its state is the present one.
        """
        return {"epoch": self._epoch, "chance": self._chance.get_state()}, self._at

    def restore(self, generators: Mapping[str, Tensor], at: int) -> None:
        """Restore what ``state`` returned: the states of the generators, and the position ``at`` in the epoch. At position 0, the
        next batch begins an epoch."""
        self._generator.set_state(generators["epoch"])
        self._chance.set_state(generators["chance"])
        self._order, self._at = torch.empty(0, dtype=torch.long), 0
        if at:
            self._shuffle()
            self._at = at


@dataclass
class Training:
    """Training in progress: model, optimiser, data and results after a number of steps (``step``)."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    schedule: torch.optim.lr_scheduler.LRScheduler
    source: Iterator[Batch]
    accelerator: Accelerator
    state: Trained
    criterion: Criterion
    """Loss function: the mean loss of outputs and labels."""
    pretraining: bool = False
    """True during self-pretraining, which precedes training on the task."""
    step: int = 0
    loss: float = float("nan")


def pack(training: Training) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the state of a training as tensors on the CPU by name, and as plain data that JSON can hold."""
    source, state = training.source, training.state
    assert isinstance(source, BatchSource)
    order, at = source.state()
    optimizer = training.optimizer.state_dict()
    groups: dict[str, Mapping[str, Tensor]] = {
        "model": training.model.state_dict(),
        "best": state.best_weights,
        "order": order,
        "random": {str(at): tensor for at, tensor in enumerate(_generator_states(training.accelerator.device))},
        **{f"optimizer.{index}": moments for index, moments in optimizer["state"].items()},
        "clock": {"step_seconds": torch.tensor(state.step_seconds, dtype=torch.float64)},
    }
    tensors = {
        f"{group}.{name}": tensor.detach().cpu().clone().contiguous()
        for group, named in groups.items()
        for name, tensor in named.items()
    }
    scaler = training.accelerator.scaler
    facts = {
        "pretraining": training.pretraining,
        "step": training.step,
        "loss": training.loss,
        "at": at,
        "rates": [group["lr"] for group in optimizer["param_groups"]],
        "schedule": training.schedule.state_dict(),
        "scaler": None if scaler is None else scaler.state_dict(),
        **{name: getattr(state, name) for name in _PLAIN},
    }
    return tensors, facts


def unpack(training: Training, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
    """Restore a state that ``pack`` returned, in a training that was built for the same spec.

    Raises:
        ValueError: the state belongs to another network.
    """
    source, state, device = training.source, training.state, training.accelerator.device
    assert isinstance(source, BatchSource)
    _require_same(training.model.state_dict(), _group(tensors, "model"))
    training.model.load_state_dict(_group(tensors, "model"))
    groups = training.optimizer.state_dict()["param_groups"]
    for group, rate in zip(groups, facts["rates"], strict=True):
        group["lr"] = rate
    indices = {int(name.split(".")[1]) for name in tensors if name.startswith("optimizer.")}
    moments = {index: _group(tensors, f"optimizer.{index}") for index in sorted(indices)}
    training.optimizer.load_state_dict({"state": moments, "param_groups": groups})
    training.schedule.load_state_dict(facts["schedule"])
    if training.accelerator.scaler is not None:
        training.accelerator.scaler.load_state_dict(facts["scaler"])
    source.restore(_group(tensors, "order"), facts["at"])
    _set_generator_states(device, list(_group(tensors, "random").values()))
    for name in _PLAIN:
        setattr(state, name, facts[name])
    state.best_weights = {name: tensor.to(device) for name, tensor in _group(tensors, "best").items()}
    state.step_seconds = tensors["clock.step_seconds"].tolist()
    state.seconds = sum(state.step_seconds)
    training.step, training.loss = facts["step"], facts["loss"]


def _generator_states(device: torch.device) -> list[Tensor]:
    """Return the states of the random generators that a run on ``device`` uses: those of the CPU and, on a GPU, also those of
    the GPU."""
    return [torch.get_rng_state(), *([torch.cuda.get_rng_state(device)] if device.type == "cuda" else [])]


def _set_generator_states(device: torch.device, states: Sequence[Tensor]) -> None:
    """Set the random generators to ``states``, which ``_generator_states`` returned."""
    torch.set_rng_state(states[0])
    if device.type == "cuda":
        torch.cuda.set_rng_state(states[1], device)


def _group(tensors: Mapping[str, Tensor], group: str) -> dict[str, Tensor]:
    return {name.removeprefix(f"{group}."): tensor for name, tensor in tensors.items() if name.startswith(f"{group}.")}


def _require_same(ours: Mapping[str, Tensor], given: Mapping[str, Tensor]) -> None:
    for name in ours.keys() | given.keys():
        shapes = [tuple(held[name].shape) if name in held else None for held in (ours, given)]
        if shapes[0] != shapes[1]:
            raise ValueError(
                f"{name} must have the same shape in the network and in the checkpoint; got {shapes[0]} and {shapes[1]}"
            )
