"""Multi-head attention layer: exact in both orders of projection and compression, correct padding, refusals of bad requests."""

from __future__ import annotations

import copy
from contextlib import suppress
from typing import Any

import pytest
import torch
from tiers import of_each_kind
from torch import Tensor
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.utils.flop_counter import FlopCounterMode

from attn_zoo import UnknownNameError, UnsupportedError, attentions, card
from attn_zoo.contract import auxiliary_loss
from attn_zoo.layer import MultiHeadAttention, Order

LENGTH, DIM, HEADS = 40, 16, 4


def build(attention: str, **kwargs) -> MultiHeadAttention:
    torch.manual_seed(0)
    layer = MultiHeadAttention(DIM, HEADS, attention, length=LENGTH, **kwargs).double().eval()
    with torch.no_grad():  # biases start at zero, which would hide mistakes in their handling
        for parameter in layer.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return layer


def tokens(batch: int = 3, length: int = LENGTH, dim: int = DIM, seed: int = 1) -> Tensor:
    return torch.randn(batch, length, dim, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def padding() -> Tensor:
    valid = torch.ones(3, LENGTH, dtype=torch.bool)
    valid[0, 25:] = False
    valid[1, 3:] = False
    return valid


def by_hand(layer: MultiHeadAttention, x: Tensor, key_valid: Tensor | None) -> Tensor:
    """Softmax attention written out head by head, from the layer's own weights."""
    parts = []
    for head in range(HEADS):
        rows = slice(head * DIM // HEADS, (head + 1) * DIM // HEADS)
        q, k, v = (x @ w[rows].T + (0 if b is None else b[rows]) for w, b in map(layer._parameters_of, ("query", "key", "value")))
        scores = q @ k.transpose(1, 2) / (DIM // HEADS) ** 0.5
        if key_valid is not None:
            scores = scores.masked_fill(~key_valid[:, None, :], float("-inf"))
        parts.append(scores.softmax(-1) @ v)
    return torch.cat(parts, dim=-1) @ layer.out.weight.T + layer.out.bias


@pytest.mark.parametrize("fused", [False, True])
def test_softmax_layer_equals_attention_written_out(fused):
    layer = build("softmax", fused=fused)
    torch.testing.assert_close(layer(tokens()), by_hand(layer, tokens(), None), rtol=0, atol=1e-12)
    real = padding()
    torch.testing.assert_close(layer(tokens(), key_valid=real)[real], by_hand(layer, tokens(), real)[real], rtol=0, atol=1e-12)


@pytest.mark.parametrize("without", ["key", "value"])
def test_compress_first_keeps_the_only_bias(without):
    """The projection to keys or values may lack a bias that the other one has, as in BEiT."""
    outs = []
    for order in ("project_first", "compress_first"):
        layer = build("linformer", projected_length=5, order=order)
        layer.projections[without].register_parameter("bias", None)
        outs += [layer(tokens()), layer(tokens(), key_valid=padding())]
    for first, second in zip(outs[:2], outs[2:], strict=True):
        torch.testing.assert_close(first, second, rtol=1e-9, atol=1e-9)


def test_auto_takes_the_order_with_fewer_flops():
    def built(order: str, k: int, context_dim: int) -> MultiHeadAttention:
        return MultiHeadAttention(8, 2, "linformer", length=64, context_dim=context_dim, projected_length=k, order=order)

    def counted(order: str, k: int, context_dim: int) -> int:
        with FlopCounterMode(display=False) as counter:
            built(order, k, context_dim)(torch.randn(1, 64, 8), torch.randn(1, 64, context_dim))
        return counter.get_total_flops()

    seen = set()
    for k in (4, 32, 63):
        for context_dim in (8, 64):
            seen.add(built("auto", k, context_dim).order)
            least = min(counted(order, k, context_dim) for order in ("project_first", "compress_first"))
            assert counted("auto", k, context_dim) == least
    assert seen == {Order.project_first, Order.compress_first}, "the sizes tried must exercise both choices"


def test_compress_first_is_refused_where_heads_compress_differently():
    assert build("linformer", sharing="none").order is Order.project_first
    with pytest.raises(UnsupportedError, match="cannot compress tokens once"):
        build("linformer", sharing="none", order="compress_first")
    with pytest.raises(UnsupportedError, match="softmax cannot compress"):
        build("softmax", order="compress_first")


@pytest.mark.parametrize("name", [n for n in attentions() if card(n).can.key_padding])
@pytest.mark.parametrize("fused", [False, True])
def test_nan_in_padding_reaches_neither_output_nor_gradient(name, fused):
    layer, valid = build(name, fused=fused), padding()
    clean = tokens()
    dirty = clean.masked_fill(~valid[..., None], float("nan"))
    torch.testing.assert_close(layer(dirty, key_valid=valid)[valid], layer(clean, key_valid=valid)[valid], rtol=0, atol=1e-12)
    (layer.train()(dirty, key_valid=valid)[valid].square().sum() + auxiliary_loss(layer)).backward()
    for parameter_name, parameter in layer.named_parameters():
        assert parameter.grad is not None, f"{parameter_name} got no gradient"
        assert parameter.grad.isfinite().all(), f"{parameter_name} got a gradient that is not finite"


@pytest.mark.parametrize("name", attentions())
def test_only_what_is_read_is_projected(name):
    layer, reads = build(name), card(name).reads
    assert set(layer.projections) == set(reads)
    extra = 0 if layer.mechanism.card.name != name else sum(p.numel() for p in layer.stream_projections.parameters())
    mechanism = sum(p.numel() for p in layer.mechanism.parameters())
    assert sum(p.numel() for p in layer.parameters()) == (len(reads) + 1) * (DIM * DIM + DIM) + mechanism + extra


def test_cross_attention_reads_the_context():
    layer = build("softmax", context_length=7, context_dim=8)
    x, context = tokens(), tokens(length=7, dim=8)
    assert layer(x, context).shape == x.shape
    assert not torch.equal(layer(x, context), layer(x, context.flip(1) * 2))
    with pytest.raises(ValueError, match="called with a context, because the layer was built with one"):
        layer(x)
    with pytest.raises(ValueError, match="context must have shape"):
        layer(x, tokens(length=7, dim=9))
    with pytest.raises(ValueError, match="called without a context, because the layer was built without one"):
        build("softmax")(x, context)
    with pytest.raises(UnsupportedError, match="same tokens"):
        build("none", context_dim=8)
    with pytest.raises(ValueError, match="fused=True"):
        build("softmax", context_length=7, fused=True)


def test_dropout_acts_in_training_only():
    layer = build("softmax", output_dropout=0.5)
    assert torch.equal(layer(tokens()), layer(tokens()))
    layer.train()
    assert (layer(tokens()) == 0).double().mean().item() == pytest.approx(0.5, abs=0.1)


@pytest.mark.parametrize(
    ("kwargs", "error", "message"),
    [
        ({"dim": 10, "heads": 4}, ValueError, "divisible by heads"),
        ({"heads": 0}, ValueError, "heads must be an integer >= 1"),
        ({"output_dropout": 1.0}, ValueError, "at least 0 and less than 1"),
        ({"order": "sideways"}, ValueError, "sideways"),
        ({"attention": "linfomer"}, UnknownNameError, "did you mean 'linformer'"),
        ({"attention": "linformer[projected_length=4]"}, UnknownNameError, "Give options as keyword arguments"),
        ({"attention": "linformer+softmax"}, UnknownNameError, "hybrids are for the command line and replace_attention"),
        ({"attention": "linformer", "projected_length": "4"}, ValueError, "must be an integer and must be at least 1; got '4'"),
        ({"attention": "linformer", "projected_lenght": 4}, UnknownNameError, "did you mean 'projected_length'"),
        ({"attention": "linformer", "projected_length": 0}, ValueError, "at least 1"),
        ({"attention": "linformer", "projected_length": LENGTH}, UnsupportedError, "must be less than the 40 keys"),
        ({"attention": "linformer", "causal": True}, UnsupportedError, "no causal form"),
        ({"attention": "linformer", "implementation": "flex"}, UnknownNameError, "implementation of linformer"),
    ],
)
def test_bad_requests_are_refused_when_built(kwargs, error, message):
    arguments = {"dim": DIM, "heads": HEADS, "attention": "softmax", **kwargs}
    with pytest.raises(error, match=message):
        MultiHeadAttention(arguments.pop("dim"), arguments.pop("heads"), arguments.pop("attention"), length=LENGTH, **arguments)


def test_bad_inputs_are_refused_when_called():
    layer = build("linformer", projected_length=5)
    with pytest.raises(ValueError, match="dim=16"):
        layer(tokens(dim=15))
    with pytest.raises(UnsupportedError, match=r"built for 40 keys; got 41. Build it for the longest input"):
        layer(tokens(length=41))
    with pytest.raises(ValueError, match="key_valid must be boolean"):
        layer(tokens(), key_valid=padding().long())
    with pytest.raises(ValueError, match="key_valid must be boolean"):
        layer(tokens(), key_valid=padding()[:, :5])
    with pytest.raises(ValueError, match=r"must be called without a context.* Pass a mask of padding as key_valid="):
        layer(tokens(), padding())


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_tokens_of_another_dtype_are_refused_unless_autocast_converts_them(dtype):
    layer, crossing = build("linformer", projected_length=5), build("softmax", context_length=LENGTH)
    given = tokens().to(dtype)
    wanted = rf"must have the dtype of the layer's weights, torch.float64; got {dtype}. Convert them with .*\.to\(torch.float64\)"
    for call in (lambda: layer(given), lambda: layer.remember(given), lambda: crossing(tokens(), given)):
        with pytest.raises(ValueError, match=wanted):
            call()
    with torch.autocast("cpu", torch.bfloat16):
        assert layer.float()(given).isfinite().all()


def test_weights_of_another_length_are_refused_with_the_remedy():
    layer = build("linformer", projected_length=4)
    short = MultiHeadAttention(DIM, HEADS, "linformer", length=LENGTH // 2, projected_length=4)
    with pytest.raises(
        RuntimeError, match=r"for 40 keys, but has another one. If the weights come from another length, call resize_length"
    ):
        layer.load_state_dict(short.state_dict())
    layer.resize_length(LENGTH // 2)
    layer.load_state_dict(short.state_dict())


@pytest.mark.parametrize("attention", [name for name in attentions() if not card(name).can.any_length])
def test_errors_advise_resizing_only_if_the_mechanism_can_be_resized(attention):
    layer, longer, messages = build(attention), MultiHeadAttention(DIM, HEADS, attention, length=LENGTH + 8), list[str]()
    weights = layer.mechanism.state_dict()
    for call in (lambda: layer(tokens(length=LENGTH + 8)), lambda: longer.mechanism.load_state_dict(weights)):
        try:
            call()
        except (UnsupportedError, RuntimeError) as error:
            messages.append(str(error))
    try:
        layer.resize_length(LENGTH + 8)
        resizes = True
    except UnsupportedError:
        resizes = False
    assert messages and all(("call resize_length" in message) is resizes for message in messages)


@pytest.mark.kernels
@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
@pytest.mark.parametrize("options", [{}, {"sharing": "key_value"}, {"projection": "mean"}, {"sharing": "none"}])
def test_compiles_whole_and_computes_under_autocast(implementation, options):
    layer = build("linformer", projected_length=5, implementation=implementation, **options).float()
    x = tokens().float().requires_grad_()
    expected = layer(x, key_valid=padding())
    (slope,) = torch.autograd.grad(expected.square().sum(), x)
    torch._dynamo.reset()
    out = torch.compile(layer, backend="aot_eager", fullgraph=True)(x, key_valid=padding())
    torch.testing.assert_close(out, expected, rtol=0, atol=1e-6)
    torch.testing.assert_close(torch.autograd.grad(out.square().sum(), x)[0], slope, rtol=0, atol=1e-5)
    with torch.autocast("cpu", torch.bfloat16):
        rough = layer(x, key_valid=padding())
    assert rough.dtype is torch.bfloat16
    assert (rough.float() - expected).norm() < 0.05 * expected.norm()
    rough.float().square().sum().backward()


def test_without_gradients_blocks_of_queries_change_nothing(monkeypatch):
    layer = build("linformer", projected_length=5, output_dropout=0.5)
    expected = layer(tokens(), key_valid=padding())
    monkeypatch.setattr("attn_zoo.layer.multi_head.CACHED_BYTES", tokens()[:, :7].nbytes)
    with torch.no_grad():
        torch.testing.assert_close(layer(tokens(), key_valid=padding()), expected, rtol=0, atol=1e-14)
        assert not torch.equal(layer.train()(tokens()), layer(tokens())), "dropout still acts in training without gradients"


def compressing() -> list[tuple[str, dict[str, Any]]]:
    """Mechanisms and options whose tokens a layer can compress before it projects them."""
    found = []
    for name in attentions():
        for options in [{}, *card(name).variants.values()]:
            with suppress(UnsupportedError):
                MultiHeadAttention(DIM, 2, name, length=LENGTH, context_length=LENGTH, order="compress_first", **options)
                found.append((name, dict(options)))
    return found


@pytest.mark.parametrize(("name", "options"), compressing())
def test_a_layer_that_compresses_first_attends_to_no_keys_as_one_that_projects_first(name, options):
    layer = MultiHeadAttention(DIM, 2, name, length=LENGTH, context_length=LENGTH, order="compress_first", **options)
    for batch, queries in ((2, LENGTH), (2, 0), (0, LENGTH)):
        asking, context = torch.randn(batch, queries, DIM), torch.randn(batch, 0, DIM, requires_grad=True)
        try:
            out = layer(asking, context)
        except UnsupportedError:  # built for another number of keys
            assert not (layer.mechanism.card.can.any_length or layer.mechanism.card.can.shorter)
            continue
        assert out.shape == asking.shape and torch.equal(out, layer.out(torch.zeros_like(asking)))
        assert torch.equal(layer(asking, remembered=layer.remember(context)), out)
        out.sum().backward()
        assert all(parameter.grad is None or not parameter.grad.any() for parameter in layer.mechanism.parameters())


@pytest.mark.parametrize("name", ["softmax", "linformer", "linformer_causal"])
@pytest.mark.parametrize("length", [0, -1, 2.5, "8192"])
def test_a_bad_length_leaves_a_layer_as_it_was(name, length):
    layer = build(name)
    before, geometry = copy.deepcopy(layer.state_dict()), layer.mechanism.geometry
    with pytest.raises(ValueError, match=r"^length must be an integer >= 1"):
        layer.resize_length(length)
    assert layer.mechanism.geometry == geometry
    assert all(torch.equal(value, before[key]) for key, value in layer.state_dict().items())


def test_averages_of_long_windows_stay_finite_in_half_precision():
    layer = MultiHeadAttention(16, 2, "linformer", length=4096, projected_length=2, projection="mean").half().eval()
    assert layer(torch.full((1, 4096, 16), 40.0, dtype=torch.float16)).isfinite().all()
    assert build("linformer", projected_length=5)(tokens()).dtype is torch.float64
    with torch.autocast("cpu", torch.bfloat16):
        assert build("linformer", projected_length=5)(tokens()).isfinite().all()


REMEMBERING = [name for name in attentions() if not card(name).can.shares_query_key]


def check_recall(layer: MultiHeadAttention, x: Tensor, valid: Tensor | None) -> None:
    """Check that remembered keys and values give the outputs and gradients of a plain call, also when used again."""
    remembered = layer.remember(x, key_valid=valid)
    outs = layer(x, remembered=remembered), layer(x, key_valid=valid)
    real = slice(None) if valid is None else valid
    torch.testing.assert_close(outs[0][real], outs[1][real], rtol=0, atol=1e-12)
    assert torch.equal(layer(x, remembered=remembered)[real], outs[0][real])
    trained = [p for name, p in layer.named_parameters() if ".index_" not in name]  # a scorer learns in training calls alone
    grads = [torch.autograd.grad(out[real].square().sum(), trained, retain_graph=True) for out in outs]
    for mine, theirs in zip(*grads, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-10 * max(1.0, theirs.abs().max().item()))


@pytest.mark.parametrize("name", of_each_kind(REMEMBERING))
@pytest.mark.parametrize("fused", [False, True])
def test_what_is_remembered_gives_what_a_call_gives(name, fused):
    check_recall(build(name, fused=fused), tokens(), None)
    if card(name).can.key_padding:
        check_recall(build(name, fused=fused), tokens(), padding())


@pytest.mark.parametrize("order", ["project_first", "compress_first"])
def test_compressed_keys_are_remembered_compressed(order):
    layer = build("linformer", projected_length=6, order=order)
    check_recall(layer, tokens(), padding())
    value = layer.remember(tokens()).value
    assert value is not None and value.shape[2] == (6 if order == "compress_first" else LENGTH)


def test_other_queries_meet_the_remembered_keys():
    layer, x, later = build("softmax"), tokens(), tokens(seed=2)
    query, _, _ = layer._project_all(later, x)
    _, key, value = layer._project_all(x, x)
    expected = layer.out(layer.mechanism(query, key, value, key_valid=padding()).transpose(1, 2).flatten(2))
    dirty = later.masked_fill(~padding()[..., None], float("nan"))
    got = layer(dirty, remembered=layer.remember(x.masked_fill(~padding()[..., None], float("nan")), key_valid=padding()))
    torch.testing.assert_close(got[padding()], expected[padding()], rtol=0, atol=1e-12)
    assert got.isfinite().all()
    clean = layer(later, remembered=layer.remember(x, key_valid=padding()))
    torch.testing.assert_close(clean, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", of_each_kind([n for n in REMEMBERING if card(n).can.cross and card(n).can.key_padding]))
def test_padded_keys_are_remembered_for_queries_of_any_number(name):
    """Queries are real where the context is padded, also if they are as many as its tokens."""
    layer, asking = build(name, output_gate="headwise"), tokens(seed=2)
    remembered = layer.remember(tokens(), key_valid=padding())
    whole = layer(asking, remembered=remembered)
    for length in (LENGTH - 1, 3):
        part = layer(asking[:, :length], remembered=remembered)
        torch.testing.assert_close(part, whole[:, :length], rtol=0, atol=1e-10)


def test_a_definition_is_never_compressed_first():
    layer = MultiHeadAttention(512, 8, "linformer", length=4096, implementation="definition", projected_length=64)
    assert layer.order is Order.project_first
    layer = MultiHeadAttention(512, 8, "linformer", length=4096, projected_length=64)
    orders = [layer.order]
    layer.mechanism.use("definition")
    assert [*orders, layer.order] == [Order.compress_first, Order.project_first]
    with pytest.raises(UnsupportedError, match=r"order must not be 'compress_first' with implementation='definition'"):
        build("linformer", projected_length=5, order="compress_first", implementation="definition")


@pytest.mark.parametrize("order", ["auto", "compress_first"])
def test_hooks_of_a_mechanism_and_a_replaced_forward_are_called_in_place_of_compressing_first(order):
    layer, seen = MultiHeadAttention(512, 8, "linformer", length=64, projected_length=4, order=order), list[Tensor]()
    x = torch.randn(2, 64, 512)
    expected, handle = layer(x), layer.mechanism.register_forward_hook(lambda module, given, out: seen.append(out))
    torch.testing.assert_close(layer(x), expected, rtol=1e-4, atol=1e-5)
    assert len(seen) == 1 and seen[0].shape == (2, 8, 64, 64)
    handle.remove()
    assert layer.order is Order.compress_first
    layer.mechanism.__dict__["forward"] = lambda query, key, value, **rest: torch.zeros_like(query)  # as accelerate replaces it
    torch.testing.assert_close(layer(x), layer.out(torch.zeros_like(x)))


def test_a_wrapped_mechanism_is_called():
    layer = MultiHeadAttention(512, 8, "linformer", length=64, projected_length=4)
    x = torch.randn(2, 64, 512)
    expected, orders = layer(x), [layer.order]
    layer.add_module("mechanism", checkpoint_wrapper(layer.mechanism))
    torch.testing.assert_close(layer(x), expected, rtol=1e-4, atol=1e-5)
    assert [*orders, layer.order] == [Order.compress_first, Order.project_first]


def test_a_context_is_remembered_for_queries_of_any_number():
    layer, x, context = build("softmax", context_length=7, context_dim=8), tokens(), tokens(length=7, dim=8)
    remembered = layer.remember(context)
    for start, end in ((0, LENGTH), (3, 4)):
        torch.testing.assert_close(
            layer(x[:, start:end], remembered=remembered), layer(x, context)[:, start:end], rtol=0, atol=1e-12
        )


def test_what_cannot_be_remembered_or_recalled_is_refused():
    with pytest.raises(UnsupportedError, match="reformer computes queries and keys by one projection"):
        build("reformer").remember(tokens())
    layer = build("softmax")
    with pytest.raises(ValueError, match="context and key_valid must not be given with remembered"):
        layer(tokens(), key_valid=padding(), remembered=layer.remember(tokens()))
    with pytest.raises(ValueError, match="the same batch size; got 2"):
        layer(tokens(), remembered=layer.remember(tokens(2)))
    with pytest.raises(ValueError, match="the context must have shape"):
        layer.remember(tokens(dim=9))
    with pytest.raises(UnsupportedError, match="must get as many queries as keys; got 40 and 30"):
        build("longformer")(tokens(), remembered=build("longformer").remember(tokens(length=30)))
