"""Without a GPU and without the interpreter the package can be imported and says what it needs."""

from __future__ import annotations

import os
import subprocess
import sys


def run(program: str, **environment: str) -> str:
    clean = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-W", "ignore", "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, env=clean | environment, timeout=120, check=False)
    return done.stdout + done.stderr


def test_the_zoo_needs_no_triton():
    assert run("import sys, attn_zoo; print('triton' in sys.modules, 'attn_zoo.kernels' in sys.modules)") == "False False\n"


def test_cpu_tensors_are_refused():
    program = """
import torch
from attn_zoo.kernels.linformer import linformer_attention, project_sequence
calls = (linformer_attention, *torch.zeros(3, 1, 1, 2, 8)), (project_sequence, torch.zeros(2, 3), torch.zeros(1, 3, 4))
for function, *inputs in calls:
    try:
        function(*inputs)
    except ValueError as error:
        print(error)
"""
    lines = run(program).splitlines()
    assert len(lines) == 2, lines
    for name, line in zip(("linformer_attention: query", "project_sequence: projection"), lines, strict=True):
        assert line.startswith(f"{name} must be on a CUDA device, because Triton kernels run there")
        assert "got cpu" in line and "implementation=sdpa" in line and "TRITON_INTERPRET=1" in line


def test_a_late_choice_of_the_interpreter_is_refused():
    program = "import os, triton; os.environ['TRITON_INTERPRET'] = '1'; import attn_zoo.kernels.linformer"
    assert "RuntimeError: TRITON_INTERPRET changed after triton was imported" in run(program)
