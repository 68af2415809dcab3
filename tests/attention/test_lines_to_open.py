"""Number of lines of code that one mechanism takes in ``eager``: its own file and the helpers of ``attn_zoo.attention`` it imports.

Docstrings and empty lines do not count, because an explanation may be as long as it needs to be.
"""

from __future__ import annotations

import ast
import importlib.util
from pathlib import Path

import pytest

from attn_zoo import card

ROOM = "attn_zoo.attention"
"""Package whose lines count; contract and registry are read once, kernels and precision only for other implementations."""

BARS = dict.fromkeys(("linear", "performer", "reformer", "longformer", "nystrom", "gated_linear", "delta_rule"), 165)
BARS["linformer"] = 195
MOST_FILES, MOST_OF_ITS_OWN = 3, {"linformer": 65}


def file_of(module: str) -> Path | None:
    """Return the file of a module; None for a package, whose file only imports its mechanisms."""
    spec = importlib.util.find_spec(module)
    return None if spec is None or spec.origin is None or spec.submodule_search_locations is not None else Path(spec.origin)


def imported(source: str) -> set[str]:
    """Return the modules of ``ROOM`` that a source imports, at its top or inside its functions."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return {name for name in names if name.startswith(f"{ROOM}.")}


def lines_of_code(source: str) -> int:
    """Return the number of lines of a source without docstrings and empty lines."""
    explained: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            explained |= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return sum(bool(line.strip()) and at not in explained for at, line in enumerate(source.splitlines(), 1))


def files_to_open(module: str) -> dict[Path, int]:
    """Return the files of ``ROOM`` that ``module`` needs, its own first, and the number of lines of code of each."""
    found: dict[Path, int] = {}
    waiting = [module]
    while waiting:
        try:
            path = file_of(waiting.pop(0))
        except ModuleNotFoundError:  # the name of a class or function
            continue
        if path is not None and path not in found:
            source = path.read_text(encoding="utf-8")
            found[path] = lines_of_code(source)
            waiting += sorted(imported(source))
    return found


@pytest.mark.parametrize("name", BARS)
def test_a_mechanism_is_read_in_few_lines_of_few_files(name):
    files = files_to_open(card(name).build.__module__)
    told = ", ".join(f"{path.name} {lines}" for path, lines in files.items())
    assert sum(files.values()) <= BARS[name] and len(files) <= MOST_FILES, told
    assert next(iter(files.values())) <= MOST_OF_ITS_OWN.get(name, BARS[name]), told


def test_helpers_of_helpers_count():
    files = {path.name for path in files_to_open("attn_zoo.attention.linear.cosformer")}
    assert files == {"cosformer.py", "linear.py", "_recurrence.py", "_sums_cost.py"}


def test_imports_inside_functions_count():
    assert imported(f"def f():\n    from {ROOM}.linear import _recurrence") == {f"{ROOM}.linear", f"{ROOM}.linear._recurrence"}
    assert imported(f"import {ROOM}.dense.softmax\nimport attn_zoo.contract") == {f"{ROOM}.dense.softmax"}


def test_docstrings_and_empty_lines_do_not_count():
    source = '"""Words\nand words."""\n\nA = 1\n"""What A is."""\n\ndef f():\n    """More."""\n    return "text"\n'
    assert lines_of_code(source) == 3
