"""Compile flash-linear-attention's kernels as ``fla`` layers launch them on an H100; one JSON line for each kernel of a mechanism.

This is a separate program, as ``compile_table``, because Triton and the package query the device when they are imported. A fake
driver reports an H100; launches by layers on CPU tensors are compiled for it but not run, so outputs are meaningless.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from types import SimpleNamespace
from typing import Any

import torch
from triton.runtime import driver
from triton.runtime.autotuner import Autotuner
from triton.runtime.jit import JITFunction

from attn_zoo import Geometry, build_attention
from attn_zoo.conformance.requests import answers, draw
from attn_zoo.contract import attention
from kernels.compiling import HOPPER, SHARED_LIMIT, read

GEOMETRY = Geometry(heads=2, head_dim=64, queries=200, keys=200, causal=True)

compile_or_launch = JITFunction.run


class H100:
    """Fake driver of an H100, with the properties that compilation queries."""

    utils = SimpleNamespace(get_device_properties=lambda _: {"max_shared_mem": SHARED_LIMIT, "multiprocessor_count": 132})

    def get_current_target(self) -> Any:
        return HOPPER

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0


def pretend() -> None:
    """Make Triton, the package and the contract see an H100."""
    driver.set_active(H100())
    torch.cuda.get_device_capability = lambda *_: (9, 0)
    torch.cuda.get_device_name = lambda *_: "NVIDIA H100"
    from fla.utils import hardware  # type: ignore[import-untyped]  # queries the device

    hardware.get_all_max_shared_mem = lambda: {None: SHARED_LIMIT, 0: SHARED_LIMIT}  # None: index of a CPU tensor's device
    attention.unavailable = lambda *_: None  # type: ignore[attr-defined]


def first_tile(tuner: Any, *arguments: Any, **named: Any) -> Any:
    """Launch with the first tile that the autotuner would try."""
    tuner.nargs = dict(zip(tuner.arg_names, arguments, strict=False))
    return tuner.fn.run(*arguments, **named, **tuner.prune_configs(named)[0].all_kwargs())


def compile_launches(mechanism: str) -> None:
    """Replace kernel launches by compilations, and print each new report."""
    seen = set()

    def compile_once(kernel: Any, *arguments: Any, warmup: bool, **named: Any) -> None:
        line: dict[str, Any] = {"mechanism": mechanism, "kernel": kernel.__name__}
        try:
            compiled = compile_or_launch(kernel, *arguments, warmup=True, **named)
            line["report"] = asdict(read(compiled.asm["cubin"], compiled.asm["ptx"], compiled.metadata.shared))
        except Exception as error:  # compilers raise errors of many kinds
            line["failure"] = f"{type(error).__name__}: {error}"
        text = json.dumps(line)
        if text not in seen:
            seen.add(text)
            print(text, flush=True)

    JITFunction.run = compile_once
    Autotuner.run = first_tile


if __name__ == "__main__":
    pretend()
    for name in sys.argv[1:]:
        compile_launches(name)
        module = build_attention(name, GEOMETRY, implementation="fla")
        answers(draw(module, torch.bfloat16, torch.device("cpu")), module)
