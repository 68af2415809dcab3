"""Training of a student. First each attention module is trained to imitate that of the teacher (distillation), then the whole
student is fine-tuned: to embed passages as the teacher does, or to classify text as in Table 2 of the Linformer paper."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from attn_zoo.contract import auxiliary_loss
from attn_zoo.integrations.transformers import zoo_layers
from attn_zoo.integrations.transformers.attached import Attached
from attn_zoo.integrations.transformers.sites import sites
from attn_zoo.transplant.encoder import BATCH, Answers, answer, embedding, mean_hidden
from attn_zoo.transplant.setting import Setting, Trains
from attn_zoo.transplant.texts import Labelled, Passages


class DivergedError(RuntimeError):
    """Error for a training loss or an embedding that is NaN or infinite."""


def distil(student: Any, answers: Sequence[Answers], passages: Passages, setting: Setting, generator: torch.Generator) -> None:
    """Train every attention module of the student to reproduce the teacher's output for the teacher's inputs, separately for each
    layer.

    The loss of a layer is its mean squared error divided by the variance of the teacher's output, so layers have equal weight.

    Args:
        answers: inputs and outputs of the teacher's modules for ``passages``, in the order of the student's modules.
        generator: random generator that draws the passages.

    Raises:
        DivergedError: a loss is not finite.
    """
    layers, own = sites(student), _own_parameters(student)
    groups = [{"params": own, "lr": setting.distil_rate * setting.mechanism_factor}]
    if setting.trains is Trains.attention:
        projections = dict.fromkeys(p for site in layers for p in site.module.parameters() if p not in set(own))
        groups.append({"params": list(projections), "lr": setting.distil_rate})
    scales = [float(right.float().var()) for _, right in answers]

    def loss(rows: Tensor) -> Tensor:
        valid = passages.valid[rows]
        errors = []
        for site, (hidden, right), scale in zip(layers, answers, scales, strict=True):
            gap = answer(site.module, hidden[rows].float(), valid) - right[rows].float()
            errors.append(gap[valid].square().mean() / scale)
        return torch.stack(errors).sum()

    _minimise(student, groups, loss, "distillation", len(passages), setting.batch, setting.distil_steps, generator)


@torch.no_grad()
def layer_errors(student: Any, answers: Sequence[Answers], passages: Passages) -> list[float]:
    """Return the relative error ‖Y - Y_teacher‖ / ‖Y_teacher‖ of the output Y of every attention module, for the teacher's inputs.
    Padding is left out."""
    errors = []
    for site, (hidden, outputs) in zip(sites(student), answers, strict=True):
        gap = whole = 0.0
        for low in range(0, len(passages), BATCH):
            rows = slice(low, low + BATCH)
            valid, right = passages.valid[rows], outputs[rows].float()
            gap += float((answer(site.module, hidden[rows].float(), valid) - right)[valid].square().sum())
            whole += float(right[valid].square().sum())
        errors.append(math.sqrt(gap / whole))
    return errors


def tune(
    student: Any, targets: Float[Tensor, "passages dim"], passages: Passages, setting: Setting, generator: torch.Generator
) -> None:
    """Train the student, except its embedding tables, to reproduce the teacher's embeddings of passages. The loss is 1 minus the
    mean cosine similarity.

    Args:
        targets: normalised embeddings of the teacher.
        generator: random generator that draws the passages.

    Raises:
        DivergedError: a loss is not finite.
    """

    def loss(rows: Tensor) -> Tensor:
        return (1 - (embedding(student, passages[rows]) * targets[rows]).sum(dim=-1)).mean()

    groups = _groups(student, [], setting.tune_rate, setting.mechanism_factor)
    _minimise(student, groups, loss, "fine-tuning", len(passages), setting.batch, setting.tune_steps, generator)


def classify(student: Any, task: Labelled, setting: Setting, *, trim: bool, seed: int) -> float:
    """Train a copy of the student, except its embedding tables, with a linear layer on its mean hidden state, and return the
    accuracy on the test examples.

    Args:
        trim: True to drop the padding that all passages of a batch share. The student must then run at any length.

    Raises:
        DivergedError: a loss is not finite.
    """
    generator = torch.Generator().manual_seed(seed)
    own = copy.deepcopy(student)
    head = nn.Linear(own.config.hidden_size, 1 + max(int(task.train_labels.max()), int(task.test_labels.max())))
    nn.init.normal_(head.weight, std=own.config.hidden_size**-0.5, generator=generator)
    nn.init.zeros_(head.bias)

    def logits(passages: Passages) -> Tensor:
        return head(mean_hidden(own, passages.trimmed() if trim else passages))

    def loss(rows: Tensor) -> Tensor:
        return F.cross_entropy(logits(task.train[rows]), task.train_labels[rows])

    groups = _groups(own, list(head.parameters()), setting.classify_rate, setting.mechanism_factor)
    what = f"classification, {task.name}"
    _minimise(own, groups, loss, what, len(task.train), setting.classify_batch, setting.classify_steps, generator)
    order = task.test.valid.sum(dim=1).argsort(stable=True)
    with torch.no_grad():
        answers = torch.cat([logits(batch).argmax(dim=-1) for batch in task.test[order].batches(BATCH)])
    return float((answers == task.test_labels[order]).double().mean())


def _own_parameters(student: Any) -> list[nn.Parameter]:
    """Return the trainable parameters that the replacement of attention added to a student, each once."""
    attached = (module for module in student.modules() if isinstance(module, Attached))
    return list(dict.fromkeys(p for module in attached for p in module.parameters() if p.requires_grad))


def _groups(student: Any, head: list[nn.Parameter], rate: float, factor: float) -> list[dict[str, Any]]:
    """Return all parameters of a student but its embedding tables, in groups with their learning rates. The rate is multiplied by
    ``factor`` for the mechanisms and for ``head``."""
    own = _own_parameters(student)
    tables = {p for module in student.modules() if isinstance(module, nn.Embedding) for p in module.parameters()}
    rest = [p for p in student.parameters() if p not in set(own) and p not in tables]
    return [{"params": [*own, *head], "lr": rate * factor}, {"params": rest, "lr": rate}]


def _minimise(
    student: Any,
    groups: Sequence[dict[str, Any]],
    loss: Callable[[Tensor], Tensor],
    what: str,
    count: int,
    batch: int,
    steps: int,
    generator: torch.Generator,
) -> None:
    """Minimise a loss with Adam.

    Args:
        groups: parameters with their peak learning rates, as for optimisers of PyTorch. Groups may be empty.
        loss: function from indices of examples to the loss on these examples.
        what: name of the training for the error message.
        count, batch: number of all examples, and of those in each step.

    Raises:
        DivergedError: a loss is not finite.
    """
    groups = [group for group in groups if group["params"]]
    if not groups or steps == 0:
        return
    optimiser = torch.optim.Adam(groups)
    peaks = [group["lr"] for group in groups]
    with _trainable(student, [p for group in groups for p in group["params"]]):
        for at, rows in enumerate(_draws(count, batch, steps, generator)):
            # A linear warm-up over the first tenth of the steps, multiplied by a cosine decay to zero.
            factor = min(1.0, (at / steps + 0.01) / 0.1) * (1 + math.cos(math.pi * at / steps)) / 2
            for group, peak in zip(optimiser.param_groups, peaks, strict=True):
                group["lr"] = peak * factor
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
