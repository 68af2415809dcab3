"""The table of a fixture: times beside their floors, and cells that are missed, wrong, out of memory or not measured."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from attn_zoo.cost.linformer_kernels.cases import cases
from attn_zoo.cost.linformer_kernels.floors import STATED
from attn_zoo.cost.linformer_kernels.found import Found
from attn_zoo.cost.linformer_kernels.setting import CUDA_DEFAULTS, Cell, Setting
from attn_zoo.cost.linformer_kernels.table import linformer_kernels_table

CUDA = Setting("cuda", **CUDA_DEFAULTS, sharing="headwise", rounds=2, repeat_seconds=0.1)


def check(part: str, rows: int, length: int = 4096, **changes: Any) -> dict[str, Any]:
    (case,) = [c for c in cases(CUDA) if (c.part, c.rows, c.length, c.precision) == (part, rows, length, "bf16")]
    errors = {"out": 1e-3, "query": 2e-3}
    bounds = dict.fromkeys(errors, 4e-3)
    found = {"part": "check", "key": case.key, "call": 1, "case": asdict(case), "failure": None}
    return {**found, "errors": errors, "bounds": bounds, "same": True, "verdict": "right", **changes}


def timed(cell: Cell, share: float, **changes: Any) -> dict[str, Any]:
    """A point whose time has the given share of the floor; softmax layers have none, and take ``share`` as seconds."""
    written = {"setting": asdict(CUDA), "points": [ceilings()]}
    seconds = share if cell.rows == 0 or cell.who == "sdpa" else Found(written).floor(cell) / share
    found = {"part": "time", "key": cell.key, "call": 1, "cell": asdict(cell), "failure": None, "seconds": [seconds] * 3}
    return {**found, "loop_seconds": 2 * seconds, "peak_bytes": 100 * 2**20 if cell.rows else 150 * 2**20, **changes}


def ceilings() -> dict[str, Any]:
    rates = {"half_flops": 790e12, "tf32_flops": 395e12, "bytes": 4.3e12, "exponentials": STATED.exponentials}
    facts = {"clock_measured": False, "smi": {"driver_version": "1.2"}, "triton": "3.6.0"}
    return {"part": "ceilings", "key": "ceilings|1", "call": 1, "failure": None, **rates, **facts}


def fixture() -> dict[str, Any]:
    def core(kind: str, n: int, r: int, who: str = "triton") -> Cell:
        return Cell("core", kind, n, r, "bf16", who)

    def layer(kind: str, n: int, r: int, who: str) -> Cell:
        return Cell("layer", kind, n, r, "bf16", who)

    fast = timed(core("forward", 4096, 128), 0.8)
    unstable = {"seconds": [s * fast["seconds"][1] for s in (0.9, 1.0, 1.3)]}
    points = [
        ceilings(),
        check("core", 128),
        check("core", 256, errors={"out": 1e-3, "query": None}, verdict="wrong"),
        check("layer", 128, 512),
        check("layer", 128, 65536, failure="failed: CompilationError: at 1:2"),
        fast,
        timed(core("forward", 4096, 128, "flash"), 0.4),
        timed(core("forward", 4096, 128, "cudnn"), 0.5),
        {**timed(core("forward", 512, 128), 0.6), **unstable},
        {**timed(core("forward", 65536, 128), 0.8), "seconds": [1.2 * s for s in fast["seconds"]]},
        timed(core("forward", 4096, 256), 0.6),
        timed(core("backward", 4096, 256), 0.9),
        timed(core("backward", 65536, 256), 0.9, failure="OOM: 3 GiB"),
        timed(core("backward", 512, 256), 0.9, failure="time limit: not done after 60 s"),
        timed(layer("forward", 512, 128, "triton"), 1.0),
        timed(layer("forward", 512, 128, "sdpa"), 0.001),
        timed(layer("forward", 512, 0, "flash"), 450e-6),
        timed(layer("forward", 512, 0, "cudnn"), 400e-6),
        timed(layer("forward", 65536, 128, "triton"), 1.0),
        timed(layer("forward", 65536, 0, "flash"), 0.0276),
        timed(layer("training", 16384, 256, "triton"), 1.0),
        timed(layer("training", 16384, 0, "efficient"), 0.01),
    ]
    environment = {"gpu": "GPU of a test", "cpu": "CPU", "torch": "2.11.0", "cuda": "13.0"}
    return {"complete": True, "setting": json.loads(json.dumps(asdict(CUDA))), "environment": environment, "points": points}


def rows(table: str, head: str) -> dict[tuple[str, ...], dict[str, str]]:
    """Rows of the table whose first heading is ``head``, by their first four cells; a heading that comes twice gets a 2."""
    lines = table.splitlines()
    start = next(at for at, line in enumerate(lines) if line.startswith(f"| {head} ") and lines[at + 1].startswith("|--"))
    names: list[str] = []
    for name in lines[start].strip("|").split("|"):
        names.append(name.strip() if name.strip() not in names else f"{name.strip()} 2")
    found = {}
    for line in lines[start + 2 :]:
        if not line.startswith("|"):
            break
        values = [value.strip() for value in line.strip("|").split("|")]
        found[tuple(values[:4])] = dict(zip(names, values, strict=True))
    return found


def test_core_rows_of_the_fixture():
    core = rows(linformer_kernels_table(fixture()), "core")
    assert len(core) == 2 * 2 * 4 + 2 * 2 * 2
    reached = core["forward", "bf16", "128", "4096"]
    assert reached["time (µs)"] == "60.4 ± 0.0"
    assert (reached["loop"], reached["floor"], reached["floor / time"]) == ("121", "48.3", "80% (≥ 70%)")
    assert (reached["verdict"], reached["TF/s"], reached["GB/s"]) == ("reached", "427", "3440")
    assert (reached["best SDPA (µs)"], reached["ratio"]) == ("96.6 ± 0.0 (cudnn)", "1.60")
    unstable = core["forward", "bf16", "128", "512"]
    assert unstable["time (µs)"].endswith(" unstable")
    assert unstable["best SDPA (µs)"] == "not measured"
    assert core["forward", "bf16", "256", "4096"]["verdict"] == "reached", "the forward is right although a gradient is not"
    assert core["backward", "bf16", "256", "4096"]["verdict"] == "wrong"
    assert core["backward", "bf16", "256", "65536"]["verdict"] == "OOM"
    assert core["backward", "bf16", "256", "512"]["time (µs)"] == "time limit"
    assert core["backward", "bf16", "128", "512"]["verdict"] == "not measured"
    assert core["forward", "fp16", "128", "4096"]["verdict"] == "-", "no target"


def test_a_share_below_its_target_is_missed():
    written = fixture()
    written["points"].append(timed(Cell("core", "backward", 4096, 128, "bf16", "triton"), 0.49))
    table = linformer_kernels_table(written)
    assert rows(table, "core")["backward", "bf16", "128", "4096"]["floor / time"] == "49% (≥ 50%)"
    assert rows(table, "core")["backward", "bf16", "128", "4096"]["verdict"] == "missed"
    assert "missed: core backward r=128 n=4096; " in table


def test_layer_rows_of_the_fixture():
    layer = {row[:3]: cells for row, cells in rows(linformer_kernels_table(fixture()), "layer").items()}
    short, long, training = layer["forward", "128", "512"], layer["forward", "128", "65536"], layer["training", "256", "16384"]
    assert (short["best SDPA (µs)"], short["ratio"], short["verdict"]) == ("400.0 ± 0.0 (cudnn)", "1.18 (≥ 1.4)", "missed")
    assert (short["ours by SDPA (µs)"], short["ratio in loop"]) == ("1000 ± 0", "1.18")
    assert (long["ratio"], long["verdict"]) == ("100.01 (≥ 70)", "reached, unchecked")
    assert (training["peak (MiB)"], training["SDPA's"]) == ("100", "150")
    assert (training["ratio 2"], training["verdict 2"]) == ("1.50 (≥ 1.4)", "reached")
    assert layer["training", "256", "65536"]["verdict 2"] == "not measured"


def test_lengths_results_and_sums_of_the_fixture():
    table = linformer_kernels_table(fixture())
    assert rows(table, "n=65536 over n=4096")["core", "forward", "128", "1.20"]["verdict"] == "missed"
    results = list(rows(table, "results").values())
    assert [row["verdict"] for row in results] == ["right", "wrong", "failed", "right"]
    assert results[1]["worst gradient / bound"] == "NaN / 4.0e-03 (query)"
    assert "4 cases, 1 wrong" in table
    assert "failed: CompilationError: at 1:2" in table
    assert "wrong: errors {'out': 0.001, 'query': None}, equal on two runs: True" in table
    assert "copy 4.30 TB/s, bf16 product 790 TFLOP/s" in table
    last = table.rpartition("\n\n")[2]
    assert last.startswith("**Targets: 5 of 40 reached.**")
    assert "\n- wrong: core backward r=256 n=4096" in last
    assert "\n- OOM: core backward r=256 n=65536; core backward r=256 n=65536 over n=4096" in last


def test_two_runs_that_differ_are_wrong_both_ways():
    written = fixture()
    written["points"][1] = check("core", 128, same=False, verdict="wrong")
    assert rows(linformer_kernels_table(written), "core")["forward", "bf16", "128", "4096"]["verdict"] == "wrong"


def test_floors_are_of_the_call_that_timed():
    written = fixture()
    written["points"].append({**ceilings(), "key": "ceilings|2", "call": 2, "bytes": 2 * 4.3e12, "half_flops": 2 * 790e12})
    assert rows(linformer_kernels_table(written), "core")["forward", "bf16", "128", "4096"]["floor"] == "48.3"
    written["points"][5]["call"] = 2
    assert rows(linformer_kernels_table(written), "core")["forward", "bf16", "128", "4096"]["floor"] == "26.0"


def test_a_measurement_that_was_cut_short_says_so():
    assert linformer_kernels_table({**fixture(), "complete": False}).startswith("**Not complete")
