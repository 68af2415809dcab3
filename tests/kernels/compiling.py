"""Compile a kernel for sm_90 on a machine without a GPU, and read its resource usage and instructions."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import triton
from patience import HANG
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

HOPPER = GPUTarget("cuda", 90, 32)
SHARED_LIMIT = 232448
"""Bytes of shared memory a program may have on an H100 or H200."""
PROGRAMS = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"


@dataclass(frozen=True)
class Report:
    """Resource usage and instruction counts of one compiled kernel."""

    registers: int
    stack: int
    """Bytes of slow local memory of a thread, used where registers ran out (spills)."""
    shared: int
    """Bytes of shared memory of a program."""
    wgmma: int
    """Number of Hopper's own matrix instructions, each for a group of four warps."""
    mma: int
    """Number of older matrix instructions, each for one warp, at half the rate."""
    wide_loads: int
    """Number of loads of 16 bytes for each thread, synchronous or asynchronous."""


def compile_for_hopper(
    kernel: Any,
    pointers: Mapping[str, str],
    constants: Mapping[str, Any],
    *,
    warps: int,
    aligned: Collection[str],
    ones: Collection[str] = (),
) -> Report:
    """Compile ``kernel`` for sm_90 and report its resource usage.

    Args:
        kernel: a function under ``triton.jit``.
        pointers: element type by name; a pointer left out is None.
        constants: values, by name, of all arguments in capitals.
        warps: number of warps of a program.
        aligned: names of pointers and integers that are multiples of 16, for which Triton uses wide loads.
        ones: names of integers that are 1, which Triton compiles as constants.
    """
    signature, values, hints = {}, {}, {}
    for index, name in enumerate(kernel.arg_names):
        if name.isupper():
            signature[name], values[(index,)] = "constexpr", constants[name]
        elif name.endswith("_pointer"):
            signature[name] = "*" + pointers[name] if name in pointers else "constexpr"
            if name not in pointers:
                values[(index,)] = None
        elif name in ones:
            signature[name], values[(index,)] = "constexpr", 1
        else:
            signature[name] = "fp32" if name == "gain" else "i32"
        if name in aligned and signature[name] != "constexpr":
            hints[(index,)] = [["tt.divisibility", 16]]
    source = ASTSource(fn=kernel, signature=signature, constexprs=values, attrs=hints)
    compiled = triton.compile(source, target=HOPPER, options={"num_warps": warps})
    return read(compiled.asm["cubin"], compiled.asm["ptx"], compiled.metadata.shared)


def reports_of(program: str, *arguments: str) -> list[dict[str, Any]]:
    """Run a program of this folder in a subprocess, with the interpreter off, and return the lines of JSON that it prints."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-W", "ignore", "-m", f"kernels.{program}", *arguments]
    folder = Path(__file__).parent.parent
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, env=environment, timeout=HANG, check=False)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def read(cubin: bytes, ptx: str, shared: int) -> Report:
    """Read registers and stack from the assembled kernel (cubin), and count its instructions in the PTX."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [str(PROGRAMS / "cuobjdump"), "-res-usage", file.name]
        usage = subprocess.run(command, capture_output=True, text=True, check=True).stdout

    def of(what: str) -> int:
        found = re.search(what + r":(\d+)", usage)
        assert found, f"cuobjdump tells no {what}: {usage}"
        return int(found[1])

    def count(pattern: str) -> int:
        return len(re.findall(pattern, ptx))

    return Report(
        registers=of("REG"),
        stack=of("STACK"),
        shared=shared,
        wgmma=count(r"\bwgmma\.mma_async\b"),
        mma=count(r"\bmma\.sync\b"),
        wide_loads=count(r"\bld\.global\.v4\.b32|\bcp\.async\.c[ag]\.shared\.global .*0x10,"),
    )
