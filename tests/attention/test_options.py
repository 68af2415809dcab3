"""Options that no mechanism can be built with are refused, and settings that defeat its purpose are warned of."""

from __future__ import annotations

from typing import Any

import pytest

from attn_zoo import Geometry, attentions, build_attention, card
from attn_zoo.contract import UnsupportedError
from attn_zoo.registry import attention_options

GEOMETRY = Geometry(2, 8, 33, 33)

REFUSED: dict[str, list[tuple[dict[str, Any], str]]] = {
    "bigbird": [
        ({"block": 0}, "at least 1; got 0"),
        ({"window_blocks": 2}, "must be odd and at least 1, .*; got 2"),
        ({"global_blocks": 3}, "must be even and at least 0, .*; got 3"),
        ({"global_blocks": -2}, "must be even and at least 0, .*; got -2"),
        ({"random_blocks": -1}, "at least 0, .*; got -1"),
    ],
    "block_sparse": [
        ({"block": 0}, "at least 1; got 0"),
        ({"local_blocks": -1}, "local_blocks must be at least 0, because it counts blocks; got -1"),
        ({"global_blocks": -1}, "global_blocks"),
        ({"random_blocks": -1}, "random_blocks"),
        ({"seed": -1}, "from 0 to 2147483647; got -1"),
    ],
    "clustered": [
        ({"clusters": 0}, "clusters must be at least 1"),
        ({"bits": 0}, "bits must be at least 1"),
        ({"iterations": -1}, "steps of k-means"),
    ],
    "convolution": [
        ({"kernel": 0}, "convolution.kernel must be odd and at least 1, .*; got 0. Write 1"),
        ({"kernel": 4}, "convolution.kernel must be odd and at least 1, .*; got 4. Write 5"),
    ],
    "entmax": [({"alpha": alpha}, r"entmax\.alpha must be 1 \(softmax\) or from 1\.01 to 2") for alpha in (0.5, 1.001, 2.5)],
    "external": [({"units": 1}, "at least 2, .*; got 1. A single unit")],
    "fixed": [
        ({"stride": -1}, r"0 \(the square root of the length\); got -1"),
        ({"stride": 4, "summary": 5}, "from 0 to stride=4, .*; got 5"),
        ({"summary": -1}, "an integer of at least 0, .*; got -1"),
    ],
    "gated_linear": [({"temperature": -1}, r"above 0, .*; got -1")],
    "kernelized_linformer": [
        ({"features": 0}, "at least 1; got 0"),
        ({"feature_map": "relu"}, "relu"),
        ({"projected_length": 0}, "at least 1"),
    ],
    "linear": [({"feature_map": "cosine"}, "cosine")],
    "linformer": [
        ({"projected_length": 33}, "projected_length must be less than the 33 keys, .*; got 33"),
        ({"projected_lengths": "6+40", "sharing": "none"}, "projected_length must be less than the 33 keys, .*; got 40"),
        ({"projected_lengths": "6+4"}, "sharing must be none, .*; got sharing=headwise"),
        ({"projected_lengths": "6+4+2", "sharing": "none"}, "one length for each of the 2 heads of the layer, .*; got 3"),
        ({"projected_lengths": "6/4", "sharing": "layerwise"}, "sharing must not be layerwise"),
        ({"projected_lengths": "6,4"}, "integers >= 1"),
        ({"projected_lengths": "6//4"}, "integers >= 1"),
        ({"projected_length": 0}, "at least 1; got 0"),
        ({"sharing": "per_head"}, "per_head"),
        ({"projection": "pooling"}, "pooling"),
        ({"init": "average", "projection": "mean"}, "init must be random unless .*; got init=average with projection=mean"),
        ({"init": "means"}, "init must be 'random', 'average' or 'pooling'; got 'means'"),
        ({"equalised": True, "projection": "mean"}, "equalised must be false unless projection=learned; got equalised=true with"),
    ],
    "linformer_causal": [
        ({"projected_length": 0}, "got 0"),
        ({"block_scale": 0.0}, "got 0"),
        ({"block_scale": float("inf")}, "got"),
    ],
    "linformer_lsh": [
        ({"window": 4}, "got 4. Write 5 to see 2 positions on either side"),
        ({"buckets": 3}, "power of two up to 16777216, or 0"),
        ({"projected_length": 0}, "at least 1"),
    ],
    "linformer_window": [
        ({"window": 4}, "got 4. Write 5 to see 2 positions on either side"),
        ({"projected_length": 0}, "at least 1"),
    ],
    "local": [({"block": 0}, "at least 1; got 0"), ({"neighbours": -1}, "at least 0, .*; got -1")],
    "long_short": [
        ({"window": 4}, "odd and at least 1, .*; got 4. Write 5 to see 2 positions on either side"),
        ({"rank": 0}, "attention=longformer"),
    ],
    "longformer": [
        ({"window": 4}, "odd and at least 1, .*; got 4. Write 5 to see 2 positions on either side"),
        ({"window": 0}, "odd and at least 1"),
        ({"window": -3}, "odd and at least 1"),
        ({"dilation": 0}, "at least 1"),
        ({"global_tokens": -1}, "at least 0"),
    ],
    "luna": [({"packed_length": 1}, "at least 2, .*; got 1. A single one")],
    "mega": [({"chunk": 0}, r"mega\.chunk .* at least 1; got 0"), ({"expansion": 0}, r"mega\.expansion .*got 0")],
    "nystrom": [
        ({"landmarks": 0}, "landmarks must be at least 1"),
        ({"iterations": 0}, "iterations must be at least 1"),
        ({"convolution": 4}, r"must be odd, .* or 0 \(no convolution\); got 4. Use 33"),
        ({"convolution": -1}, r"must be odd, .* or 0 \(no convolution\)"),
    ],
    "performer": [
        ({"features": 0}, "at least 1"),
        ({"redraw": -1}, r"at least 1 \(a number of training calls\) or 0 \(never\)"),
        ({"kernel": "cosine"}, "cosine"),
    ],
    "pooling": [
        ({"window": window}, f"odd and at least 3, .*; got {window}. Write {to}") for window, to in ((1, 3), (4, 5), (-2, 3))
    ],
    "reformer": [
        ({"chunk": 0}, "at least 1"),
        ({"rounds": 0}, "at least 1"),
        ({"buckets": 6}, "power of two"),
        ({"redraw": -1}, r"at least 1 \(a number of training calls\) or 0 \(never\)"),
    ],
    "routing": [({"cluster_scale": 0.0}, "multiplies √n"), ({"decay": 1.1}, "share of a centroid")],
    "sinkhorn": [
        ({"block_scale": 0.0}, "multiplies √n"),
        ({"balancing": 0}, "balancing must be at least 1, because it counts normalisations"),
        ({"temperature": 0.0}, "temperature must be above 0, because it divides scores"),
    ],
    "sparse_linformer": [
        ({"alpha": 0.9}, r"sparse_linformer\.alpha must be 1 \(softmax\) or from 1\.01 to 2"),
        ({"projected_length": 0}, "at least 1"),
    ],
    "strided": [({"stride": -1}, r"0 \(the square root of the length\); got -1")],
    "synthesizer_dense": [
        ({"factor": -1}, r"synthesizer_dense\.factor must be at least 0, because it counts numbers; got -1"),
    ],
    "synthesizer_factorised": [({"rank": 0}, r"rank must be at least 1, because it counts numbers; got 0")],
    "topk": [({"kept": kept}, r"topk\.kept must be at least 1, because it counts keys") for kept in (0, -1)],
    "transformer_xl": [({"segment": 0}, "at least 1; got 0"), ({"memory": -1}, "at least 0, .*; got -1")],
}
"""Options, of layers of 33 positions and two heads, with a part of the message that refuses them."""

