"""Entries of the table compile for sm_90, fit its shared memory and use its matrix instruction. No GPU is needed."""

from __future__ import annotations

from typing import Any

import pytest

from kernels.compiling import SHARED_LIMIT, reports_of

# Bytes that a thread may spill to local memory, the larger of Triton 3.6 and 3.9: kernel, dtype, form, tile -> bytes.
SPILLS = {
    ("attend", "bf16", "random", (64, 256, 32)): 96,
    ("attend", "bf16", "ragged", (64, 256, 32)): 64,
    ("attend", "bf16", "ragged", (64, 256, 64)): 192,
    ("attend_backward", "bf16", "plain", (64, 256, 32)): 32,
    ("attend_backward", "bf16", "plain", (32, 256, 64)): 8,
    ("attend_backward", "bf16", "random", (64, 64, 128)): 72,
    ("attend_backward", "bf16", "random", (64, 256, 32)): 112,
    ("attend_blocks", "fp32", "random", (64, 32, 128)): 96,
    ("attend_blocks_backward_query", "fp32", "plain", (64, 32, 128)): 688,
    ("attend_blocks_backward_query", "fp32", "random", (64, 32, 128)): 752,
    ("attend_blocks_backward_key_value", "bf16", "plain", (64, 128, 128)): 16,
    ("attend_blocks_backward_key_value", "bf16", "random", (64, 128, 128)): 56,
    ("attend_blocks_backward_key_value", "fp32", "random", (32, 64, 64)): 88,
    ("attend_blocks_backward_key_value", "fp32", "ragged", (32, 64, 64)): 32,
    ("attend_blocks_backward_key_value", "fp32", "plain", (32, 64, 128)): 880,
    ("attend_blocks_backward_key_value", "fp32", "random", (32, 64, 128)): 936,
}


@pytest.fixture(scope="module", params=["every form", pytest.param("every entry", marks=pytest.mark.exhaustive)])
def reports(request) -> list[dict[str, Any]]:
    """Reports of kernels, compiled in a subprocess with the interpreter off: an entry of each in every form, or every entry."""
    return reports_of("compile_table", *(["--entries"] if request.param == "every entry" else []))


def name(report: dict[str, Any]) -> str:
    case = report["case"]
    return f"{case['kernel']} {case['dtype']} {case['form']} {tuple(case['tile'].values())}: {report['report']}"


def test_every_kernel_and_form_is_there(reports):
    forms = {(report["case"]["kernel"], report["case"]["form"]) for report in reports}
    kernels = {kernel for kernel, _ in forms}
    assert len(kernels) == 7
    assert forms == {(kernel, form) for kernel in kernels for form in ("plain", "random", "ragged", "ones")}


def test_fits_in_shared_memory(reports):
    too_large = [name(report) for report in reports if report["report"]["shared"] > SHARED_LIMIT]
    assert not too_large


def test_values_stay_in_registers(reports):
    spilled = []
    for report in reports:
        case = report["case"]
        if case["form"] == "ones" or case["precision"] == "tf32":
            continue
        key = (case["kernel"], case["dtype"].replace("fp16", "bf16"), case["form"], tuple(case["tile"].values())[:3])
        if report["report"]["stack"] > SPILLS.get(key, 0):
            spilled.append(name(report))
    assert not spilled


def test_uses_the_matrix_instruction_of_hopper(reports):
    wrong = [name(report) for report in reports if not report["report"]["wgmma"] or report["report"]["mma"]]
    assert not wrong


def test_loads_sixteen_bytes_at_a_time(reports):
    narrow = [name(report) for report in reports if report["case"]["form"] != "ones" and not report["report"]["wide_loads"]]
    assert not narrow
