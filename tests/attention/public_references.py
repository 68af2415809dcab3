"""Public reference functions in float64: their casts to float32 are replaced, so that ours can be held to them at 1e-9."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import numpy
import pytest
import torch
from torch import Tensor


def in_float64(package: str, path: str, classes: Sequence[str] = ()) -> SimpleNamespace:
    """Return functions and classes of a source file of an installed package, with every cast to float32 replaced by one to float64.

    Only the functions and the named classes are executed, without decorators: fla's imports need Triton, and transformers'
    decorators swap a function for a Triton kernel as soon as fla can be imported.
    """
    found = find_spec(package)
    if found is None or found.origin is None:
        pytest.skip(f"{package} is not installed (extra: peers)")
    einops = pytest.importorskip("einops", reason="einops is not installed (extra: peers)")
    source = (Path(found.origin).parent / path).read_text(encoding="utf-8")
    wide = re.sub(r"torch\.float32\b|torch\.float\b", "torch.float64", source).replace(".float()", ".double()")
    taken = [
        node
        for node in ast.parse(wide).body
        if isinstance(node, ast.FunctionDef) or (isinstance(node, ast.ClassDef) and node.name in classes)
    ]
    for node in taken:
        for part in ast.walk(node):
            if isinstance(part, (ast.FunctionDef, ast.ClassDef)):
                part.decorator_list = []
    lines = "\n".join(["from __future__ import annotations", *map(ast.unparse, taken)])
    names = {
        "torch": torch,
        "np": numpy,
        "nn": torch.nn,
        "F": torch.nn.functional,
        "rearrange": einops.rearrange,
        "repeat": einops.repeat,
        "is_torchdynamo_exporting": lambda: False,
    }
    exec(compile(lines, path, "exec"), names)
    return SimpleNamespace(**names)


def require_close(what: str, ours: Tensor, theirs: Tensor) -> None:
    """Require that two results differ by at most 1e-9 of the largest number of the reference, which is not zero."""
    difference = (ours - theirs).abs().max().item() / max(1e-30, theirs.abs().max().item())
    print(f"{what}: {difference:.1e}")
    assert theirs.abs().max() > 0 and difference < 1e-9, f"{what}: the largest relative difference is {difference:.1e}"
