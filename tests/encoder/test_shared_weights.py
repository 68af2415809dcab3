"""One block applied repeatedly (shared weights), with new keys each time or those of the first application."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from tiers import of_each_kind
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from attn_zoo import MultiHeadAttention, UnsupportedError, attentions, card
from attn_zoo.contract import Batch, Pairs, Patches, TaskSpec, Tokens, auxiliary_loss
from attn_zoo.count import attention_parameters, count_flops, count_parameters
from attn_zoo.encoder import build_model
from attn_zoo.layer import Order

SIZES: dict[str, Any] = {"dim": 16, "depth": 3, "heads": 2, "mlp_ratio": 2.0, "dropout": 0.0}
WORDS = TaskSpec(Tokens(12), length=20, classes=3)
IMAGES = TaskSpec(Patches(1, 8, 8, 2), length=16, classes=3)
OPTIONS = {"linformer": {"projected_length": 5}}
REUSING = [name for name in attentions() if not card(name).can.shares_query_key]


def model(task: TaskSpec = WORDS, attention: str = "softmax", *, options: dict[str, Any] | None = None, **changes):
    torch.manual_seed(0)
    given = OPTIONS.get(attention, {}) if options is None else options
    return build_model(task, attention=attention, options=given, **{"implementation": "eager", **SIZES, **changes}).eval()


def ids(seed: int = 1, batch: int = 2) -> Tensor:
    return torch.randint(1, 12, (batch, 20), generator=torch.Generator().manual_seed(seed))


def padding() -> Tensor:
    return torch.arange(20) < torch.tensor([20, 9])[:, None]


def unrolled(encoder, tokens: Tensor, valid: Tensor | None, *, reuse: bool) -> Tensor:
    """Apply one softmax block three times, written out; with ``reuse``, keys and values come from the first normed input."""
    (block,) = encoder.blocks
    layer, d = block.attention, 8
    x = torch.cat([encoder.class_token.expand(len(tokens), 1, -1), encoder.embedding(tokens)], dim=1) + encoder.positions
    seen = torch.ones(len(tokens), 21, dtype=torch.bool) if valid is None else torch.nn.functional.pad(valid, (1, 0), value=True)
    first = None
    for _ in range(3):
        normed = block.attention_norm(x)
        first = normed if first is None or not reuse else first
        inputs = {"query": normed, "key": first, "value": first}
        q, k, v = (layer.projections[name](of).unflatten(-1, (2, d)) for name, of in inputs.items())
        scores = torch.einsum("bihd,bjhd->bhij", q, k) / d**0.5
        weights = scores.masked_fill(~seen[:, None, None], float("-inf")).softmax(-1)
        x = x + layer.out(torch.einsum("bhij,bjhd->bihd", weights, v).flatten(2))
        x = x + block.mlp(block.mlp_norm(x))
    return x


@pytest.mark.parametrize("reuse", [False, True])
@pytest.mark.parametrize("padded", [False, True])
def test_equals_the_block_written_out(reuse, padded):
    built, valid = model(shared_weights=True, reuse_keys=reuse).double(), padding() if padded else None
    for parameter in built.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    got, expected = built.encoder(ids(), valid), unrolled(built.encoder, ids(), valid, reuse=reuse)
    real = torch.ones(2, 21, dtype=torch.bool) if valid is None else torch.nn.functional.pad(valid, (1, 0), value=True)
    torch.testing.assert_close(got[real], expected[real], rtol=1e-9, atol=1e-9)
    grads = [torch.autograd.grad(out[real].square().sum(), list(built.encoder.blocks.parameters())) for out in (got, expected)]
    for mine, theirs in zip(*grads, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-7, atol=1e-6)


@pytest.mark.parametrize("name", of_each_kind(attentions()))
def test_weights_are_stored_once_and_work_is_done_each_time(name):
    batch = Batch(ids(), None, torch.zeros(2))
    apart, shared = (model(attention=name, shared_weights=one, depth=2) for one in (False, True))
    assert count_parameters(shared) == count_parameters(apart) - count_parameters(shared.encoder.blocks)
    assert attention_parameters(shared) * 2 == attention_parameters(apart)
    assert count_flops(shared, batch) == count_flops(apart, batch)


@pytest.mark.parametrize("name", of_each_kind(REUSING))
def test_reused_keys_are_projected_once(name):
    batch = Batch(ids(), None, torch.zeros(2))
    built = [model(attention=name, shared_weights=True, reuse_keys=reuse) for reuse in (False, True)]
    saved = count_flops(built[0], batch) - count_flops(built[1], batch)
    layer = built[0].encoder.blocks[0].attention
    projections = 2 * 2 * 21 * 16 * 16 * len({"key", "value"} & set(layer.reads))
    columns = {False: 16, True: SIZES["heads"]}  # a stream of one number per head
    projections += sum(2 * 2 * min(21, s.first or 21) * 16 * columns[s.per_head] for s in layer.streams if s.of == "keys")
    if layer.order is Order.compress_first:  # the compression, and the projections of the compressed tokens
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            layer.remember(torch.zeros(2, 21, 16))
        projections = counter.get_total_flops()
    assert saved == (SIZES["depth"] - 1) * projections > 0
    assert count_parameters(built[0]) == count_parameters(built[1])


@pytest.mark.parametrize("name", of_each_kind(n for n in REUSING if card(n).can.key_padding))
def test_padding_leaves_reused_keys_alone_and_gradients_reach_all(name):
    built, other = model(attention=name, shared_weights=True, reuse_keys=True), torch.where(padding(), ids(), ids(seed=2))
    torch.testing.assert_close(built(ids(), padding()), built(other, padding()), rtol=0, atol=1e-6)
    (built.train()(ids(), padding()).square().sum() + auxiliary_loss(built)).backward()
    dead = [key for key, p in built.named_parameters() if p.grad is None or not p.grad.isfinite().all()]
    assert not dead


@pytest.mark.parametrize("task", [WORDS, IMAGES])
def test_the_auxiliary_losses_of_all_applications_are_added(task):
    shared, apart = (model(task, "indexer", options={"kept": 3}, shared_weights=one).train() for one in (True, False))
    state, inputs = shared.state_dict(), ids() if task is WORDS else torch.randn(2, 1, 8, 8)
    apart.load_state_dict({name.replace("blocks.0.", f"blocks.{at}."): of for name, of in state.items() for at in range(3)})
    shared(inputs)  # a forward pass whose loss is not used
    apart(inputs)
    expected = auxiliary_loss(apart)
    for network in (shared, copy.deepcopy(shared)):
        network(inputs)
        torch.testing.assert_close(auxiliary_loss(network), expected)
        assert auxiliary_loss(network) == 0


def test_a_task_of_pairs_shares_as_well():
    pairs = model(TaskSpec(Pairs(12), length=20, classes=3), shared_weights=True, reuse_keys=True)
    assert pairs(torch.stack([ids(), ids(2)], dim=1)).shape == (2, 3)


def test_images_share_weights_and_refuse_reused_keys():
    apart, shared = model(IMAGES), model(IMAGES, shared_weights=True)
    pictures = torch.randn(2, 1, 8, 8)
    one = shared.transformer.blocks[0]
    assert all(block is one for block in shared.transformer.blocks) and len(shared.transformer.blocks) == 3
    assert count_parameters(apart) - count_parameters(shared) == 2 * count_parameters(one)
    batch = Batch(pictures, None, torch.zeros(2))
    assert count_flops(apart, batch) == count_flops(shared, batch)
    x = shared.transformer._pos_embed(shared.transformer.patch_embed(pictures))
    torch.testing.assert_close(shared(pictures), shared.transformer.forward_head(shared.transformer.norm(one(one(one(x))))))
    other = model(IMAGES, shared_weights=True)
    torch.nn.init.normal_(other.transformer.head.weight)
    other.load_state_dict(shared.state_dict())
    assert torch.equal(other(pictures), shared(pictures))
    with pytest.raises(UnsupportedError, match="every block of timm's VisionTransformer computes its own keys"):
        model(IMAGES, shared_weights=True, reuse_keys=True)


@pytest.mark.parametrize("task", [WORDS, IMAGES], ids=["words", "images"])
def test_a_shared_block_is_a_stack_of_one_layer(task):
    built = model(task, "linformer", options={"projected_length": 5, "sharing": "layerwise"}, shared_weights=True)
    (layer,) = (m for m in built.modules() if isinstance(m, MultiHeadAttention))
    assert sum(p.numel() for p in layer.mechanism.parameters()) == 5 * layer.mechanism.geometry.keys
    model(task, "linformer", options={"projected_lengths": "7"}, shared_weights=True)
    with pytest.raises(ValueError, match=r"'7/5/3'.* has values for 3 layers, but the model has 1"):
        model(task, "linformer", options={"projected_lengths": "7/5/3"}, shared_weights=True)


def test_keys_are_not_reused_where_they_are_also_queries_or_blocks_differ():
    with pytest.raises(UnsupportedError, match="reformer computes queries and keys by one projection"):
        model(attention="reformer", shared_weights=True, reuse_keys=True)
    with pytest.raises(ValueError, match="must go with shared_weights=True"):
        model(reuse_keys=True)
