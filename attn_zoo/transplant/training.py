"""Training of a student. First each attention module is trained to imitate that of the teacher (distillation), then the whole
student is fine-tuned."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from enum import Enum
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from attn_zoo.contract import auxiliary_loss
from attn_zoo.integrations.transformers import zoo_layers
from attn_zoo.integrations.transformers.attached import Attached
from attn_zoo.integrations.transformers.sites import sites
from attn_zoo.transplant.encoder import BATCH, Answers, answer, embedding
from attn_zoo.transplant.passages import Passages


class Trains(Enum):
    """Parameters that distillation trains."""

    mechanism = "mechanism"
    """Only the parameters of the mechanism."""
    attention = "attention"
    """The parameters of the mechanism, and the projections of queries, keys and values."""


class DivergedError(RuntimeError):
    """Error for a training loss or an embedding that is NaN or infinite."""


def distil(
    student: Any,
    answers: Sequence[Answers],
    passages: Passages,
    *,
    trains: Trains,
    rate: float,
    mechanism_rate: float,
    **how: Any,
) -> None:
    """Train every attention module of the student to reproduce the teacher's output for the teacher's inputs, separately for each
    layer.

    The loss of a layer is its mean squared error divided by the variance of the teacher's output, so layers have equal weight.

    Args:
        answers: inputs and outputs of the teacher's modules for ``passages``, in the order of the student's modules.
        rate: peak learning rate of projections.
        mechanism_rate: peak learning rate of the mechanism's own parameters.
        **how: steps, batch and generator, as in ``fit``.

    Raises:
        DivergedError: a loss is not finite.
    """
    layers, own = sites(student), _own_parameters(student)
    groups: list[dict[str, Any]] = [{"params": list(own), "lr": mechanism_rate}]
    if trains is Trains.attention:
        projections = dict.fromkeys(p for site in layers for p in site.module.parameters() if p not in own)
        groups.append({"params": list(projections), "lr": rate})
    scales = [float(layer.answer.float().var()) for layer in answers]

    def loss(rows: Tensor) -> Tensor:
        valid = passages.valid[rows]
        errors = []
        for site, of, scale in zip(layers, answers, scales, strict=True):
            gap = answer(site.module, of.hidden[rows].float(), valid) - of.answer[rows].float()
            errors.append(gap[valid].square().mean() / scale)
        return torch.stack(errors).sum()

    _minimise(student, groups, loss, len(passages), what="distillation", **how)


@torch.no_grad()
def layer_errors(student: Any, answers: Sequence[Answers], passages: Passages) -> list[float]:
    """Return the relative error ‖Y - Y_teacher‖ / ‖Y_teacher‖ of the output Y of every attention module, for the teacher's inputs.
    Padding is left out."""
    errors = []
    for site, of in zip(sites(student), answers, strict=True):
        gap = whole = 0.0
        for low in range(0, len(passages), BATCH):
            rows = slice(low, low + BATCH)
            valid, right = passages.valid[rows], of.answer[rows].float()
            gap += float((answer(site.module, of.hidden[rows].float(), valid) - right)[valid].square().sum())
            whole += float(right[valid].square().sum())
        errors.append(math.sqrt(gap / whole))
    return errors


def tune(student: Any, targets: Float[Tensor, "passages dim"], passages: Passages, **how: Any) -> None:
    """Train the student, except its embedding tables, to reproduce the teacher's embeddings of passages. The loss is 1 minus the
    mean cosine similarity.

    Args:
        targets: normalised embeddings of the teacher.
        **how: steps, batch, rates and generator, as in ``fit``.

    Raises:
        DivergedError: a loss is not finite.
    """

    def loss(rows: Tensor) -> Tensor:
        return (1 - (embedding(student, passages[rows]) * targets[rows]).sum(dim=-1)).mean()

    fit(student, loss, len(passages), what="fine-tuning", **how)


def fit(
    student: Any,
    loss: Callable[[Tensor], Tensor],
    count: int,
    *,
    rate: float,
    mechanism_rate: float,
    head: nn.Module | None = None,
    **how: Any,
) -> None:
    """Train the student, except its embedding tables, with the function ``loss``.

    Args:
        loss: function from indices of examples to the loss on these examples.
        count: number of examples from which batches are drawn.
        rate: peak learning rate of the student's parameters outside of its mechanisms.
        mechanism_rate: peak learning rate of the parameters of mechanisms and of ``head``.
        head: additional module to train, or None.
        **how: name of the training for the error message (``what``), number of ``steps``, number of examples per step (``batch``),
            and random ``generator`` that draws the examples.

    Raises:
        DivergedError: a loss is not finite.
    """
    own = _own_parameters(student)
    tables = {p for module in student.modules() if isinstance(module, nn.Embedding) for p in module.parameters()}
    rest = [p for p in student.parameters() if p not in own and p not in tables]
    fresh = [*own, *(head.parameters() if head is not None else [])]
    groups: list[dict[str, Any]] = [{"params": fresh, "lr": mechanism_rate}, {"params": rest, "lr": rate}]
    _minimise(student, groups, loss, count, **how)


def _own_parameters(student: Any) -> dict[nn.Parameter, None]:
    """Return the trainable parameters that the replacement of attention added to a student, each once."""
    attached = (module for module in student.modules() if isinstance(module, Attached))
    return dict.fromkeys(p for module in attached for p in module.parameters() if p.requires_grad)


def _minimise(
    student: Any,
    groups: Sequence[dict[str, Any]],
    loss: Callable[[Tensor], Tensor],
    count: int,
    *,
    what: str,
    steps: int,
    batch: int,
    generator: torch.Generator,
) -> None:
    """Minimise a loss with Adam. Groups of parameters may be empty. Other arguments and errors are as in ``fit``."""
    groups = [group for group in groups if group["params"]]
    if not groups or steps == 0:
        return
    optimiser = torch.optim.Adam(groups)
    with _trainable(student, [p for group in groups for p in group["params"]]):
        for at, rows in enumerate(_draws(count, batch, steps, generator)):
            _set_rates(optimiser, at / steps)
            error = loss(rows)
            if not bool(error.isfinite()):
                raise DivergedError(f"{what}: the loss became {error.item()} at step {at + 1}. Use lower learning rates")
            optimiser.zero_grad()
            (error + auxiliary_loss(student)).backward()
            optimiser.step()


@contextmanager
def _trainable(student: Any, parameters: Sequence[nn.Parameter]) -> Iterator[None]:
    """Return a context in which only these parameters are trained. Dropout is off, but mechanisms are in training mode, so that
    they draw their random parts again."""
    before = {p: p.requires_grad for p in student.parameters()}
    student.requires_grad_(False).eval()
    for parameter in parameters:
        parameter.requires_grad_()
    for mechanism in zoo_layers(student):
        mechanism.train()
    try:
        yield
    finally:
        student.eval()
        for parameter, required in before.items():
            parameter.requires_grad_(required)


def _draws(count: int, batch: int, steps: int, generator: torch.Generator) -> Iterator[Tensor]:
    """Yield batches of indices. The indices are shuffled again in every epoch."""
    order = torch.empty(0, dtype=torch.long)
    for _ in range(steps):
        while len(order) < batch:
            order = torch.cat([order, torch.randperm(count, generator=generator)])
        yield order[:batch]
        order = order[batch:]


def _set_rates(optimiser: torch.optim.Optimizer, done: float) -> None:
    """Set the learning rates: a linear warm-up over the first tenth of the steps, multiplied by a cosine decay to zero."""
    factor = min(1.0, (done + 0.01) / 0.1) * (1 + math.cos(math.pi * done)) / 2
    for group in optimiser.param_groups:
        group["lr"] = group.setdefault("initial_lr", group["lr"]) * factor
