"""flash-linear-attention's kernels compile for sm_90 as our ``fla`` layers launch them, forward and backward. No GPU is needed."""

from __future__ import annotations

from typing import Any

import pytest

from attn_zoo import attentions, card
from kernels.compiling import SHARED_LIMIT, reports_of

pytest.importorskip("fla", reason="fla-core is not installed (extra: gpu or peers)")

MECHANISMS = [name for name in attentions() if "fla" in card(name).implementations]


@pytest.fixture(scope="module")
def reports() -> list[dict[str, Any]]:
    """Reports of the kernels of all mechanisms."""
    return reports_of("compile_fla", *MECHANISMS)


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_forward_and_backward_kernels_are_compiled(mechanism, reports):
    kernels = {report["kernel"] for report in reports if report["mechanism"] == mechanism}
    assert any("fwd" in kernel for kernel in kernels), kernels
    assert any("bwd" in kernel for kernel in kernels), kernels


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_every_kernel_compiles_and_fits_in_shared_memory(mechanism, reports):
    of_mechanism = [report for report in reports if report["mechanism"] == mechanism]
    failures = {report["kernel"]: report["failure"] for report in of_mechanism if "failure" in report}
    assert not failures
    too_large = [report for report in of_mechanism if report["report"]["shared"] > SHARED_LIMIT]
    assert not too_large
