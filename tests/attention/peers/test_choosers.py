"""Mechanisms that choose or compress keys, with and without padding, against references in float64: outputs and gradients.

The authors' plain form of MoBA is in no package, so its reference is written out here, one query at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from public_references import in_float64
from torch import Tensor, nn

from attn_zoo import Geometry, build_attention

HEADS, D = 3, 16
LENGTHS = [37, 130]
"""Lengths that no block divides."""

Reference = Callable[..., Tensor]
"""(mechanism, query, key, value, mask of the real tokens or None) → outputs, with all tensors (batch, heads, length, width)."""


def one_by_one(attend: Callable[..., Tensor]) -> Reference:
    """Apply ``attend(mechanism, query, keys, values, positions of the real tokens, t, head)`` to each query of each example."""

    def reference(mechanism: Any, query: Tensor, key: Tensor, value: Tensor, key_valid: Tensor | None) -> Tensor:
        def row(b: int, h: int, t: int) -> Tensor:
            real = list(range(key.shape[2])) if key_valid is None else key_valid[b].nonzero().flatten().tolist()
            return attend(mechanism, query[b, h, t], key[b, h], value[b, h], real, t, h)

        rows = [[torch.stack([row(b, h, t) for t in range(query.shape[2])]) for h in range(HEADS)] for b in range(len(query))]
        return torch.stack([torch.stack(heads) for heads in rows])

    return reference


def softmax_of(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return (key @ query / D**0.5).softmax(dim=0) @ value if len(key) else torch.zeros_like(query)


def moba(mechanism: Any, query: Tensor, key: Tensor, value: Tensor, real: list[int], t: int, head: int) -> Tensor:
    """Attend to the past of the own block and to the k − 1 earlier blocks whose mean key has the highest product with q."""
    size, causal = mechanism.options.block, mechanism.geometry.causal
    blocks = [[j for j in real if j // size == block] for block in range((len(key) - 1) // size + 1)]
    own = t // size
    others = [z for z, tokens in enumerate(blocks) if tokens and (z < own if causal else z != own)]
    others.sort(key=lambda z: -(query @ key[blocks[z]].mean(dim=0)).item())
    seen = [j for z in (own, *others[: mechanism.options.chosen - 1]) for j in blocks[z] if j <= t or not causal]
    return softmax_of(query, key[seen], value[seen])


def hca(mechanism: Any, query: Tensor, key: Tensor, value: Tensor, real: list[int], t: int, head: int) -> Tensor:
    """Attend to the window and to every visible entry, whose tokens are weighted channel by channel."""
    m, causal, window = mechanism.options.compress_rate, mechanism.geometry.causal, mechanism.options.window
    logits = key @ mechanism.gate[head]
    keys, values = [], []
    for start in range(0, len(key), m):
        tokens = [j for j in real if start <= j < start + m]
        if tokens and (start + m <= t + 1 or not causal):
            bias = mechanism.position_bias[head, [j - start for j in tokens]]
            weights = (logits[tokens] + bias).softmax(dim=0)
            keys.append((weights * key[tokens]).sum(dim=0, keepdim=True))
            values.append((weights * value[tokens]).sum(dim=0, keepdim=True))
    near = [j for j in real if (0 <= t - j < window if causal else abs(t - j) <= window // 2)]
    return softmax_of(query, torch.cat([key[near], *keys]), torch.cat([value[near], *values]))


def transformers_hca(mechanism: Any, query: Tensor, key: Tensor, value: Tensor, key_valid: Tensor | None) -> Tensor:
    """DeepSeek-V4's compressor and attention, one of our heads at a time, without its norm and with angles of zero."""
    module = in_float64("transformers", "models/deepseek_v4/modeling_deepseek_v4.py", ["DeepseekV4HCACompressor"])
    n, options = query.shape[2], mechanism.options
    place, outputs = torch.arange(n), []
    distance = place[:, None] - place
    window = torch.zeros(n, n, dtype=torch.float64).masked_fill((distance < 0) | (distance >= options.window), -torch.inf)
    for head in range(HEADS):
        compressor = SimpleNamespace(
            compress_rate=options.compress_rate,
            head_dim=2 * D,
            kv_proj=nn.Identity(),
            gate_proj=lambda x, head=head: (x[..., :D] @ mechanism.gate[head]).repeat(1, 1, 2),
            position_bias=mechanism.position_bias[head].repeat(1, 2),
            kv_norm=nn.Identity(),
            rotary_emb=lambda x, position_ids, layer_type: (torch.ones(*x.shape[:-1], D), torch.zeros(*x.shape[:-1], D)),
            rope_layer_type="compress",
        )
        tokens = torch.cat([key[:, head], value[:, head]], dim=-1)
        compressed, bias = module.DeepseekV4HCACompressor.forward(compressor, tokens, None, place.expand(2, -1), None, 0)
        keys, values = torch.cat([tokens[:, None], compressed], dim=2).split(D, dim=-1)
        attention = SimpleNamespace(num_key_value_groups=1, sinks=mechanism.sinks[head], training=False)
        mask = torch.cat([window.expand(2, 1, -1, -1), bias], dim=-1)
        out, _ = module.eager_attention_forward(attention, query[:, head, None], keys, values, mask, scaling=D**-0.5)
        outputs.append(out.transpose(1, 2))
    return torch.cat(outputs, dim=1)


