"""Every registered attention, plugins included, against every check of the conformance kit. The compiler makes one graph of it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from attn_zoo import attentions
from attn_zoo.conformance.pytest_support import parametrize_with_checks


@parametrize_with_checks(attentions())
def test_attention_conforms(check: Callable[[], None], request: pytest.FixtureRequest) -> None:
    if not request.node.callspec.id.endswith("[default]-eager-compiled_agrees"):
        return check()
    from torch._dynamo.utils import counters

    counters.clear()
    check()
    assert counters["frames"] and not counters["graph_break"]
