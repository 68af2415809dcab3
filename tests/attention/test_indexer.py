"""The indexer's own loss: whom it trains, what it draws the scores to, and that training loops add it."""

from __future__ import annotations

import copy
import pickle
from dataclasses import asdict

import pytest
import torch
from accelerate import Accelerator
from run_helpers import Quiet
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from attn_zoo import Geometry, MultiHeadAttention, UnsupportedError, build_attention
from attn_zoo.attention.content.indexer import Indexer
from attn_zoo.contract import Examples, Split, allowed_pairs, auxiliary_loss, softmax_over_valid
from attn_zoo.encoder import build_paired_model
from attn_zoo.records import Budget, ModelSpec
from attn_zoo.registry import build_task
from attn_zoo.runner.train import Setup, train

HEADS, D, N = 2, 8, 24
SIZES = asdict(ModelSpec(dim=16, heads=2, depth=1))


def built(causal: bool) -> Indexer:
    torch.manual_seed(0)
    mechanism = build_attention("indexer", Geometry(HEADS, D, N, N, causal), implementation="eager", kept=4)
    assert isinstance(mechanism, Indexer)
    return mechanism


def draw() -> list[Tensor]:
    generator = torch.Generator().manual_seed(3)
    return [torch.randn(4, HEADS, N, D, generator=generator).requires_grad_() for _ in range(3)]


def test_the_loss_reaches_the_scorer_alone():
    mechanism, inputs = built(causal=True).train(), draw()
    mechanism(*inputs)
    term = auxiliary_loss(mechanism)
    assert isinstance(term, Tensor)
    term.backward()
    assert all(x.grad is None for x in inputs)
    assert all(parameter.grad is not None and parameter.grad.any() for parameter in mechanism.parameters())


def test_the_loss_is_left_once_and_in_training_only():
    mechanism, inputs = built(causal=False), draw()
    mechanism.eval()(*inputs)
    assert auxiliary_loss(mechanism) == 0
    mechanism.train()(*inputs)
    assert auxiliary_loss(mechanism) > 0
    assert auxiliary_loss(mechanism) == 0


def test_a_module_can_be_copied_after_a_training_call():
    mechanism, inputs = built(causal=True).train(), draw()
    mechanism(*inputs)
    for twin in (copy.deepcopy(mechanism), pickle.loads(pickle.dumps(mechanism))):
        assert auxiliary_loss(twin) == 0
    assert auxiliary_loss(mechanism) > 0


@pytest.mark.parametrize("name", ["indexer", "sparse_compression"])
def test_a_loss_that_trains_nothing_is_refused(name):
    layer, tokens = MultiHeadAttention(16, HEADS, name, length=N, kept=4).train(), torch.randn(2, N, 16, requires_grad=True)
    checkpoint(layer, tokens, use_reentrant=True)
    with pytest.raises(UnsupportedError, match=r"must record gradients.*recorded none.*use_reentrant=False"):
        auxiliary_loss(layer)
    assert auxiliary_loss(layer) == 0
    with torch.no_grad():
        layer(tokens)
        assert auxiliary_loss(layer) > 0
        layer(tokens)
    layer.mechanism.requires_grad_(False)
    assert auxiliary_loss(layer) > 0


def test_padded_queries_and_keys_have_no_part_in_the_loss():
    mechanism, inputs = built(causal=False).train(), draw()
    valid = torch.ones(4, N, dtype=torch.bool)
    valid[:, -5:] = False
    mechanism(*inputs, key_valid=valid)
    padded = auxiliary_loss(mechanism)
    mechanism(*(x[:, :, :-5] for x in inputs))
    torch.testing.assert_close(padded, auxiliary_loss(mechanism))


@pytest.mark.parametrize("tokens", [N, N - 4])
def test_all_queries_of_another_sequence_have_a_part_in_the_loss(tokens):
    layer = MultiHeadAttention(16, HEADS, "indexer", length=N, context_length=N, kept=4).double().train()
    queries, context = torch.randn(2, 2, N, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    queries, valid = queries[:, :tokens], torch.ones(2, N, dtype=torch.bool)
    valid[0, 9:], valid[1, 17:] = False, False

    @torch.no_grad()
    def loss(of: Tensor) -> float:
        layer(of, context, key_valid=valid)
        return float(auxiliary_loss(layer))

    each = [loss(queries[:, at : at + 1]) for at in range(tokens)]
    assert loss(queries) == pytest.approx(sum(each) / tokens)


@pytest.mark.parametrize("causal", [False, True])
def test_the_loss_draws_the_choice_to_the_heaviest_keys(causal):
    mechanism, inputs = built(causal).train(), draw()
    query, key, _ = inputs
    allowed = allowed_pairs(query, key, None, causal=causal)
    weights = softmax_over_valid(3 * query @ key.mT / D**0.5, allowed).mean(dim=1)

    def caught() -> float:
        """Return the share of attention that falls on chosen keys."""
        _, chosen = mechanism.choose(query, key, allowed)
        return (weights * chosen).sum(dim=-1).mean().item()

    before, losses = caught(), []
    optimizer = torch.optim.Adam(mechanism.parameters(), lr=0.01)
    for _ in range(200):
        mechanism(3 * query, key, inputs[2])
        optimizer.zero_grad()
        term = auxiliary_loss(mechanism)
        assert isinstance(term, Tensor)
        term.backward()
        optimizer.step()
        losses.append(term.item())
    assert losses[-1] < losses[0] / 2
    assert caught() > before + 0.1


def test_the_training_loop_adds_the_loss():
    task = build_task("listops", length=24, train=40, valid=8, test=8)
    model = build_paired_model(task.spec, seed=1, attention="indexer", options={"kept": 4}, **SIZES)
    before = {name: p.detach().clone() for name, p in model.named_parameters() if "index_" in name}
    splits: dict[Split, Examples] = {"train": task.examples("train"), "valid": task.examples("valid")}
    budget = Budget(steps=2, batch_size=8, evaluate_every=2, warmup_steps=1, weight_decay=0)
    train(model, splits, Setup(task, budget, 1, Accelerator(cpu=True), Quiet()))
    assert len(before) == 3
    assert not any(torch.equal(model.get_parameter(name), was) for name, was in before.items())
    assert auxiliary_loss(model) == 0
