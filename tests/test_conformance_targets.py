"""Targets of the conformance kit: a class with the card of its parent is refused."""

from __future__ import annotations

import sys

import pytest
from mutants.originals import PlainSoftmax

from attn_zoo.conformance import resolve
from attn_zoo.contract import UnknownNameError


class Heir(PlainSoftmax):
    """Attention that has only the card of its parent."""


def test_resolve_refuses_an_inherited_card() -> None:
    sys.modules["heirs"] = sys.modules[__name__]
    try:
        with pytest.raises(ValueError, match=r"belongs to mutants\.originals:PlainSoftmax"):
            resolve("heirs:Heir")
    finally:
        del sys.modules["heirs"]
    with pytest.raises(UnknownNameError, match="did you mean 'softmax'"):
        resolve("softmaxx")
