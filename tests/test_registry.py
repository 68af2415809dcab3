"""The registry: registration, choice of implementation and plugins."""

from __future__ import annotations

import os
import sys
from dataclasses import make_dataclass, replace
from importlib.metadata import EntryPoint
from typing import Any

import pytest
import torch
from torch import Tensor

from attn_zoo import attentions, build_attention, card, load_plugins, register_attention, registry
from attn_zoo.attention.linear import linear
from attn_zoo.attention.linear.linear import Linear
from attn_zoo.contract import (
    Attention,
    Capabilities,
    Geometry,
    UnknownNameError,
    UnsupportedError,
    attention_card,
    auto_may_take,
    auto_order,
    unavailable,
)

SQUARE = Geometry(heads=2, head_dim=4, queries=6, keys=6)
FACTS: dict[str, Any] = {
    "title": "A",
    "paper": "none",
    "equation": "1",
    "time": "n d^2",
    "memory": "n d",
    "options": linear.Options,
    "can": Capabilities(causal=False, key_padding=True, cross=False, any_length=True),
    "cost": linear.cost,
}


@pytest.fixture
def scratch_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Restore the registry after a test, so that a test can register anything."""
    load_plugins()
    monkeypatch.setattr(registry, "_ATTENTIONS", dict(registry._ATTENTIONS))
    monkeypatch.setattr(registry, "_TASKS", dict(registry._TASKS))
    monkeypatch.setattr(registry, "_LOADED", set(registry._LOADED))
    monkeypatch.setattr(registry, "_FAILURES", dict(registry._FAILURES))


# --- registration ----------------------------------------------------------------------------------------------------


def fresh() -> type[Attention]:
    class Fresh(Linear):
        """New class at each call."""

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
    with pytest.raises(
        ValueError, match=r"attention 'fresh' must be registered once; got it from .*Fresh and from .*Fresh. Choose another name"
    ):
        register_attention("fresh", **FACTS)(fresh())


@pytest.mark.usefixtures("scratch_registry")
def test_unusable_implementations_are_refused_when_registering() -> None:
    with pytest.raises(ValueError, match=r"lists the implementation 'sdpa', so .*Fresh must have a method attend_sdpa"):
        register_attention("fresh", implementations=("eager", "sdpa"), **FACTS)(fresh())
    with pytest.raises(ValueError, match=r"each implementation must be one of eager, tiled, sdpa, .*; got 'cuda'"):
        register_attention("fresh", implementations=("eager", "cuda"), **FACTS)(fresh())

    class Empty(Attention): ...

    with pytest.raises(ValueError, match=r"lists the implementation 'eager', so .*Empty must have a method attend"):
        register_attention("fresh", **FACTS)(Empty)
    assert "fresh" not in attentions()


@pytest.mark.usefixtures("scratch_registry")
def test_steps_that_are_not_written_are_refused_when_registering() -> None:
    class Bare(Attention):
        def attend(self, query: Tensor, key: Tensor, value: Tensor, key_valid: Tensor | None) -> Tensor:
            return value

    class Half(Bare):
        def initial_state(self, batch: int, **_: Any) -> Any:
            return batch

    facts = {**FACTS, "can": replace(FACTS["can"], causal=True, stepwise=True)}
    with pytest.raises(ValueError, match=r"'fresh' declares stepwise, so .*Bare must have a method initial_state"):
        register_attention("fresh", **facts)(Bare)
    with pytest.raises(ValueError, match=r"'fresh' declares stepwise, so .*Half must have a method advance"):
        register_attention("fresh", **facts)(Half)
    assert "fresh" not in attentions()


@pytest.mark.usefixtures("scratch_registry")
@pytest.mark.parametrize("name", ["device", "causal", "bias"])
def test_options_that_would_hide_another_argument_are_refused(name: str) -> None:
    options = make_dataclass("Options", [(name, int, 3)])
    with pytest.raises(ValueError, match=f"an option cannot be called '{name}'"):
        register_attention("fresh", **{**FACTS, "options": options})(fresh())
    assert "fresh" not in attentions()


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
    order = auto_order(torch.device("cuda"))
    assert order == ("triton", "fla", "flex", "sdpa", "xformers", "eager")
    assert auto_order(torch.device("cpu")) == ("sdpa", "tiled", "eager")
    assert build_attention("several", SQUARE, implementation="auto").implementation == "sdpa"
    assert build_attention("several", causal, implementation="auto").implementation == "eager"
    monkeypatch.setattr(attention_card, "auto_may_take", lambda *_: True)
    assert build_attention("several", SQUARE, implementation="auto", device="cuda").implementation == "triton"
    monkeypatch.setattr(attention_card, "auto_may_take", lambda *_: False)
    with pytest.raises(UnknownNameError, match="no implementation of several that runs on cpu is called 'auto'"):
        build_attention("several", SQUARE, implementation="auto")


def test_auto_chooses_anew_for_tensors_of_another_device() -> None:
    geometry = Geometry(2, 8, 32, 32)
    module = build_attention("linformer", geometry, implementation="auto", projected_length=8)
    assert (module.implementation, module.chosen_for) == ("sdpa", "cpu")
    tensors = [torch.randn(1, 2, 32, 8) for _ in range(3)]
    expected = module(*tensors)
    module.use("eager")
    module.chosen_for = "cuda"  # as if it had been built there
    module.to("meta")(*(tensor.to("meta") for tensor in tensors))
    assert module.implementation == "eager", "shapes alone choose nothing"
    module = build_attention("linformer", geometry, implementation="auto", projected_length=8)
    module.use("eager")
    assert {part.implementation for part in module.modules() if hasattr(part, "implementation")} == {"eager"}
    module.chosen_for = "cuda"
    assert module(*tensors).shape == expected.shape
    assert (module.implementation, module.chosen_for) == ("sdpa", "cpu")
    assert {part.implementation for part in module.modules() if hasattr(part, "implementation")} == {"sdpa"}


def test_an_implementation_that_a_caller_takes_in_place_of_auto_is_kept_on_another_device() -> None:
    module = build_attention("topk", Geometry(2, 8, 32, 32), implementation="auto", device="meta")
    assert (module.implementation, module.chosen_for) == ("eager", "meta")
    module.use("eager")
    module(*[torch.randn(1, 2, 32, 8) for _ in range(3)])
    assert (module.implementation, module.chosen_for) == ("eager", None)


def test_a_named_implementation_stays_and_another_can_be_taken() -> None:
    module = build_attention("topk", Geometry(2, 8, 32, 32), implementation="eager")
    tensors = [torch.randn(1, 2, 32, 8) for _ in range(3)]
    plain = module(*tensors)
    assert module.chosen_for is None and module.implementation == "eager"
    module.use("tiled")
    torch.testing.assert_close(module(*tensors), plain)
    with pytest.raises(UnknownNameError, match="implementation of topk"):
        module.use("triton")


@pytest.mark.usefixtures("several")
def test_implementation_of_another_device_is_refused_when_called(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    module = build_attention("several", SQUARE, implementation="triton")
    with pytest.raises(
        UnsupportedError, match=r"triton runs only on a CUDA GPU.*Choose another implementation of eager, sdpa, triton"
    ):
        module(*(torch.zeros(1, 2, 6, 4),) * 3)


def test_interpreted_kernels_run_on_a_cpu_but_are_never_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu = torch.device("cpu")
    for interpreted in ("0", "1"):
        monkeypatch.setenv("TRITON_INTERPRET", interpreted)
        assert (unavailable("triton", cpu) is None) == (interpreted == "1")
        assert not auto_may_take("triton", cpu)
    assert auto_may_take("sdpa", cpu)
    assert not auto_may_take("flex", cpu)


def test_unavailable_names_the_missing_package(monkeypatch: pytest.MonkeyPatch) -> None:
    assert unavailable("eager", torch.device("cpu")) is None
    assert unavailable("flex", torch.device("cuda")) is None
    assert "only on a CUDA GPU" in str(unavailable("flex", torch.device("cpu")))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert unavailable("xformers", torch.device("cuda")) == "the package 'xformers' is not installed"
    assert unavailable("fla", torch.device("cuda")) == "the package 'fla-core' (extra gpu) is not installed"


def test_fla_takes_one_type_and_auto_knows_it(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = torch.device("cuda")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name)
    assert unavailable("fla", gpu) is None
    assert unavailable("fla", gpu, torch.bfloat16) is None
    told = "the implementation fla needs tensors of torch.bfloat16, but these are torch.float32 (autocast converts them)"
    assert unavailable("fla", gpu, torch.float32) == told
    assert auto_may_take("fla", gpu, torch.bfloat16)
    assert not auto_may_take("fla", gpu), "torch's default type is float32"
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "triton" else name)
    assert unavailable("fla", gpu) == "the package 'triton' is not installed"


# --- plugins ---------------------------------------------------------------------------------------------------------

BROKEN = """
from attn_zoo import register_attention
from test_registry import FACTS, fresh
register_attention("half_done", **FACTS)(fresh())
raise RuntimeError("the disk is full")
"""
SOUND = """
from attn_zoo import register_attention
from test_registry import FACTS, fresh
register_attention("from_a_plugin", **FACTS)(fresh())
"""


def test_plugins_are_looked_for_once_and_again_where_the_path_is_another(monkeypatch: pytest.MonkeyPatch) -> None:
    attentions()
    looked: list[str] = []

    def look(group: str) -> list[EntryPoint]:
        looked.append(group)
        return []

    monkeypatch.setattr(registry, "entry_points", look)
    for _ in range(3):
        card("softmax")
        attentions()
    assert looked == [], "the metadata of all packages take too long to be read for every card"
    monkeypatch.syspath_prepend("/somewhere/else")
    card("softmax")
    assert looked == [], "no plugin replaces a built-in attention"
    attentions()
    assert looked == [registry.ENTRY_POINT_GROUP]


@pytest.mark.usefixtures("scratch_registry")
def test_broken_plugin_registers_nothing_and_is_reported(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "broken_plugin.py").write_text(BROKEN)
    (tmp_path / "sound_plugin.py").write_text(SOUND)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setitem(sys.modules, "test_registry", sys.modules[__name__])
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


HOSTILE = {
    "leaving": "raise SystemExit(3)",
    "climbing": "register_attention('../../x', **FACTS)(fresh())",
    "nameless": "register_attention('', **FACTS)(fresh())",
    "several": "register_attention('a b,c=1', **FACTS)(fresh())",
    "numbered": "register_attention('5', **FACTS)(fresh())",
    "coloured": "register_attention('fine', **{**FACTS, 'title': '\\x1b[31mred'})(fresh())",
    "after": "register_attention('half_done', **FACTS)(fresh()); register_attention('\\x1b[2J', **FACTS)(fresh())",
}


@pytest.mark.usefixtures("scratch_registry")
def test_a_plugin_that_leaves_or_registers_no_name_is_left_out(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    before = attentions()
    for name, code in HOSTILE.items():
        header = "from attn_zoo import register_attention\nfrom test_registry import FACTS, fresh\n"
        (tmp_path / f"hostile_{name}.py").write_text(f"{header}{code}\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setitem(sys.modules, "test_registry", sys.modules[__name__])
    points = [EntryPoint(f"\x1b[31m{name}", f"hostile_{name}", registry.ENTRY_POINT_GROUP) for name in HOSTILE]
    monkeypatch.setattr(registry, "entry_points", lambda group: points)
    failures = load_plugins()
    assert attentions() == before
    assert [name for name in failures if "hostile" in failures[name]] == [f"\\x1b[31m{name}" for name in HOSTILE]
    assert "\x1b" not in "".join([*failures, *failures.values()])
    assert "SystemExit: 3" in failures["\\x1b[31mleaving"] and "must be an identifier" in failures["\\x1b[31mclimbing"]
    assert "not contain control characters" in failures["\\x1b[31mcoloured"]


@pytest.mark.usefixtures("scratch_registry")
def test_a_file_that_fails_is_left_out_of_the_processes_that_this_one_starts(tmp_path, monkeypatch):
    (tmp_path / "file_that_leaves.py").write_text("raise SystemExit(3)\n")
    (tmp_path / "file_that_works.py").write_text("X = 1\n")
    files = [tmp_path / "file_that_leaves.py", tmp_path / "file_that_works.py"]
    monkeypatch.setenv("ATTN_ZOO_PLUGIN", os.pathsep.join(map(str, files)))
    failures = load_plugins()
    assert "SystemExit: 3" in failures[str(files[0])] and str(files[1]) not in failures
    assert os.environ["ATTN_ZOO_PLUGIN"] == str(files[1])
