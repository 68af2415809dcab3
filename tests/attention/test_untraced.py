"""Functions marked as untraced are called without being traced."""

from __future__ import annotations

import torch

from attn_zoo.contract.untraced import untraced


def test_the_compiler_does_not_look_in():
    traced = []

    @untraced
    def inner(x: torch.Tensor) -> torch.Tensor:
        traced.append(torch.compiler.is_compiling())
        return x.sin()

    torch._dynamo.reset()
    compiled = torch.compile(lambda x: inner(x) + 1, backend="eager")
    x = torch.randn(3)
    for _ in range(2):
        assert torch.equal(compiled(x), x.sin() + 1)
    assert traced == [False, False]
    torch._dynamo.reset()
