"""Imports point downward only: every import of the zoo is allowed for its room (top-level package or module)."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

ALLOWED = {
    "shapes": set(),
    "checks": set(),
    "escapes": set(),
    "grouping": set(),
    "result_files": set(),
    "terminal": {"escapes"},
    "deaths": set(),
    "outside": set(),
    "process_state": {"deaths"},
    "plugin_files": {"escapes"},
    "plugin_imports": {"deaths", "escapes", "outside", "process_state"},
    "contract": {
        "checks",
        "grouping",
        "precision",
        "shapes",
    },  # the dtype of products under autocast, on which an implementation may depend
    # attention only to register the built-in entries, inside load_plugins
    "registry": {"checks", "escapes", "contract", "attention", "plugin_files", "plugin_imports", "process_state"},
    "rows": {"contract", "registry"},
    "attention": {"contract", "registry", "kernels", "precision", "shapes"},
    "precision": set(),
    "kernels": {"contract", "precision", "shapes"},
    "short_convolution": set(),
    "layer": {"checks", "contract", "precision", "registry", "short_convolution"},
    "integrations": {"contract", "grouping", "registry", "layer", "rows", "short_convolution"},
    "encoder": {"contract", "layer", "integrations", "rows"},
    "count": {"contract", "registry", "layer", "encoder"},
    "bench": {"contract", "registry", "count", "integrations", "plotting", "published", "rows", "terminal"}
    | {"checks", "process_state", "result_files"},
    "records": {"checks", "grouping", "plugin_files"},
    "published": set(),
    "plotting": {"escapes"},
    "reference": set(),
    "analysis": {"contract", "registry", "rows", "data", "encoder", "count", "grouping", "records", "plotting", "terminal"},
    # attention, because E and F are initialised from measurements
    "transplant": {
        "contract",
        "registry",
        "attention",
        "bench",
        "count",
        "rows",
        "data",
        "grouping",
        "integrations",
        "analysis",
        "leaderboard",
        "plotting",
        "result_files",
        "terminal",
    },
    "scaffold": {"checks", "registry"},
    "runner": {"checks", "contract", "registry", "layer", "encoder", "count", "records", "rows"}
    | {"deaths", "escapes", "outside", "plugin_imports", "process_state"},
    "leaderboard": {"checks", "escapes", "grouping", "records", "plotting", "published", "rows", "terminal"},
    "recommend": {
        "checks",
        "contract",
        "grouping",
        "plugin_files",
        "registry",
        "rows",
        "layer",
        "count",
        "leaderboard",
        "terminal",
    },
    "conformance": {"contract", "registry", "count", "data", "escapes", "plugin_files", "plugin_imports", "process_state", "rows"},
    "cli": {
        "contract",
        "registry",
        "data",
        "bench",
        "count",
        "records",
        "runner",
        "leaderboard",
        "published",
        "recommend",
        "reference",
    }
    | {"conformance", "analysis", "grouping", "layer", "plotting", "rows", "scaffold", "terminal", "transplant", "plugin_files"}
    | {"checks", "deaths", "escapes", "plugin_imports", "process_state", "result_files"},
    "configs": set(),
    "data": {"contract"},
    "tasks": {"contract", "registry", "data"},
}


def sources() -> list[tuple[str, Path]]:
    zoo = [(p.relative_to(ROOT / "attn_zoo").parts[0].removesuffix(".py"), p) for p in (ROOT / "attn_zoo").rglob("*.py")]
    outside = [(room, p) for room in ("tasks", "configs") for p in (ROOT / room).rglob("*.py")]
    return sorted((room, p) for room, p in [*zoo, *outside] if room != "__init__")


def imported_rooms(source: str) -> Iterator[str]:
    """Yield the rooms of the zoo that a module imports, at module level or inside functions."""
    for node in ast.walk(ast.parse(source)):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            names = [node.module] if node.module != "attn_zoo" else [f"attn_zoo.{alias.name}" for alias in node.names]
        yield from (name.split(".")[1] for name in names if name.startswith("attn_zoo."))


@pytest.mark.parametrize(("room", "path"), sources(), ids=lambda value: str(value).removeprefix(f"{ROOT}/"))
def test_imports_point_downward(room, path):
    assert room in ALLOWED, f"{room} is a new room; decide in this test what it may import"
    upward = set(imported_rooms(path.read_text(encoding="utf-8"))) - ALLOWED[room] - {room}
    assert not upward, f"{path.relative_to(ROOT)} imports {sorted(upward)}, but {room} may only import {sorted(ALLOWED[room])}"


@pytest.mark.parametrize("room", ["leaderboard", "published", "records"])
def test_tables_need_no_tensor_library(room):
    for path in (ROOT / "attn_zoo" / room).rglob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        names = [a.name for n in tree.body if isinstance(n, ast.Import) for a in n.names]
        names += [n.module or "" for n in tree.body if isinstance(n, ast.ImportFrom)]
        assert not any(name.split(".")[0] == "torch" for name in names), f"{path.name} imports torch when it is loaded"
