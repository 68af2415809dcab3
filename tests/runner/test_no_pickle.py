"""No pickle is loaded from a folder of results or data: neither by calls in the source, nor when a run is resumed and recorded."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from run_helpers import apart, record_watching_pickle

from attn_zoo.records import Budget, ModelSpec, RunSpec
from attn_zoo.runner import resolve_spec

ROOT = Path(__file__).parents[2]

MODULES = {"pickle", "_pickle", "cPickle", "dill", "cloudpickle", "joblib", "shelve", "marshal"}
CALLS = {
    "joblib.load",
    "torch.load",
    "torch.jit.load",
    "torch.hub.load",
    "torch.package.PackageImporter",
    "pandas.read_pickle",
    "read_pickle",
}
METHODS = {"load_state", "Unpickler"}
"""accelerate's load_state unpickles generators and schedules."""


PERMITTED = {
    "attn_zoo/conformance/modes.py: pickle": "the kit writes a module into memory, and reads nothing back",
    "attn_zoo/conformance/task_checks.py: pickle": "the kit hands a task to a process of its own, through a pipe",
    "attn_zoo/conformance/another_process.py: pickle": "the same: what that process reads comes through the pipe",
    "attn_zoo/cli/launch.py: joblib": "runs are handed to processes of this command, through pipes; no file is read",
}


def unpickling(source: str) -> Iterator[str]:
    """Yield the names of imports and calls of a module that could load a pickle, also under aliases."""
    tree, known = ast.parse(source), dict[str, str]()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            known |= {
                alias.asname or alias.name.split(".")[0]: alias.name if alias.asname else alias.name.split(".")[0]
                for alias in node.names
            }
            yield from (alias.name for alias in node.names if alias.name.split(".")[0] in MODULES)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            known |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
            if node.module.split(".")[0] in MODULES:
                yield node.module
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        first, _, rest = ast.unparse(node.func).partition(".")
        name = ".".join(filter(None, [known.get(first, first), rest]))
        loose = [
            k
            for k in node.keywords
            if k.arg == "allow_pickle" and not (isinstance(k.value, ast.Constant) and k.value.value is False)
        ]
        if name in CALLS or name.rpartition(".")[2] in METHODS or loose:
            yield name


@pytest.mark.parametrize("folder", ["attn_zoo", "tasks", "configs"])
def test_no_module_of_the_package_can_load_a_pickle(folder):
    found = {
        f"{path.relative_to(ROOT)}: {name}"
        for path in (ROOT / folder).rglob("*.py")
        for name in unpickling(path.read_text(encoding="utf-8"))
    }
    assert found - PERMITTED.keys() == set()
    assert {words for words in PERMITTED if words.startswith(folder)} <= found, "permitted, and gone"


def test_no_code_of_a_folder_of_transformers_is_run():
    """Every call that reads such a folder says ``trust_remote_code=False``; without it transformers asks on standard input."""
    calls = [
        ast.unparse(node)
        for path in (ROOT / "attn_zoo").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith((".from_pretrained", ".from_config"))
    ]
    assert len(calls) > 5
    assert [call for call in calls if "trust_remote_code=False" not in call and "**{**options, **safe}" not in call] == []


@pytest.mark.process
def test_a_run_that_is_resumed_recorded_and_read_unpickles_nothing(tmp_path):
    budget = Budget(steps=4, batch_size=8, evaluate_every=2)
    model = ModelSpec(dim=16, heads=2, dropout=0.1)
    spec = resolve_spec(RunSpec("performer", "digits", options={"redraw": 1}, model=model, budget=budget, device="cpu"))
    status, resumed, seen = apart(record_watching_pickle, spec, tmp_path)
    assert status == "done" and resumed == [2]
    assert seen == []
    torch.save({"a": torch.ones(1)}, tmp_path / "x.pt")
    _, _, seen = apart(record_watching_pickle, spec, tmp_path / "again", str(tmp_path / "x.pt"))
    assert seen, "the watch sees torch.load"
