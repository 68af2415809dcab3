"""Mechanisms that choose or compress keys, with and without padding, against references in float64: outputs and gradients.

The authors' plain form of MoBA is in no package, so its reference is written out here, one query at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from public_references import in_float64, require_close
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


def deepseek_v4() -> Any:
    classes = [f"DeepseekV4{name}" for name in ("HCACompressor", "CSACompressor", "Indexer", "IndexerScorer")]
    return in_float64("transformers", "models/deepseek_v4/modeling_deepseek_v4.py", classes)


def compressor(m: int, width: int, **parts: Any) -> SimpleNamespace:
    """Attributes that the classes of DeepSeek-V4 read, without a norm and with angles of zero."""

    def still(x: Tensor, position_ids: Tensor, layer_type: str) -> tuple[Tensor, Tensor]:
        angles = torch.zeros(*position_ids.shape, width // 2, dtype=torch.float64)
        return angles.cos(), angles.sin()

    common = {"kv_norm": nn.Identity(), "rotary_emb": still, "rope_layer_type": "compress"}
    return SimpleNamespace(compress_rate=m, head_dim=width, **common, **parts)


def hca_of_head(mechanism: Any, head: int, query: Tensor, key: Tensor) -> tuple[Any, Any]:
    """DeepSeek-V4's heavy compressor for the keys and values of a head, beside each other."""
    parts = {
        "kv_proj": nn.Identity(),
        "gate_proj": lambda x: (x[..., :D] @ mechanism.gate[head]).repeat(1, 1, 2),
        "position_bias": mechanism.position_bias[head].repeat(1, 2),
    }
    return deepseek_v4().DeepseekV4HCACompressor, compressor(mechanism.options.compress_rate, 2 * D, **parts)


def csa_of_head(mechanism: Any, head: int, query: Tensor, key: Tensor) -> tuple[Any, Any]:
    """DeepSeek-V4's sparse compressor, whose indexer reads all heads; series a comes before series b."""
    module, m, width = deepseek_v4(), mechanism.options.compress_rate, mechanism.options.index_width
    rows, columns = (x.transpose(1, 2).flatten(2).detach() for x in (query, key))
    heads = mechanism.options.index_heads
    scorer = SimpleNamespace(
        softmax_scale=width**-0.5, weights_scaling=heads**-0.5, weights_proj=lambda _: rows @ mechanism.index_weight.T
    )
    indexer = compressor(
        m,
        width,
        num_heads=heads,
        index_topk=mechanism.options.kept,
        kv_proj=lambda _: torch.cat([columns @ mechanism.index_key[at].T for at in (1, 0)], dim=-1),
        gate_proj=lambda _: torch.cat([columns @ mechanism.index_gate[at].T for at in (1, 0)], dim=-1),
        position_bias=torch.cat(mechanism.index_bias.split(m), dim=-1),
        q_b_proj=lambda _: rows @ mechanism.index_query.T,
        scorer=lambda *given: module.DeepseekV4IndexerScorer.forward(scorer, *given),
    )
    maps = mechanism.before[:, head]

    def series(x: Tensor) -> Tensor:
        key, value = x.split(D, dim=-1)
        return torch.cat([key @ maps[0], value @ maps[1], key, value], dim=-1)

    parts = {
        "kv_proj": series,
        "gate_proj": lambda x: torch.cat([x[..., :D] @ w for w in (maps[2], maps[2], *[mechanism.gate[head]] * 2)], dim=-1),
        "position_bias": torch.cat([part.repeat(1, 2) for part in mechanism.position_bias[head].split(m)], dim=-1),
        "indexer": lambda *given: module.DeepseekV4Indexer.forward(indexer, *given),
    }
    return module.DeepseekV4CSACompressor, compressor(m, 2 * D, **parts)


def transformers_deepseek_v4(of_head: Callable[..., tuple[Any, Any]]) -> Reference:
    """DeepSeek-V4's compressor and attention, one of our heads at a time."""
    return partial(attend_as_deepseek_v4, of_head)


def attend_as_deepseek_v4(
    of_head: Callable[..., tuple[Any, Any]], mechanism: Any, query: Tensor, key: Tensor, value: Tensor, key_valid: Tensor | None
) -> Tensor:
    module = deepseek_v4()
    n, options = query.shape[2], mechanism.options
    place, outputs = torch.arange(n), []
    distance = place[:, None] - place
    window = torch.zeros(n, n, dtype=torch.float64).masked_fill((distance < 0) | (distance >= options.window), -torch.inf)
    for head in range(HEADS):
        tokens = torch.cat([key[:, head], value[:, head]], dim=-1)
        kind, attributes = of_head(mechanism, head, query, key)
        compressed, bias = kind.forward(attributes, tokens, tokens, place.expand(2, -1), None, 0)
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


CSA = {"compress_rate": 4, "window": 9, "sinks": True, "kept": 5, "index_heads": 12, "index_width": 6}
INDEX = {"kept": 9, "index_heads": 12, "index_width": 5}
CASES: dict[str, tuple[str, bool, dict[str, Any], Reference]] = {
    "moba": ("moba", True, {"block": 8}, one_by_one(moba)),
    "moba with five blocks": ("moba", True, {"block": 6, "chosen": 5}, one_by_one(moba)),
    "moba, bidirectional": ("moba", False, {"block": 8}, one_by_one(moba)),
    "hca": ("length_compression", True, {"compress_rate": 6, "window": 9}, one_by_one(hca)),
    "hca, bidirectional": ("length_compression", False, {"compress_rate": 6, "window": 9}, one_by_one(hca)),
    "hca, transformers": (
        "length_compression",
        True,
        {"compress_rate": 6, "window": 9, "sinks": True},
        transformers_deepseek_v4(hca_of_head),
    ),
    "csa, transformers": ("sparse_compression", True, CSA, transformers_deepseek_v4(csa_of_head)),
    "indexer": ("indexer", True, INDEX, dsa),
    "indexer, bidirectional": ("indexer", False, INDEX, dsa),
    "indexer, fla": ("indexer", True, INDEX, fla_dsa),
}
PUBLIC = ("hca, transformers", "csa, transformers", "indexer, fla")
"""Cases whose reference is a package, which takes no padding."""
SETTINGS = [
    pytest.param(case, n, padded, marks=pytest.mark.exhaustive if case not in PUBLIC and padded == (n == min(LENGTHS)) else ())
    for case in CASES
    for n in LENGTHS
    for padded in (False, True)
    if not (padded and case in PUBLIC)
]
"""Padding of both kinds and lengths of both kinds are compared once before the exhaustive tier: references take seconds."""


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
