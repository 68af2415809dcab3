"""Files for people who join: forms, workflows and containers are readable, and their commands are documented ones."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

yaml = pytest.importorskip("yaml")
ROOT = Path(__file__).parents[1]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


def read(path: Path) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_workflow_has_few_rights_and_pinned_actions(path):
    flow = read(path)
    assert flow["permissions"] == {"contents": "read"}, "jobs that need more say so"
    steps = [step for job in flow["jobs"].values() for step in job["steps"]]
    actions = [step["uses"] for step in steps if "uses" in step]
    assert actions and all(re.fullmatch(r"[\w./-]+@[0-9a-f]{40}", action) for action in actions)
    assert all("secrets." not in json.dumps(step) for step in steps), "publishing needs no stored password"
    scripts = [word for step in steps for word in step.get("run", "").split() if word.startswith(".ci/")]
    assert all((ROOT / script).is_file() for script in scripts)


def test_tests_run_on_every_python_that_the_package_names():
    classifiers = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["classifiers"]
    named = {word for line in classifiers for word in re.findall(r"Python :: (3\.\d+)$", line)}
    assert set(read(ROOT / ".github/workflows/tests.yml")["jobs"]["pytest"]["strategy"]["matrix"]["python"]) == named


def test_citation_names_the_version_and_the_licence():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    citation = read(ROOT / "CITATION.cff")
    assert (citation["version"], citation["license"]) == (project["version"], project["license"])
