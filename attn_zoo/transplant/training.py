"""Both trainings of a student: each attention on what the teacher's was given, then the whole on the teacher's embeddings."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from enum import Enum
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from attn_zoo.integrations.transformers import zoo_layers
from attn_zoo.integrations.transformers.attached import attached_to
from attn_zoo.integrations.transformers.sites import Site, sites
from attn_zoo.transplant.encoder import BATCH, Answers, answer, embedding
from attn_zoo.transplant.passages import Passages


class Trains(Enum):
    """What learns while each attention is distilled."""

    mechanism = "mechanism"
    """Only what the mechanism added."""
    attention = "attention"
    """That and the projections of queries, keys and values."""


class DivergedError(RuntimeError):
    """A loss is no number any more."""


def distil(
    student: Any,
    answers: Sequence[Answers],
    passages: Passages,
    *,
    trains: Trains,
    steps: int,
    batch: int,
    rate: float,
    mechanism_rate: float,
    generator: torch.Generator,
) -> None:
    """Regress every attention module on the teacher's answers, given the teacher's inputs; layers do not feel each other.

    The loss of a layer is its squared error over what the teacher's answers vary by themselves, so that layers weigh alike.

    Args:
        answers: of the teacher, in the order of the student's modules, on ``passages``.
        rate: peak learning rate of projections.
        mechanism_rate: peak learning rate of what the mechanism added.

    Raises:
        DivergedError: a loss is not finite.
    """
    layers = sites(student)
    own = {id(p): p for site in layers for p in _added(site) if p.requires_grad}
    shared = {id(p): p for site in layers for p in site.module.parameters() if id(p) not in own}
    groups: list[dict[str, Any]] = [{"params": list(own.values()), "lr": mechanism_rate}]
    if trains is Trains.attention:
        groups.append({"params": list(shared.values()), "lr": rate})
    groups = [group for group in groups if group["params"]]
    if not groups or steps == 0:
        return
    scales = [float(layer.answer.float().var()) for layer in answers]
    optimiser = torch.optim.Adam(groups)
    with _learning(student, [p for group in groups for p in group["params"]]):
        for at, rows in enumerate(_draws(len(passages), batch, steps, generator)):
            _set_rates(optimiser, at / steps)
            valid = passages.valid[rows]
            loss = torch.stack(
                [
                    _gap(answer(site.module, of.hidden[rows].float(), valid), of.answer[rows].float(), valid) / scale
                    for site, of, scale in zip(layers, answers, scales, strict=True)
                ]
            ).sum()
            _step(optimiser, loss, f"distillation, step {at + 1}")


@torch.no_grad()
def layer_errors(student: Any, answers: Sequence[Answers], passages: Passages) -> list[float]:
    """‖Y - Y_teacher‖ / ‖Y_teacher‖ of every attention module on the teacher's inputs, over real tokens."""
    found = []
    for site, of in zip(sites(student), answers, strict=True):
        gap = whole = 0.0
        for low in range(0, len(passages), BATCH):
            rows = slice(low, low + BATCH)
            valid, right = passages.valid[rows], of.answer[rows].float()
            gap += float((answer(site.module, of.hidden[rows].float(), valid) - right)[valid].square().sum())
            whole += float(right[valid].square().sum())
        found.append(math.sqrt(gap / whole))
    return found


def tune(
    student: Any,
    targets: Float[Tensor, "passages dim"],
    passages: Passages,
    *,
    steps: int,
    batch: int,
    rate: float,
    mechanism_rate: float,
    generator: torch.Generator,
) -> None:
    """Train the whole student, its embedding tables apart, to embed passages as the teacher does: 1 - cosine, averaged.

    Raises:
        DivergedError: a loss is not finite.
    """
    if steps == 0:
        return
    own = {id(p): p for site in sites(student) for p in _added(site) if p.requires_grad}
    tables = {id(p) for module in student.modules() if isinstance(module, nn.Embedding) for p in module.parameters()}
    rest = [p for p in student.parameters() if id(p) not in own and id(p) not in tables]
    wanted: list[dict[str, Any]] = [{"params": list(own.values()), "lr": mechanism_rate}, {"params": rest, "lr": rate}]
    groups = [group for group in wanted if group["params"]]
    optimiser = torch.optim.Adam(groups)
    with _learning(student, [p for group in groups for p in group["params"]]):
        for at, rows in enumerate(_draws(len(passages), batch, steps, generator)):
            _set_rates(optimiser, at / steps)
            mine = embedding(student, passages[rows])
            _step(optimiser, (1 - (mine * targets[rows]).sum(dim=-1)).mean(), f"fine-tuning, step {at + 1}")


def _added(site: Site) -> list[nn.Parameter]:
    attached = attached_to(site.module)
    assert attached is not None
    return list(attached.parameters())


def _gap(mine: Tensor, right: Tensor, valid: Tensor) -> Tensor:
    return (mine - right)[valid].square().mean()


@contextmanager
def _learning(student: Any, parameters: Sequence[nn.Parameter]) -> Iterator[None]:
    """These parameters learn and no others; dropout is off, and mechanisms know that they train, as some draw anew then."""
    stack = zoo_layers(student)
    before = {p: p.requires_grad for p in student.parameters()}
    student.requires_grad_(False).eval()
    for parameter in parameters:
        parameter.requires_grad_()
    for mechanism in stack:
        mechanism.train()
    try:
        yield
    finally:
        student.eval()
        for parameter, learns in before.items():
            parameter.requires_grad_(learns)


def _draws(count: int, batch: int, steps: int, generator: torch.Generator) -> Iterator[Tensor]:
    """Batches without repetition until all have been seen, then in another order."""
    order = torch.empty(0, dtype=torch.long)
    for _ in range(steps):
        while len(order) < batch:
            order = torch.cat([order, torch.randperm(count, generator=generator)])
        yield order[:batch]
        order = order[batch:]


def _set_rates(optimiser: torch.optim.Optimizer, done: float) -> None:
    """A warm-up over the first tenth, then half a cosine to zero."""
    factor = min(1.0, (done + 0.01) / 0.1) * (1 + math.cos(math.pi * done)) / 2
    for group in optimiser.param_groups:
        group["lr"] = group.setdefault("initial_lr", group["lr"]) * factor


def _step(optimiser: torch.optim.Optimizer, loss: Tensor, where: str) -> None:
    if not bool(loss.isfinite()):
        raise DivergedError(f"{where}: the loss is {loss.item()}; lower the learning rates")
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()
