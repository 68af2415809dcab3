"""The layer needs little: no other package than PyTorch, NumPy and jaxtyping, and little time beside PyTorch's own."""

import json
import subprocess
import sys

CODE = """
import json, sys, time
import torch
before, started = set(sys.modules), time.process_time()
from attn_zoo import MultiHeadAttention
MultiHeadAttention(16, 2, "linformer", length=8, projected_length=4)
took = time.process_time() - started
new = {name.partition(".")[0] for name in set(sys.modules) - before} - set(sys.stdlib_module_names)
print(json.dumps([took, sorted(new), "torch._dynamo" in sys.modules, "sympy" in sys.modules]))
"""
LIMIT = 0.5
"""Seconds of processor time; a machine with nothing else to do takes less than half."""


def test_the_layer_imports_torch_numpy_and_jaxtyping_alone():
    done = subprocess.run([sys.executable, "-P", "-c", CODE], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    took, packages, *heavy = json.loads(done.stdout)
    assert set(packages) <= {"attn_zoo", "jaxtyping", "numpy", "torch"}
    assert not any(heavy)
    assert took < LIMIT
