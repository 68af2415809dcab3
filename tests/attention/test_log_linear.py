"""Log-linear attention: parts of the past, equal weights as in SSD, and mistakes that the kit catches."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from mistakes import require_caught
from torch import Tensor

from attn_zoo import Geometry, build_attention
from attn_zoo.attention.linear import log_linear
from attn_zoo.attention.linear.log_linear import LogLinear, _parts

HEADS, D = 2, 12


def build(name: str, n: int, **options: Any) -> Any:
    return build_attention(name, Geometry(HEADS, D, n, n, causal=True), **options).double()


def draw(n: int) -> list[Tensor]:
    """Return queries, keys, values, step sizes and weights of the parts."""
    return [torch.randn(2, HEADS, n, width, dtype=torch.float64) for width in (D, D, D, 1, D)]


def test_parts_double_with_the_distance():
    """Token 6 sees parts of 4 and 2 tokens and itself; token 7 sees parts of 4, 2 and 1 tokens and itself."""
    parts = _parts(torch.arange(8), D)
    assert parts[6, :7].tolist() == [3, 3, 3, 3, 2, 2, 0]
    assert parts[7].tolist() == [3, 3, 3, 3, 2, 2, 1, 0]


@pytest.mark.parametrize("n", [1, 33, 70, 200])
def test_equal_weights_of_all_parts_give_state_space_duality(n):
    ours, plain = build("log_linear", n), build("ssd", n)
    ours.load_state_dict(plain.state_dict())
    query, key, value, step, level = draw(n)
    out = ours(query, key, value, streams={"step": step, "level": torch.zeros_like(level)})
    torch.testing.assert_close(out, plain(query, key, value, streams={"step": step}), rtol=1e-10, atol=1e-10)


def cuts_parts_from_the_query(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts by distance, so a token changes its part at every step; no memory of fixed parts has such weights."""
    right = log_linear._parts

    def wrong(place: Tensor, most: int) -> Tensor:
        return (place[..., :, None] - place[..., None, :]).abs().float().add(1).log2().ceil().long().clamp(max=most - 1)

    monkeypatch.setattr(log_linear, "_parts", lambda place, most: right(place, most) if place.dim() == 2 else wrong(place, most))


def counts_padding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_linear, "_taken", lambda x, order: x)


def weighs_by_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """The weights of parts are those of the query's time, not the key's."""
    right = LogLinear._read_real
    monkeypatch.setattr(
        LogLinear, "_read_real", lambda self, *given, step, level: right(self, *given, step=step, level=level.roll(1, dims=2))
    )


@pytest.mark.variants
@pytest.mark.parametrize(
    ("mistake", "check"),
    [
        (cuts_parts_from_the_query, "eager_agrees_with_the_definition"),
        (weighs_by_the_key, "eager_agrees_with_the_definition"),
        (counts_padding, "padding_amounts_to_shorter_inputs"),
    ],
)
def test_the_kit_catches_mistakes(mistake, check, monkeypatch):
    require_caught("log_linear", f"raw-eager-{check}", mistake, monkeypatch)
