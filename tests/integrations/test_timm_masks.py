"""timm's masks: padding is read in all its shapes, and other masks are refused."""

from __future__ import annotations

from typing import Any

import pytest
import timm
import torch
from tiers import of_each_kind
from timm.layers.attention import Attention
from torch import Tensor

from attn_zoo import UnsupportedError, attentions, card
from attn_zoo.integrations.timm import attention_layer, replace_attention
from attn_zoo.integrations.timm.masks import key_valid_of

VALID = torch.arange(6) < torch.tensor([6, 4, 1])[:, None]
BOTH = VALID[:, None, :, None] & VALID[:, None, None, :]
CAUSAL = torch.ones(6, 6, dtype=torch.bool).tril()


def added(seen: Tensor, least: float = float("-inf"), dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.zeros(seen.shape, dtype=dtype).masked_fill_(~seen, least)


def valid_of(mask: Tensor, causal: bool = False, batch: int = 3) -> Tensor:
    return key_valid_of("linformer", mask, batch=batch, length=6, causal=causal)


@pytest.mark.parametrize(
    "mask",
    [
        VALID,
        VALID[:, None, None],
        VALID[:, None, None].expand(3, 1, 6, 6),
        VALID[:, None, None].expand(3, 4, 1, 6),
        BOTH,
        added(VALID),
        added(BOTH, torch.finfo(torch.float32).min),
        added(BOTH, torch.finfo(torch.float16).min, torch.float16),
    ],
)
def test_padding_is_read_in_every_shape(mask):
    assert torch.equal(valid_of(mask), VALID)
    assert torch.equal(valid_of(mask, causal=True), VALID)


def test_one_mask_for_all_examples():
    for mask in (VALID[1:2], VALID[1:2, None, None], VALID[1:2].expand(6, 6)):
        assert torch.equal(valid_of(mask), VALID[1:2].expand(3, 6))


def test_the_future_may_be_hidden_where_the_layer_hides_it():
    assert valid_of(CAUSAL, causal=True).all()
    assert torch.equal(valid_of(BOTH & CAUSAL, causal=True), VALID)
    with pytest.raises(UnsupportedError, match="must hide the same keys from all queries"):
        valid_of(CAUSAL)


@pytest.mark.parametrize(
    ("mask", "error", "words"),
    [
        (VALID.long(), ValueError, "must be boolean, or of a float dtype"),
        (torch.full((3, 1, 1, 6), -1e4), UnsupportedError, "must hold only 0"),
        (torch.eye(6, dtype=torch.bool), UnsupportedError, "must hide the same keys from all queries"),
        (torch.stack([VALID, ~VALID], dim=1)[:, :, None], UnsupportedError, "must be the same for all heads"),
        (VALID[:, :5], ValueError, r"with batch=3 and 6 tokens; got \(3, 5\)"),
        (VALID[:, None], ValueError, r"got \(3, 1, 6\)"),
        (VALID[:2, None, None], ValueError, r"got \(2, 1, 1, 6\)"),
        (BOTH[:, :, :5], ValueError, r"got \(3, 1, 5, 6\)"),
    ],
)
def test_what_is_no_padding_is_refused(mask, error, words):
    with pytest.raises(error, match=words):
        valid_of(mask)


def test_a_mask_of_two_meanings_is_refused():
    with pytest.raises(ValueError, match=r"is ambiguous, because it fits \(batch, keys\) and \(queries, keys\)"):
        valid_of(CAUSAL, causal=True, batch=6)


@pytest.mark.parametrize("causal", [False, True])
def test_padding_and_causality_as_timm_computes_them(causal):
    torch.manual_seed(0)
    theirs, ours = Attention(16, 2).double(), attention_layer("softmax", length=6, causal=causal)(16, 2).double()
    ours.load_state_dict(theirs.state_dict())
    tokens = torch.randn(3, 6, 16, dtype=torch.float64)
    mask = BOTH & CAUSAL if causal else BOTH
    found = ours(tokens, attn_mask=mask, is_causal=causal)
    expected = theirs(tokens, attn_mask=mask)
    torch.testing.assert_close(found[VALID], expected[VALID], rtol=0, atol=1e-12)
    assert found.isfinite().all()


@pytest.mark.parametrize("name", of_each_kind(attentions()))
def test_padding_has_no_influence_or_is_refused(name):
    torch.manual_seed(0)
    layer = attention_layer(name, length=12)(16, 2).eval()
    valid = torch.arange(12) < torch.tensor([12, 7, 1])[:, None]
    tokens, mask = torch.randn(3, 12, 16), valid[:, None, None]
    other = torch.where(valid[..., None], tokens, 1e3)
    if not card(name).can.key_padding:
        with pytest.raises(UnsupportedError, match="does not support padding"):
            layer(tokens, attn_mask=mask)
        return
    with torch.no_grad():
        found = []
        for given in (tokens, other):
            torch.manual_seed(1)
            found.append(layer(given, attn_mask=mask)[valid])
    torch.testing.assert_close(found[0], found[1])


def test_images_of_several_sizes_in_one_batch():
    """timm's NaFlex: patches with coordinates, padded to the longest image, MAP pooling over valid patches."""
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"embed_dim": 16, "depth": 1, "num_heads": 2, "num_classes": 4}
    theirs: Any = timm.create_model("naflexvit_base_patch16_siglip", **sizes).eval()
    rows, columns = torch.arange(6) // 3, torch.arange(6) % 3
    given = {"patches": torch.randn(3, 6, 768), "patch_coord": torch.stack([rows, columns], dim=-1).repeat(3, 1, 1)}
    given["patch_valid"] = VALID
    expected = theirs(given)
    assert replace_attention(theirs, "softmax", length=6).attention_replacement.left == ("attn_pool (AttentionPoolLatent)",)
    torch.testing.assert_close(theirs(given), expected)
    layer = attention_layer("linformer", length=6, projected_length=3)
    ours: Any = timm.create_model("naflexvit_base_patch16_siglip", attn_layer=layer, **sizes).eval()
    padded = given | {"patches": torch.where(VALID[..., None], given["patches"], 7.0)}
    assert ours.get_submodule("blocks.0.attn").mechanism.card.name == "linformer"
    torch.testing.assert_close(ours(padded), ours(given))
