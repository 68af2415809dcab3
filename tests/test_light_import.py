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
"""Number of timed repetitions; the shortest counts, because other load only adds time and the first writes the bytecode."""


COMPILED = {**os.environ, "PYTHONDONTWRITEBYTECODE": ""}
"""Environment in which bytecode is written, as in an installation, even if it is turned off for this process."""


def taken(code: str) -> tuple[float, float, set[str]]:
    """Return the processor seconds of the code, those of the import of PyTorch before it, and the imported modules."""
    seconds, of_torch, modules = [], [], set()
    for _ in range(TRIES):
        words = [sys.executable, "-P", "-c", CODE.format(code=code)]
        done = subprocess.run(words, capture_output=True, text=True, check=False, env=COMPILED)
        assert done.returncode == 0, done.stderr
        took, torch_took, new = json.loads(done.stdout)
        seconds.append(took)
        of_torch.append(torch_took)
        modules |= set(new)
    return min(seconds), min(of_torch), modules


def test_the_layer_imports_torch_numpy_and_jaxtyping_alone_within_a_fifth_of_a_second():
    seconds, of_torch, modules = taken(LAYER)
    assert not any(name.startswith("attn_zoo.tasks") for name in modules)
    assert {name.partition(".")[0] for name in modules} - set(sys.stdlib_module_names) <= {
        "attn_zoo",
        "jaxtyping",
        "numpy",
        "torch",
    }
    assert "torch._dynamo" not in modules
    # PyTorch's import takes up to three seconds on a usual machine, and longer on one that is slow.
    assert seconds < max(0.2, of_torch / 15)


@pytest.mark.process
@pytest.mark.parametrize("words", [["list"], ["data", "list"]], ids=" ".join)
def test_looking_something_up_takes_less_than_a_second_without_compiler_and_metrics(words):
    seconds, of_torch, modules = taken(COMMAND.format(words=words))
    assert not {"torch._dynamo", "sympy", "torchmetrics", "timm"} & modules
    assert seconds < max(1.0, of_torch / 3)
