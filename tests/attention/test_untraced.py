"""Functions marked as untraced are called without being traced, and marking them imports no compiler."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from attn_zoo.contract.untraced import untraced


@pytest.mark.process
def test_importing_the_mechanisms_imports_no_compiler():
    code = "import sys, attn_zoo.attention; assert 'torch._dynamo' not in sys.modules"
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


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
