"""Import time beyond PyTorch's own: of the layer, and of commands that only look something up."""

import json
import os
import subprocess
import sys

import pytest

CODE = """
import contextlib, io, json, sys, time
import numpy
begun = time.process_time()
import torch
before, started = set(sys.modules), time.process_time()
with contextlib.redirect_stdout(io.StringIO()):
    {code}
print(json.dumps([time.process_time() - started, started - begun, sorted(set(sys.modules) - before)]))
"""
LAYER = "from attn_zoo import MultiHeadAttention; MultiHeadAttention(16, 2, 'linformer', length=8, projected_length=4)"
COMMAND = "from attn_zoo.cli import main; assert main({words}) == 0"
TRIES = 3
"""Largest number of repetitions; the shortest counts, because other load only adds time and the first writes the bytecode."""


COMPILED = {**os.environ, "PYTHONDONTWRITEBYTECODE": ""}
"""Environment in which bytecode is written, as in an installation, even if it is turned off for this process."""


def modules_of(code: str, limit: float, share: float) -> set[str]:
    """Return the modules that code imports beyond PyTorch's, and assert that it takes little processor time.

    Args:
        limit: largest number of processor seconds.
        share: part of the time of PyTorch's import, up to three seconds on a usual machine, that is allowed if this is more.
    """
    seconds, of_torch = [], []
    for _ in range(TRIES):
        words = [sys.executable, "-P", "-c", CODE.format(code=code)]
        done = subprocess.run(words, capture_output=True, text=True, check=False, env=COMPILED)
        assert done.returncode == 0, done.stderr
        took, torch_took, modules = json.loads(done.stdout)
        seconds.append(took)
        of_torch.append(torch_took)
        if min(seconds) < max(limit, share * min(of_torch)):
            return set(modules)
    raise AssertionError(f"{min(seconds):.2f} s in {TRIES} tries, beside {min(of_torch):.2f} s for PyTorch's import")


def test_the_layer_imports_torch_numpy_and_jaxtyping_alone_within_a_fifth_of_a_second():
    modules = modules_of(LAYER, 0.2, 1 / 8)
    assert not any(name.startswith("attn_zoo.tasks") for name in modules)
    assert {name.partition(".")[0] for name in modules} - set(sys.stdlib_module_names) <= {
        "attn_zoo",
        "jaxtyping",
        "numpy",
        "torch",
    }
    assert "torch._dynamo" not in modules


@pytest.mark.process
@pytest.mark.parametrize("words", [["list"], pytest.param(["data", "list"], marks=pytest.mark.exhaustive)], ids=" ".join)
def test_looking_something_up_takes_less_than_a_second_without_compiler_and_metrics(words):
    modules = modules_of(COMMAND.format(words=words), 1.0, 1 / 3)
    assert not {"torch._dynamo", "sympy", "torchmetrics", "timm"} & modules
