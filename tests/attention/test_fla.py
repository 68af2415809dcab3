"""The ``fla`` implementations: outputs on a CPU by the package's plain references, refusals, and the choice of ``auto``."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from typing import Any

import fla_references
import pytest
import torch
from tiers import AGREEMENT, CORE, covering

from attn_zoo import Geometry, UnsupportedError, attentions, build_attention, card
from attn_zoo.conformance.attention_suite import attention_checks
from attn_zoo.conformance.harness import run_cases
from attn_zoo.conformance.requests import answers, draw
from attn_zoo.contract import FLA_DTYPE, unavailable
from attn_zoo.kernels import fla

pytest.importorskip("fla", reason="fla-core is not installed (extra: gpu or peers)")

N, D = 100, 9  # 9: the kernels need widths in multiples of 16, so it is padded
CPU, GPU = torch.device("cpu"), torch.device("cuda")
CASES: list[tuple[str, dict[str, Any], bool]] = [
    *(("linear", {"feature_map": name}, True) for name in ("elu", "relu", "squared_relu", "softmax")),
    ("cosformer", {}, True),
    ("performer", {}, True),
    ("performer", {"kernel": "relu"}, True),
    *(("gated_linear", {"temperature": t}, causal) for t in (1.0, 16.0) for causal in (False, True)),
    ("gated_linear", {"normalise": False}, True),
    ("gated_linear", {"feature_map": "none"}, True),
    *(("delta_rule", {"negative_eigenvalues": n}, causal) for n in (False, True) for causal in (False, True)),
    ("delta_rule", {"normalise": False}, True),
    *(("gated_delta_rule", {"negative_eigenvalues": n}, causal) for n in (False, True) for causal in (False, True)),
    ("gated_delta_rule", {"normalise": False}, True),
    *(("kda", {"normalise": normalise}, causal) for normalise in (False, True) for causal in (False, True)),
    *(("retention", {"rates": rates}, causal) for rates in ("retention", "lightning") for causal in (False, True)),
    *(("ssd", {"normalise": normalise}, causal) for normalise in (False, True) for causal in (False, True)),
]
NAMES = sorted({name for name, _, _ in CASES})
ENOUGH = ("linear", "gated_linear", "delta_rule")
"""Mechanisms that run the kit in bfloat16 before the exhaustive tier: without gates, with gates, and with the delta rule. Two other
tests compare every mechanism with ``eager``, with padding, and look at the types that every kernel gets."""
SINGLE = {"gated_linear", "performer", "gated_delta_rule", "kda", "retention", "ssd"}
"""Mechanisms whose reference computes in float32."""


def holes(n: int = N) -> torch.Tensor:
    valid = torch.arange(n) < torch.tensor([n, n // 2, 0])[:, None]
    valid[0, 2::5] = False
    valid[1, :7] = False
    return valid


def test_the_kernels_multiply_in_the_type_that_requests_are_held_to():
    assert fla.DTYPE is FLA_DTYPE


def test_every_mechanism_that_has_it_is_proved_here():
    assert [name for name in attentions() if "fla" in card(name).implementations] == NAMES


@pytest.mark.parametrize(("case", "scale"), covering(CASES, [1.0, 4.0]), ids=str)
def test_gives_what_eager_gives(case, scale, monkeypatch):
    name, options, causal = case
    dtype, allowed = (torch.float32, 2e-5) if name in SINGLE else (torch.float64, 1e-10)
    fla_references.on_a_cpu(monkeypatch, dtype)
    geometry = Geometry(2, D, N, N, causal)
    eager, fused = (build_attention(name, geometry, implementation=which, **options) for which in ("eager", "fla"))
    fused.load_state_dict(eager.state_dict())
    eager, fused = eager.double(), fused.to(dtype)
    request = draw(eager, dtype, CPU).changed(lambda _, tensor: scale * tensor)
    for valid in (None, holes()):
        padded = request.padded(valid)
        want, got = answers(padded.cast(torch.float64), eager), answers(padded, fused)
        for what in want:
            assert got[what].isfinite().all(), what
            gap, largest = (got[what] - want[what]).abs().max().item(), want[what].abs().max().item()
            assert gap <= allowed * max(1.0, largest), (what, gap, largest)


@pytest.mark.parametrize(
    ("name", "core"),
    [
        pytest.param(name, core, marks=() if core and name in ENOUGH else pytest.mark.exhaustive)
        for name in NAMES
        for core in (True, False)
    ],
)
def test_holds_the_contract_in_its_own_type(name, core, monkeypatch):
    """Run the kit in bfloat16: all checks on the default options, and the comparison with ``eager`` on the others, too."""
    fla_references.on_a_cpu(monkeypatch)
    cases = [case for case in attention_checks(name) if case.implementation == "fla"]
    cases = [case for case in cases if case.variant == "default" or case.check == AGREEMENT]
    report = run_cases(name, [case for case in cases if (case.check in CORE) == core])
    assert report.ok, report
    proved = {result.case.check for result in report.results if result.status == "passed"}
    assert len(proved) > 3
    wanted = {"implementation_agrees_with_eager", "padding_has_no_influence", "causal_output_ignores_the_future"}
    assert wanted <= proved or not core


@pytest.mark.parametrize("name", NAMES)
def test_products_are_taken_in_bfloat16_and_gates_in_float32(name, monkeypatch):
    fla_references.on_a_cpu(monkeypatch)
    seen = []

    def kernel(operator):
        def called(*tensors, **settings):
            seen.append([x.dtype for x in tensors])
            return fla_references.KERNELS[operator](*tensors, **settings)

        return called

    monkeypatch.setattr(fla, "kernel", kernel)
    module = build_attention(name, Geometry(2, D, N, N, True), implementation="fla")
    with torch.autocast("cpu", torch.bfloat16):
        draw(module, torch.float32, CPU)(module)
    assert seen
    for dtypes in seen:
        assert dtypes[:3] == [torch.bfloat16] * 3 and set(dtypes[3:]) <= {torch.float32}


def test_other_types_are_refused_unless_autocast_changes_them(monkeypatch):
    fla_references.on_a_cpu(monkeypatch)
    monkeypatch.setattr("attn_zoo.contract.attention.unavailable", lambda name, device, dtype: unavailable(name, GPU, dtype))
    module = build_attention("linear", Geometry(2, D, N, N, True), implementation="fla")
    for dtype in (torch.float16, torch.float32, torch.float64):
        with pytest.raises(
            UnsupportedError, match=f"linear: the implementation fla needs tensors of torch.bfloat16, but these are {dtype}"
        ):
            draw(module, dtype, CPU)(module)
    with torch.autocast("cpu", torch.bfloat16):
        assert draw(module, torch.float32, CPU)(module).dtype is torch.float32
    assert draw(module, torch.bfloat16, CPU)(module).dtype is torch.bfloat16


@pytest.mark.parametrize("name", NAMES)
def test_is_refused_on_a_cpu(name):
    module = build_attention(name, Geometry(2, D, N, N, True), implementation="fla")
    with pytest.raises(UnsupportedError, match=f"{name}: the implementation fla runs only on a CUDA GPU"):
        draw(module, torch.bfloat16, CPU)(module)


@pytest.mark.parametrize(
    ("name", "geometry", "words"),
    [
        ("linear", Geometry(2, D, N, N), "linear:fla must be causal"),
        ("cosformer", Geometry(2, D, N, N), "cosformer:fla must be causal"),
        ("performer", Geometry(2, D, N, N), "performer:fla must be causal"),
        *(
            (name, Geometry(2, 272, N, N, causal), f"{name}:fla must have a head_dim of at most 256; got 272")
            for name in ("delta_rule", "gated_delta_rule", "kda")
            for causal in (False, True)
        ),
    ],
)
def test_what_the_kernels_do_not_take_is_refused_by_name_and_not_taken_by_auto(name, geometry, words):
    with pytest.raises(UnsupportedError, match=words):
        build_attention(name, geometry, implementation="fla")
    taken = build_attention(name, geometry, implementation="auto", device=GPU, dtype=torch.bfloat16)
    assert taken.implementation == "eager"


@pytest.mark.parametrize("name", NAMES)
def test_auto_takes_it_on_a_gpu_in_bfloat16_where_it_is_installed(name, monkeypatch):
    def taken(device: torch.device, dtype: torch.dtype | None) -> str:
        return build_attention(name, Geometry(2, D, N, N, True), implementation="auto", device=device, dtype=dtype).implementation

    assert taken(GPU, torch.bfloat16) == "fla"
    assert taken(CPU, torch.bfloat16) != "fla"
    assert [taken(GPU, dtype) for dtype in (None, torch.float32, torch.float16)] == ["eager"] * 3
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "fla" else find_spec(name))
    assert taken(GPU, torch.bfloat16) == "eager"
    assert unavailable("fla", GPU) == "the package 'fla-core' (extra gpu) is not installed"


@pytest.mark.exhaustive
def test_the_kernels_that_are_called_are_there():
    """Run in a subprocess, because Triton decides at its first import whether it interprets."""
    program = """
import inspect
from attn_zoo.kernels.fla import kernel
tensors = {"linear_attn": "qkv", "gla": "qkvg", "delta_rule": ["q", "k", "v", "beta"]}
settings = {"linear_attn": {"scale": 1.0, "normalize": False}, "gla": {"scale": 1.0}, "delta_rule": {"scale": 1.0}}
for operator, names in tensors.items():
    parameters = inspect.signature(kernel(operator)).parameters
    assert list(parameters)[: len(names)] == list(names), (operator, parameters)
    assert set(settings[operator]) <= set(parameters), (operator, parameters)
"""
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", program], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
