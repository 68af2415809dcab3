"""Every mechanism on every task: a backward pass with a gradient for every parameter, or a refusal that its card predicts."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tiers import kinds, reads_published_data

from attn_zoo import registry
from attn_zoo.contract import AttentionCard, Batch, Task, TaskSpec, UnsupportedError, auxiliary_loss
from attn_zoo.encoder import build_model
from attn_zoo.runner.metrics import answers

SIZES: dict[str, Any] = {"dim": 16, "depth": 1, "heads": 2, "mlp_ratio": 1.0, "dropout": 0.0}


def first_examples(task: Task) -> Batch:
    try:
        return task.examples("train").batch(range(2))
    except (FileNotFoundError, ValueError) as error:
        pytest.skip(str(error).split(";")[0])


def foretold(card: AttentionCard, spec: TaskSpec, batch: Batch) -> str | None:
    """Return the expected text of the refusal if the card lacks a capability that the task needs, else None."""
    if spec.causal and not card.can.causal:
        return "has no causal form"
    if batch.valid is not None and not card.can.key_padding:
        return "does not support padding"
    return None


def step(card: AttentionCard, spec: TaskSpec, batch: Batch) -> None:
    """Run a forward and backward pass with default options, and check that every parameter has a finite gradient."""
    torch.manual_seed(0)
    model = build_model(spec, attention=card.name, options={}, **SIZES)
    loss = F.cross_entropy(*answers(model, batch))
    (loss + auxiliary_loss(model)).backward()
    assert loss.isfinite()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None and parameter.grad.isfinite().all(), f"{card.name}: no gradient reaches {name}"


CELLS = [pytest.param(name, marks=[pytest.mark.data] * reads_published_data(name)) for name in registry.task_names()]


@pytest.mark.parametrize("kind", ["of each kind", pytest.param("others", marks=pytest.mark.exhaustive)])
@pytest.mark.parametrize("name", CELLS)
def test_every_mechanism_trains_or_refuses_by_name(name, kind):
    task = registry.build_task(name, **registry.task_card(name).levels["smoke"].options)
    batch, wrong, trained = first_examples(task), {}, 0
    chosen = kinds(registry.attentions())
    for attention in (each for each in registry.attentions() if (each in chosen) is (kind == "of each kind")):
        card = registry.card(attention)
        expected = foretold(card, task.spec, batch)
        try:
            step(card, task.spec, batch)
        except UnsupportedError as refusal:
            if expected is None or expected not in str(refusal) or attention not in str(refusal):
                wrong[attention] = f"refuses: {refusal}"
        except Exception as error:
            wrong[attention] = f"{type(error).__name__}: {error}"
        else:
            trained += 1
            if expected:
                wrong[attention] = f"runs, though its card says that it {expected}"
    assert not wrong, "\n".join(f"{attention}: {what}" for attention, what in wrong.items())
    assert trained >= 10 or kind == "others"