DOUBTFUL: list[tuple[str, int, dict[str, Any], list[str]]] = [
    ("bigbird", 24, {"block": 4}, [""]),
    ("bigbird", 25, {"block": 4}, []),
    ("block_sparse", 8, {"block": 8}, [""]),
    ("block_sparse", 9, {"block": 8}, []),
    ("clustered", 9, {"clusters": 9}, ["clusters=9"]),
    ("clustered", 9, {"clusters": 8}, []),
    ("cosformer", 16, {}, ["there are 16 features, at least as many as keys (16)"]),
    ("cosformer", 17, {}, []),
    ("delta_rule", 8, {}, ["at least as many as the number of keys (8)"]),
    ("delta_rule", 9, {}, []),
    ("external", 16, {"units": 16}, ["units=16 is at least the number of tokens (16)"]),
    ("external", 17, {"units": 16}, []),
    ("gated_linear", 8, {}, ["at least as many as the number of keys (8)"]),
    ("gated_linear", 9, {}, []),
    ("linear", 8, {}, ["there are 8 features, at least as many as keys (8)"]),
    ("linear", 9, {}, []),
    ("linformer_lsh", 9, {"window": 9, "projected_length": 2}, ["window=9"]),
    ("linformer_lsh", 9, {"window": 7, "projected_length": 2, "buckets": 1}, ["not the hash"]),
    ("linformer_lsh", 9, {"window": 7, "projected_length": 2, "buckets": 4}, []),
    ("linformer_window", 9, {"window": 9, "projected_length": 2}, ["window=9"]),
    ("linformer_window", 9, {"window": 7, "projected_length": 2}, []),
    ("local", 20, {"block": 20}, ["at least the number of tokens (20)"]),
    ("local", 21, {"block": 20}, []),
    ("long_short", 9, {"window": 9, "rank": 9}, ["", ""]),
    ("long_short", 9, {"window": 7, "rank": 8}, []),
    ("luna", 8, {"packed_length": 8}, ["packed_length=8 is at least the number of keys (8)"]),
    ("luna", 9, {"packed_length": 8}, []),
    ("mega", 24, {"chunk": 24}, ["chunk=24 is at least the number of tokens (24)"]),
    ("mega", 25, {"chunk": 24}, []),
    ("nystrom", 9, {"landmarks": 9}, ["landmarks=9"]),
    ("nystrom", 9, {"landmarks": 8}, []),
    ("pooling", 9, {"window": 9}, ["window=9 is at least the number of tokens (9)"]),
    ("pooling", 10, {"window": 9}, []),
    ("routing", 16, {"cluster_scale": 4}, ["a single key"]),
    ("routing", 16, {"cluster_scale": 0.25}, ["sees all"]),
    ("routing", 16, {}, []),
    ("sinkhorn", 16, {"block_scale": 4}, ["nothing is sorted"]),
    ("sinkhorn", 16, {}, []),
    ("topk", 9, {"kept": 9}, ["no key is left out"]),
    ("topk", 9, {"kept": 1}, ["no gradient"]),
    ("topk", 9, {"kept": 8}, []),
    ("transformer_xl", 64, {"segment": 32, "memory": 32}, ["reach all 64 tokens"]),
    ("transformer_xl", 65, {"segment": 32, "memory": 32}, []),
]
"""Names, lengths, options, and a part of each warning that they give."""


@pytest.mark.parametrize(("name", "options", "message"), [(name, *case) for name, cases in REFUSED.items() for case in cases])
def test_bad_options_are_refused(name, options, message):
    with pytest.raises((ValueError, UnsupportedError), match=message):
        build_attention(name, GEOMETRY, **options)


@pytest.mark.parametrize("name", [name for name in attentions() if hasattr(attention_options(card(name), GEOMETRY, {}), "dropout")])
def test_dropout_is_a_share_below_one(name):
    for dropout in (1.0, -0.1):
        with pytest.raises(ValueError, match=rf"{name}\.dropout must be at least 0 and less than 1"):
            build_attention(name, GEOMETRY, dropout=dropout)


@pytest.mark.parametrize(("name", "length", "options", "words"), DOUBTFUL)
def test_settings_that_defeat_the_purpose_are_warned_of(name, length, options, words):
    own, geometry = card(name), Geometry(2, 8, length, length)
    found = own.build.warnings(geometry, attention_options(own, geometry, options))
    assert len(found) >= len(words) and bool(found) == bool(words)
    for part, text in zip(words, found, strict=False):
        assert part in text
