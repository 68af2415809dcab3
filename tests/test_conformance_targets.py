"""Targets of the conformance kit: names and classes that ``check`` is given."""

from __future__ import annotations

import sys

import pytest
from mutants.card import Untold
from mutants.originals import PlainSoftmax

from attn_zoo.conformance import (
    check_attention,
    resolve,
)
from attn_zoo.contract import TaskCard, UnknownNameError


class Alien:
    """Class that is no attention."""


class Heir(PlainSoftmax):
    """Attention that has only the card of its parent."""


def test_resolve_finds_names_and_classes() -> None:
    assert resolve("softmax").name == "softmax"
    assert resolve("attn_zoo.attention.dense.softmax:Softmax") is resolve("softmax")
    assert resolve(f"{Untold.__module__}:Untold") is Untold.card


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("nowhere.at_all:Thing", "module 'nowhere.at_all' cannot be imported: ModuleNotFoundError"),
        ("attn_zoo.attention.dense.softmax:Softmix", "module 'attn_zoo.attention.dense.softmax' has no attribute 'Softmix'"),
        ("attn_zoo.attention.dense.softmax:Options", "'Options' in 'attn_zoo.attention.dense.softmax' is not a class with a card"),
        ("attn_zoo.attention.dense.softmax:cost", "is not a class with a card"),
        ("attn_zoo.contract:Attention", "is not a class with a card"),
    ],
)
def test_resolve_says_what_is_wrong_with_a_target(target: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        resolve(target)


def test_resolve_refuses_an_inherited_card() -> None:
    sys.modules["heirs"] = sys.modules[__name__]
    try:
        with pytest.raises(ValueError, match=r"belongs to mutants\.originals:PlainSoftmax"):
            resolve("heirs:Heir")
    finally:
        del sys.modules["heirs"]
    with pytest.raises(UnknownNameError, match="did you mean 'softmax'"):
        resolve("softmaxx")


def test_resolve_finds_tasks_which_are_no_attentions() -> None:
    name = "mqar"
    found = resolve(name)
    assert isinstance(found, TaskCard)
    assert resolve(found.origin) is found
    with pytest.raises(ValueError, match=f"'{name}' is a task, not an attention mechanism; use check_task"):
        check_attention(name)
