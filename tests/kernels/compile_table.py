"""Compile the kernels for every entry of the table and print one JSON line for each; a program of its own, not a test.

Compiling needs TRITON_INTERPRET unset before triton is imported, so the tests start this in a process. By default it compiles one
entry of each kernel in every form; with ``--entries`` also every entry in its usual form, and with ``--all`` every entry in every
form, which takes minutes.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch

from attn_zoo.kernels.linformer import attention, blocks, projection, table
from kernels.compiling import compile_for_hopper

KERNELS = {name: getattr(module, name) for module in (attention, blocks, projection) for name in vars(module)}
INTEGERS = ("queries", "keys", "heads", "splits", "tiles", "rows", "width", "chunks", "batch", "examples")


@dataclass(frozen=True)
class Case:
    """Kernel in one form, to be compiled."""

    kernel: str
    tile: table.AttentionTile | table.ProjectionTile
    dtype: str
    form: str = "plain"
    """plain; random: with dropout or padding; ragged: lengths that neither fill tiles nor are multiples of 16; ones: all 1."""
    precision: str = "tf32x3"

    def constants(self) -> dict[str, Any]:
        tile = self.tile
        common = {**tile.constants(), "PRECISION": self.precision if self.dtype == "fp32" else "tf32"}
        if isinstance(tile, table.ProjectionTile):
            return common | {"MASKED": self.form == "random"}
        flags = {"DROPOUT": self.form == "random", "FULL": self.form not in ("ragged", "ones")}
        return common | flags | {"DIM": 1 if self.form == "ones" else tile.dim, "SCALE": 0.18, "ROOT": 0.12}

    def pointers(self) -> dict[str, str]:
        names = [name for name in KERNELS[self.kernel].arg_names if name.endswith("_pointer")]
        shares = ("grad_key_pointer", "grad_value_pointer", "normaliser_pointer", "delta_pointer")
        types = {name: "fp32" if name in shares else self.dtype for name in names}
        if self.kernel.startswith("project"):
            types["out_pointer"] = "fp32"
        for name, dtype in (("seed_pointer", "i64"), ("valid_pointer", "u8")):
            types.pop(name, None)
            if name in names and self.form == "random":
                types[name] = dtype
        return types


def entries() -> Iterator[tuple[str, int, bool, table.AttentionTile | table.ProjectionTile]]:
    """Yield all combinations of kernel name, bits of an input, use of dropout or padding, and tile."""
    for random in (False, True):
        for kernel, whole in table.WHOLE.items():
            for keys, dim in whole:
                if table.on_chip(keys, dim, torch.bfloat16, random):
                    yield kernel, 16, random, table.whole_row_tile(kernel, keys, dim, random)
        for kernel, by_size in table.BLOCKS.items():
            for (bits, dim), (queries, keys, warps, stages) in by_size.items():
                yield kernel, bits, random, table.AttentionTile(queries, keys, dim, warps, stages)
        for kernel, tiles in table.PROJECTION.items():
            for (bits, _, _), tile in tiles.items():
                yield kernel, bits, random, table.ProjectionTile(*tile)


def cases(whole: bool, everything: bool) -> Iterator[Case]:
    """Yield all forms of one entry for each kernel; with ``whole`` every entry in its usual form, or with ``everything`` in all."""
    seen = set()
    for kernel, bits, random, tile in entries():
        case = Case(kernel, tile, "bf16" if bits == 16 else "fp32", "random" if random else "plain")
        wide = tile.width if isinstance(tile, table.ProjectionTile) else tile.dim
        first = wide >= 64 and (kernel, bits, random) not in seen
        if first:
            seen.add((kernel, bits, random))
        if everything or first or (whole and not random):
            yield case
        if random or not (everything or first):
            continue
        yield replace(case, dtype="fp16") if bits == 16 else replace(case, precision="tf32")
        yield replace(case, form="ragged")
        if everything or bits == 16:
            yield replace(case, form="ones")


def report(case: Case) -> dict[str, Any]:
    kernel = KERNELS[case.kernel]
    ones = [name for name in INTEGERS if name in kernel.arg_names] if case.form == "ones" else []
    aligned = {name for name in kernel.arg_names if name.endswith(("_pointer", "_stride")) or name in ("rows", "keys", "width")}
    if case.form == "ragged":
        aligned -= {"projection_stride", "rows", "keys"}
    elif case.form == "ones":
        aligned = set()
    made = compile_for_hopper(kernel, case.pointers(), case.constants(), warps=case.tile.warps, aligned=aligned, ones=ones)
    return {"case": asdict(case), "report": asdict(made)}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--entries", action="store_true", help="every entry in its usual form")
    parser.add_argument("--all", action="store_true", help="every entry in every form")
    arguments = parser.parse_args()
    with ThreadPoolExecutor(2) as pool:
        for line in pool.map(report, cases(arguments.entries, arguments.all)):
            print(json.dumps(line), flush=True)