def index_parts(mechanism: Any, query: Tensor, key: Tensor) -> list[Tensor]:
    """Index queries (batch, length, index heads, width), index keys (batch, length, width) and weights (…, index heads)."""
    rows, columns = (x.transpose(1, 2).flatten(2) for x in (query, key))
    queries = (rows @ mechanism.index_query.T).unflatten(2, (mechanism.options.index_heads, -1))
    return [queries, columns @ mechanism.index_key.T, rows @ mechanism.index_weight.T]


def dsa(mechanism: Any, query: Tensor, key: Tensor, value: Tensor, key_valid: Tensor | None) -> Tensor:
    """Attend from each query to the k visible keys of the highest index score, the same for all heads."""
    queries, keys, weights = (part.detach() for part in index_parts(mechanism, query, key))
    out = torch.zeros_like(query)
    for b in range(len(query)):
        real = list(range(key.shape[2])) if key_valid is None else key_valid[b].nonzero().flatten().tolist()
        for t in range(query.shape[2]):
            scores = weights[b, t] @ (queries[b, t] @ keys[b].T).relu()
            seen = [j for j in real if j <= t or not mechanism.geometry.causal]
            seen = sorted(seen, key=lambda j: -scores[j].item())[: mechanism.options.kept]
            rows = [softmax_of(query[b, h, t], key[b, h, seen], value[b, h, seen]) for h in range(HEADS)]
            out = out.index_put((torch.tensor(b), torch.arange(HEADS), torch.tensor(t)), torch.stack(rows))
    return out


def fla_dsa(mechanism: Any, query: Tensor, key: Tensor, value: Tensor, key_valid: Tensor | None) -> Tensor:
    naive = in_float64("fla", "ops/dsa/naive.py").naive_dsa
    tokens_first = (x.transpose(1, 2) for x in (query, key, value))
    parts = (part.detach() for part in index_parts(mechanism, query, key))
    out: Tensor = naive(*tokens_first, *parts, topk=mechanism.options.kept)
    return out.transpose(1, 2)


INDEX = {"kept": 9, "index_heads": 12, "index_width": 5}
CASES: dict[str, tuple[str, bool, dict[str, Any], Reference]] = {
    "moba": ("moba", True, {"block": 8}, one_by_one(moba)),
    "moba with five blocks": ("moba", True, {"block": 6, "chosen": 5}, one_by_one(moba)),
    "moba, bidirectional": ("moba", False, {"block": 8}, one_by_one(moba)),
    "hca": ("length_compression", True, {"compress_rate": 6, "window": 9}, one_by_one(hca)),
    "hca, bidirectional": ("length_compression", False, {"compress_rate": 6, "window": 9}, one_by_one(hca)),
    "hca, transformers": ("length_compression", True, {"compress_rate": 6, "window": 9, "sinks": True}, transformers_hca),
    "indexer": ("indexer", True, INDEX, dsa),
    "indexer, bidirectional": ("indexer", False, INDEX, dsa),
    "indexer, fla": ("indexer", True, INDEX, fla_dsa),
}
PUBLIC = ("hca, transformers", "indexer, fla")
"""Cases whose reference is a package, which takes no padding."""
SETTINGS = [(case, n, padded) for case in CASES for n in LENGTHS for padded in (False, True) if not (padded and case in PUBLIC)]


def padding(n: int) -> Tensor:
    """Padding inside of the first example, a whole block of it included, and at the end of the second."""
    valid = torch.ones(2, n, dtype=torch.bool)
    valid[0, 2:5] = valid[0, 8:18] = valid[1, 3 * n // 4 :] = False
    return valid


@pytest.mark.parametrize(("case", "n", "padded"), SETTINGS)
def test_equals_the_reference(case, n, padded):
    name, causal, options, reference = CASES[case]
    mechanism = build_attention(name, Geometry(HEADS, D, n, n, causal=causal), implementation="eager", **options).double()
    valid = padding(n) if padded else None
    generator = torch.Generator().manual_seed(1)
    tensors = [torch.randn(2, HEADS, n, D, dtype=torch.float64, generator=generator).requires_grad_() for _ in range(3)]
    with torch.no_grad():
        for parameter in mechanism.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) / parameter.shape[-1] ** 0.5)
    ours, theirs = mechanism(*tensors, key_valid=valid), reference(mechanism, *tensors, valid)
    require_close("outputs", ours, theirs)
    weights = torch.randn(ours.shape, dtype=torch.float64, generator=generator)
    named = {name: parameter for name, parameter in mechanism.named_parameters() if not name.startswith("index_")}
    grads = [torch.autograd.grad((out * weights).sum(), [*tensors, *named.values()]) for out in (ours, theirs)]
    for what, one, other in zip([*"qkv", *named], *grads, strict=True):
        require_close(f"gradient of {what}", one, other)


def require_close(what: str, ours: Tensor, theirs: Tensor) -> None:
    difference = (ours - theirs).abs().max().item() / max(1e-30, theirs.abs().max().item())
    print(f"{what}: {difference:.1e}")
    assert theirs.abs().max() > 0 and difference < 1e-9, f"{what}: the largest relative difference is {difference:.1e}"
