"""The contract and the registry: sizes, big-O, errors, registration, choice of implementation and plugins."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import EntryPoint
from typing import Any

import pytest
import torch
from originals import Linear, NoOptions, linear_cost
from torch import Tensor

from attn_zoo import attentions, build_attention, card, load_plugins, register_attention, registry
from attn_zoo.contract import (
    AUTO_ORDER,
    Attention,
    Capabilities,
    Geometry,
    Growth,
    UnknownNameError,
    UnsupportedError,
    hide_rows_without_keys,
    unavailable,
)
from attn_zoo.registry import make_options

SQUARE = Geometry(heads=2, head_dim=4, queries=6, keys=6)
FACTS: dict[str, Any] = {
    "title": "A",
    "paper": "none",
    "equation": "1",
    "time": "n d^2",
    "memory": "n d",
    "options": NoOptions,
    "can": Capabilities(causal=False, key_padding=True, cross=False, any_length=True),
    "cost": linear_cost,
}


@pytest.fixture
def scratch_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a test register what it likes and leave no trace."""
    load_plugins()
    monkeypatch.setattr(registry, "_ATTENTIONS", dict(registry._ATTENTIONS))
    monkeypatch.setattr(registry, "_TASKS", dict(registry._TASKS))
    monkeypatch.setattr(registry, "_LOADED", set(registry._LOADED))
    monkeypatch.setattr(registry, "_FAILURES", dict(registry._FAILURES))


# --- sizes and big-O -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["heads", "head_dim", "queries", "keys"])
def test_geometry_refuses_what_counts_nothing(name: str) -> None:
    sizes: dict[str, Any] = {"heads": 2, "head_dim": 4, "queries": 6, "keys": 6, name: 0}
    with pytest.raises(ValueError, match=rf"geometry\.{name} counts something, so it is at least 1; got 0"):
        Geometry(**sizes)


def test_geometry_refuses_causality_between_unequal_lengths() -> None:
    with pytest.raises(ValueError, match="as many queries as keys to know which keys are past; got 5 and 6"):
        Geometry(2, 4, 5, 6, causal=True)


def test_inner_dim_is_the_width_of_all_heads() -> None:
    assert Geometry(3, 5, 1, 1).inner_dim == 15


@pytest.mark.parametrize(
    ("text", "exponent", "has_log"),
    [
        ("n d", 1, False),
        ("n^2 d", 2, False),
        ("n k d + k d^2", 1, False),
        ("k d", 0, False),
        ("n log n d", 1, True),
        ("w n d + n n", 2, False),
        ("n1 d", 0, False),
        ("log n", 0, True),
    ],
)
def test_growth_reads_its_largest_power(text: str, exponent: int, has_log: bool) -> None:
    growth = Growth(text)
    assert (growth.exponent, growth.has_log, str(growth)) == (exponent, has_log, f"O({text})")


@pytest.mark.parametrize("text", ["", "n +", "2 n", "n^-1", "n^d", "O(n)", "n * d"])
def test_growth_refuses_what_it_cannot_read(text: str) -> None:
    with pytest.raises(ValueError, match=re.escape(repr(text))):
        Growth(text)


def test_examples_without_keys_are_zeroed_and_others_left() -> None:
    out = torch.ones(2, 1, 3, 4)
    hidden = hide_rows_without_keys(out, torch.tensor([[False, False], [False, True]]))
    assert hidden[0].eq(0).all()
    assert hidden[1].eq(1).all()
    assert hide_rows_without_keys(out, None) is out


# --- errors ----------------------------------------------------------------------------------------------------------


