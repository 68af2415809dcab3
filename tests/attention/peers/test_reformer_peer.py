"""Reformer against reformer-pytorch and transformers (extra ``peers``) in settings where all three agree, on the same hashes.

The peers let a chunk attend to the previous bucket in sorted order, which ours never does. Buckets here therefore hold whole
chunks and reformer-pytorch is kept within them, or there is one bucket for all positions.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from attn_zoo import Geometry, build_attention
from attn_zoo.attention.content import reformer
from attn_zoo.attention.content._hashing import lsh_buckets

BATCH, HEADS, D, CHUNK = 2, 2, 8, 4


def draw(n: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(BATCH, HEADS, n, D, dtype=torch.float64, generator=generator).requires_grad_() for _ in range(2)]


def codes(n: int, buckets: int, rounds: int) -> Tensor:
    """Return random buckets, (rounds, batch, heads, n); in each round all buckets get equally many positions."""
    generator = torch.Generator().manual_seed(2)
    order = torch.rand(rounds, BATCH, HEADS, n, generator=generator).argsort(dim=-1)
    return order % buckets


def assert_equal(out: Tensor, expected: Tensor, mine: list[Tensor], other: list[Tensor], atol: float) -> None:
    torch.testing.assert_close(out, expected, rtol=0, atol=atol)
    weights = torch.randn(out.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    (out * weights).sum().backward()
    (expected * weights).sum().backward()
    for own, their in zip(mine, other, strict=True):
        torch.testing.assert_close(own.grad, their.grad, rtol=0, atol=10 * atol)


@pytest.mark.parametrize(("causal", "chunks"), [(True, 2), (True, 3), (False, 1)])
@pytest.mark.parametrize("duplicates", ["corrected", "counted"])
def test_equals_reformer_pytorch_on_the_same_hashes(monkeypatch, causal, chunks, duplicates):
    """Without causality, buckets hold one chunk: of several, the first looks back at the last in ours and at none in the peer."""
    peer: Any = pytest.importorskip("reformer_pytorch", reason="reformer-pytorch is not installed (extra: peers)")
    buckets, rounds = 4, 3
    n = buckets * chunks * CHUNK
    hashed = codes(n, buckets, rounds)
    theirs = peer.LSHAttention(
        bucket_size=CHUNK,
        n_hashes=rounds,
        causal=causal,
        attend_across_buckets=False,
        allow_duplicate_attention=duplicates == "counted",
    )
    # The peer takes one row for each head of each example, rounds in sequence, with bucket numbers unique to a round.
    numbered = hashed + n // CHUNK * torch.arange(rounds)[:, None, None, None]
    monkeypatch.setattr(theirs, "hash_vectors", lambda *_, **__: numbered.permute(1, 2, 0, 3).reshape(BATCH * HEADS, -1))
    monkeypatch.setattr(reformer, "lsh_buckets", lambda *_, **__: hashed)
    options = {"chunk": CHUNK, "buckets": buckets, "rounds": rounds, "duplicates": duplicates}
    ours = build_attention("reformer", Geometry(HEADS, D, n, n, causal), **options)
    mine, other = draw(n), draw(n)
    expected = theirs(*(x.flatten(0, 1) for x in other))[0].unflatten(0, (BATCH, HEADS))
    assert_equal(ours(mine[0], None, mine[1]), expected, mine, other, 1e-7)  # the peer adds 1e-9 to counts


def of_transformers(**config: Any) -> Any:
    name = "transformers.models.reformer.modeling_reformer"
    module = pytest.importorskip(name, reason="transformers is not installed (extra: peers)")
    sizes = {"hidden_size": HEADS * D, "num_attention_heads": HEADS, "attention_head_size": D}
    config = {"lsh_attn_chunk_length": CHUNK, "lsh_attention_probs_dropout_prob": 0.0, **sizes, **config}
    return module.LSHSelfAttention(module.ReformerConfig(**config)).double()


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("rounds", [1, 3])
def test_equals_transformers_with_one_bucket_for_all(causal, rounds):
    """Scores of transformers are q·k with k of unit length; ours, like the paper's, are divided by √d."""
    n = 5 * CHUNK
    theirs = of_transformers(num_hashes=rounds, num_buckets=2, is_decoder=causal)
    ours = build_attention(
        "reformer", Geometry(HEADS, D, n, n, causal), chunk=CHUNK, buckets=1, rounds=rounds, duplicates="counted"
    )
    generator, shape = torch.Generator(), (BATCH, n, HEADS * D)
    mine, other = (torch.randn(shape, dtype=torch.float64, generator=generator.manual_seed(1)).requires_grad_() for _ in range(2))
    query, value = (layer(mine).unflatten(-1, (HEADS, D)).transpose(1, 2) for layer in (theirs.query_key, theirs.value))
    out = ours(query * D**0.5, None, value).transpose(1, 2).flatten(2)
    buckets = torch.arange(rounds).repeat_interleave(n).expand(BATCH, HEADS, -1)
    expected = theirs(other, buckets=buckets).hidden_states
    assert_equal(out, expected, [mine], [other], 1e-5)  # transformers adds 1e-6 to the mean square of a key


@pytest.mark.parametrize("buckets", [4, 16])
def test_hashes_equal_those_of_transformers_with_its_rotations(buckets):
    n, rounds = 50, 3
    theirs = of_transformers(num_hashes=rounds, num_buckets=buckets, hash_seed=5)
    vectors = torch.randn(BATCH, HEADS, n, D, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    expected = theirs._hash_vectors(vectors, rounds, None).unflatten(-1, (rounds, n)) - buckets * torch.arange(rounds)[:, None]
    torch.manual_seed(5)
    rotations = torch.randn(HEADS, D, rounds, buckets // 2, dtype=torch.float64).transpose(1, 2)
    assert (lsh_buckets(vectors, rotations, buckets) == expected.permute(2, 0, 1, 3)).all()


@torch.no_grad()
def test_a_later_token_moves_the_peers_past_and_not_ours():
    """Causal attention as in the paper sorts all positions into chunks, later ones included."""
    peer: Any = pytest.importorskip("reformer_pytorch", reason="reformer-pytorch is not installed (extra: peers)")
    n, theirs = 64, peer.LSHAttention(bucket_size=CHUNK, n_hashes=2, causal=True)
    ours = build_attention("reformer", Geometry(HEADS, D, n, n, True), chunk=CHUNK, rounds=2)
    query, value = draw(n)
    changed = query.detach().clone()
    changed[:, :, -8:] = -changed[:, :, -8:]

    def answered(tokens: Tensor) -> Tensor:
        torch.manual_seed(0)
        out: Tensor = theirs(tokens.flatten(0, 1), value.flatten(0, 1))[0]
        return out[:, : n - 8]

    assert (answered(query) - answered(changed)).abs().max() > 0.01
    before, after = (ours(tokens, None, value)[:, :, : n - 8] for tokens in (query, changed))
    torch.testing.assert_close(after, before, rtol=0, atol=1e-12)
