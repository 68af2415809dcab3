"""Contract of attentions: sizes, big-O, errors and their messages."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from attn_zoo import build_attention, card, registry
from attn_zoo.contract import (
    Geometry,
    Growth,
    UnknownNameError,
    hide_rows_without_keys,
)
from attn_zoo.registry import make_options

SQUARE = Geometry(heads=2, head_dim=4, queries=6, keys=6)


# --- sizes and big-O -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["heads", "head_dim", "queries", "keys"])
def test_geometry_refuses_what_counts_nothing(name: str) -> None:
    sizes: dict[str, Any] = {"heads": 2, "head_dim": 4, "queries": 6, "keys": 6, name: 0}
    with pytest.raises(ValueError, match=rf"geometry\.{name} must be an integer >= 1; got 0"):
        Geometry(**sizes)


def test_geometry_refuses_causality_between_unequal_lengths() -> None:
    with pytest.raises(ValueError, match="because each query sees the keys up to its own position; got 5 and 6"):
        Geometry(2, 4, 5, 6, causal=True)


def test_inner_dim_is_the_width_of_all_heads() -> None:
    assert Geometry(3, 5, 1, 1).inner_dim == 15


@pytest.mark.parametrize(
    ("text", "exponent", "has_log"),
    [
        ("n d", 1, False),
        ("n^2 d", 2, False),
        ("n k d + k d^2", 1, False),
        ("k d", 0, False),
        ("n log n d", 1, True),
        ("w n d + n n", 2, False),
        ("n1 d", 0, False),
        ("log n", 0, True),
        ("n^1.5 d", 1.5, False),
        ("n^2 d / b + n d", 2, False),
        ("n^2 d / n", 1, False),
    ],
)
def test_growth_reads_its_largest_power(text: str, exponent: float, has_log: bool) -> None:
    growth = Growth(text)
    assert (growth.exponent, growth.has_log, str(growth)) == (exponent, has_log, f"O({text})")


@pytest.mark.parametrize("text", ["", "n +", "2 n", "n^-1", "n^d", "n^1.", "O(n)", "n * d"])
def test_growth_refuses_what_it_cannot_read(text: str) -> None:
    with pytest.raises(ValueError, match=re.escape(repr(text))):
        Growth(text)


def test_examples_without_keys_are_zeroed_and_others_left() -> None:
    out = torch.ones(2, 1, 3, 4)
    hidden = hide_rows_without_keys(out, torch.tensor([[False, False], [False, True]]))
    assert hidden[0].eq(0).all()
    assert hidden[1].eq(1).all()
    assert hide_rows_without_keys(out, None) is out


# --- errors ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("batch", "queries", "keys"), [(0, 9, 9), (2, 0, 0), (2, 0, 9), (2, 9, 0)])
def test_empty_inputs_give_zeros_through_which_gradients_pass(batch: int, queries: int, keys: int) -> None:
    module = build_attention("softmax", Geometry(2, 8, 9, 9))
    query, key, value = (torch.full((batch, 2, n, 8), torch.nan, requires_grad=True) for n in (queries, keys, keys))
    out = module(query, key, value, key_valid=torch.ones(batch, keys, dtype=torch.bool))
    assert out.shape == query.shape
    assert not out.any()
    out.sum().backward()
    assert query.grad is not None
    assert not query.grad.any()


def test_unknown_names_are_answered_with_the_nearest() -> None:
    error = UnknownNameError("colour", "gren", ["red", "green"])
    assert str(error) == "no colour is called 'gren'; did you mean 'green'? Known: green, red"
    assert (error.kind, error.name, error.known) == ("colour", "gren", ("green", "red"))
    assert str(UnknownNameError("colour", "x", [])) == "no colour is called 'x'. Known: none"
    assert isinstance(error, LookupError)
    assert not isinstance(error, KeyError)


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda: card("sotfmax"), "no attention is called 'sotfmax'; did you mean 'softmax'?"),
        (
            lambda: registry.task_card("no such task"),
            "no task is called 'no such task'. One of your own must be installed, imported,",
        ),
        (
            lambda: build_attention("softmax", SQUARE, dropuot=0.1),
            "no option of attention softmax is called 'dropuot'; did you mean 'dropout'?",
        ),
        (
            lambda: build_attention("softmax", SQUARE, implementation="spda"),
            "no implementation of softmax is called 'spda'; did you mean 'sdpa'?",
        ),
        (lambda: build_attention("none", SQUARE, dropout=0.1), "no option of attention none is called 'dropout'. Known: none"),
    ],
)
def test_unknown_names_are_refused(ask: Callable[[], object], message: str) -> None:
    with pytest.raises(UnknownNameError, match=re.escape(message)):
        ask()


def test_make_options_fills_in_defaults() -> None:
    @dataclass
    class Kind:
        width: int = 3
        deep: bool = False

    assert make_options("thing", Kind, {"deep": True}) == Kind(3, True)
    with pytest.raises(UnknownNameError, match="no option of thing is called 'widht'; did you mean 'width'"):
        make_options("thing", Kind, {"widht": 3})