def test_unknown_names_are_answered_with_the_nearest() -> None:
    error = UnknownNameError("colour", "gren", ["red", "green"])
    assert str(error) == "no colour is called 'gren'; did you mean 'green'? Known: green, red"
    assert (error.kind, error.name, error.known) == ("colour", "gren", ("green", "red"))
    assert str(UnknownNameError("colour", "x", [])) == "no colour is called 'x'. Known: none"
    assert isinstance(error, LookupError)
    assert not isinstance(error, KeyError)


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda: card("sotfmax"), "no attention is called 'sotfmax'; did you mean 'softmax'?"),
        (lambda: registry.task_card("no such task"), "no task is called 'no such task'"),
        (
            lambda: build_attention("softmax", SQUARE, dropuot=0.1),
            "no option of attention softmax is called 'dropuot'; did you mean 'dropout'?",
        ),
        (
            lambda: build_attention("softmax", SQUARE, implementation="spda"),
            "no implementation of softmax is called 'spda'; did you mean 'sdpa'?",
        ),
        (lambda: build_attention("none", SQUARE, dropout=0.1), "no option of attention none is called 'dropout'. Known: none"),
    ],
)
def test_unknown_names_are_refused(ask: Callable[[], object], message: str) -> None:
    with pytest.raises(UnknownNameError, match=re.escape(message)):
        ask()


def test_rules_of_options_reach_the_caller() -> None:
    with pytest.raises(ValueError, match=r"softmax\.dropout is the share of weights set to zero, so it lies in \[0, 1\); got 1.5"):
        build_attention("softmax", SQUARE, dropout=1.5)


def test_make_options_fills_in_defaults() -> None:
    @dataclass
    class Kind:
        width: int = 3
        deep: bool = False

    assert make_options("thing", Kind, {"deep": True}) == Kind(3, True)
    with pytest.raises(UnknownNameError, match="no option of thing is called 'widht'; did you mean 'width'"):
        make_options("thing", Kind, {"widht": 3})


# --- registration ----------------------------------------------------------------------------------------------------


def fresh() -> type[Attention]:
    class Fresh(Linear):
        """A class of its own each time."""

    return Fresh


@pytest.mark.usefixtures("scratch_registry")
def test_registered_attention_is_found_and_built() -> None:
    cls = register_attention("fresh", **FACTS)(fresh())
    assert "fresh" in attentions()
    assert card("fresh") is cls.card
    assert card("fresh").origin == f"{__name__}:fresh.<locals>.Fresh"
    built = build_attention("fresh", SQUARE)
    assert type(built) is cls
    assert built.implementation == "eager"


@pytest.mark.usefixtures("scratch_registry")
def test_second_registration_of_a_name_is_refused() -> None:
    register_attention("fresh", **FACTS)(fresh())
    with pytest.raises(ValueError, match=r"attention 'fresh' is registered twice: by .*Fresh and by .*Fresh; choose another name"):
        register_attention("fresh", **FACTS)(fresh())


@pytest.mark.usefixtures("scratch_registry")
def test_unusable_implementations_are_refused_when_registering() -> None:
    with pytest.raises(ValueError, match=r"lists implementation 'sdpa' but .*Fresh has no method attend_sdpa"):
        register_attention("fresh", implementations=("eager", "sdpa"), **FACTS)(fresh())
    with pytest.raises(ValueError, match="implementation 'cuda' is none of eager, sdpa, flex, xformers, triton"):
        register_attention("fresh", implementations=("eager", "cuda"), **FACTS)(fresh())

    class Empty(Attention): ...

    with pytest.raises(ValueError, match=r"lists implementation 'eager' but .*Empty has no method attend"):
        register_attention("fresh", **FACTS)(Empty)
    assert "fresh" not in attentions()


@pytest.mark.usefixtures("scratch_registry")
def test_growth_that_cannot_be_read_is_refused_when_registering() -> None:
    with pytest.raises(ValueError, match="growth 'quadratic!'"):
        register_attention("fresh", **{**FACTS, "time": "quadratic!"})(fresh())


# --- implementations -------------------------------------------------------------------------------------------------


class Several(Linear):
    """Offers three implementations and refuses one of them to causal geometries."""

    def attend_sdpa(self, query: Tensor, key: Tensor, value: Tensor, key_valid: Tensor | None) -> Tensor:
        return self.attend(query, key, value, key_valid)

    attend_triton = attend_sdpa

    @classmethod
    def refuses(cls, implementation: str, geometry: Geometry, options: Any) -> str | None:
        return "sdpa takes no causal geometry here" if implementation == "sdpa" and geometry.causal else None


@pytest.fixture
def several(scratch_registry: None) -> None:
    can = Capabilities(causal=True, key_padding=True, cross=False, any_length=True)
    register_attention("several", implementations=("eager", "sdpa", "triton"), **{**FACTS, "can": can})(Several)


@pytest.mark.usefixtures("several")
def test_auto_takes_the_first_that_device_and_options_allow(monkeypatch: pytest.MonkeyPatch) -> None:
    causal = Geometry(2, 4, 6, 6, causal=True)
    assert AUTO_ORDER.index("triton") < AUTO_ORDER.index("sdpa") < AUTO_ORDER.index("eager")
    assert build_attention("several", SQUARE, implementation="auto").implementation == "sdpa"
    assert build_attention("several", causal, implementation="auto").implementation == "eager"
    monkeypatch.setattr(registry, "unavailable", lambda name, device: None)
    assert build_attention("several", SQUARE, implementation="auto", device="cuda").implementation == "triton"
    monkeypatch.setattr(registry, "unavailable", lambda name, device: f"no {name} on {device.type}")
    with pytest.raises(UnknownNameError, match="no implementation of several that runs on cpu is called 'auto'"):
        build_attention("several", SQUARE, implementation="auto")


@pytest.mark.usefixtures("several")
def test_refused_implementation_says_why() -> None:
    with pytest.raises(UnsupportedError, match="sdpa takes no causal geometry here"):
        build_attention("several", Geometry(2, 4, 6, 6, causal=True), implementation="sdpa")


@pytest.mark.usefixtures("several")
def test_implementation_of_another_device_is_refused_when_called() -> None:
    module = build_attention("several", SQUARE, implementation="triton")
    with pytest.raises(
        UnsupportedError, match=r"triton runs on CUDA tensors only.*choose another implementation of eager, sdpa, triton"
    ):
        module(*(torch.zeros(1, 2, 6, 4),) * 3)


def test_unavailable_names_the_missing_package(monkeypatch: pytest.MonkeyPatch) -> None:
    assert unavailable("eager", torch.device("cpu")) is None
    assert unavailable("flex", torch.device("cuda")) is None
    assert "CUDA tensors only" in str(unavailable("flex", torch.device("cpu")))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert unavailable("xformers", torch.device("cuda")) == "the package 'xformers' is not installed"


# --- plugins ---------------------------------------------------------------------------------------------------------

BROKEN = """
from attn_zoo import register_attention
from test_contract import FACTS, fresh
register_attention("half_done", **FACTS)(fresh())
raise RuntimeError("the disk is full")
"""
SOUND = """
from attn_zoo import register_attention
from test_contract import FACTS, fresh
register_attention("from_a_plugin", **FACTS)(fresh())
"""


@pytest.mark.usefixtures("scratch_registry")
def test_broken_plugin_registers_nothing_and_is_reported(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "broken_plugin.py").write_text(BROKEN)
    (tmp_path / "sound_plugin.py").write_text(SOUND)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setitem(sys.modules, "test_contract", sys.modules[__name__])
    before_attentions, before_tasks = attentions(), registry.task_names()
    modules = {"broken": "broken_plugin", "sound": "sound_plugin", "gone": "no_such_module"}
    points = [EntryPoint(name, module, registry.ENTRY_POINT_GROUP) for name, module in modules.items()]
    monkeypatch.setattr(registry, "entry_points", lambda group: points if group == registry.ENTRY_POINT_GROUP else [])
    try:
        failures = load_plugins()
        assert failures["broken"].startswith("broken_plugin: RuntimeError: the disk is full (")
        assert f"{tmp_path / 'broken_plugin.py'}:5)" in failures["broken"]
        assert failures["gone"].startswith("no_such_module: ModuleNotFoundError: No module named 'no_such_module' (")
        assert "sound" not in failures
        assert set(attentions()) == {*before_attentions, "from_a_plugin"}
        assert registry.task_names() == before_tasks
        assert load_plugins() == failures, "a plugin is loaded once"
        with pytest.raises(UnknownNameError, match="half_done"):
            card("half_done")
    finally:
        for name in ("broken_plugin", "sound_plugin"):
            sys.modules.pop(name, None)
