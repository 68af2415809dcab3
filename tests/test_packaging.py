"""Package as users install it: every folder shipped, no stray top-level name, a wheel that works from an empty folder."""

from __future__ import annotations

import importlib.metadata
import os
import re
import subprocess
import sys
import sysconfig
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def run(*command: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "COVERAGE"))}
    return subprocess.run(
        [str(part) for part in command], cwd=cwd, capture_output=True, text=True, env=environment, timeout=300, check=False
    )


def test_package_list_equals_the_disk():
    mapping = PYPROJECT["tool"]["setuptools"]["package-dir"]
    found = set()
    for package, folder in mapping.items():
        for init in (ROOT / folder).rglob("__init__.py"):
            found.add(".".join([package, *init.parent.relative_to(ROOT / folder).parts]))
    assert found == set(PYPROJECT["tool"]["setuptools"]["packages"])


def test_every_folder_with_modules_is_a_package():
    for folder in PYPROJECT["tool"]["setuptools"]["package-dir"].values():
        for module in (ROOT / folder).rglob("*.py"):
            assert (module.parent / "__init__.py").exists(), (
                f"{module.parent} holds modules but is no package, so a wheel lacks them"
            )


def test_no_top_level_name_leaks(tmp_path):
    code = "import attn_zoo.registry as r, importlib.util as u; r.load_plugins(); print([n for n in {names} if u.find_spec(n)])"
    outcome = run(sys.executable, "-P", "-c", code.format(names=("tasks", "configs", "tests", "attn_zoo")), cwd=tmp_path)
    assert outcome.stdout.strip() == "['attn_zoo']", f"others can be imported outside the checkout: {outcome.stderr}"


def test_every_extra_that_texts_name_exists():
    texts = [path.read_text(encoding="utf-8") for path in (ROOT / "attn_zoo").rglob("*.py")]
    named = {
        name for text in texts for name in re.findall(r"needs? the extra `?(\w+)|attn-zoo\[(\w+)", text) for name in name if name
    }
    assert "text" in named and named <= set(PYPROJECT["project"]["optional-dependencies"])


def test_versions_agree():
    import attn_zoo

    assert attn_zoo.__version__ == PYPROJECT["project"]["version"] == importlib.metadata.version("attn-zoo")
    assert f"## {attn_zoo.__version__}" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


@pytest.fixture(scope="session")
def wheel(tmp_path_factory) -> Path:
    """Wheel built from the source distribution, so that it holds nothing of stale build folders."""
    out = tmp_path_factory.mktemp("dist")
    built = run(sys.executable, "-P", "-m", "build", "--no-isolation", "--outdir", out, ROOT, cwd=out)
    assert built.returncode == 0, built.stdout + built.stderr
    return next(out.glob("*.whl"))


@pytest.fixture(scope="session")
def installed(wheel, tmp_path_factory) -> Path:
    """Folder of the executables of a fresh environment with the wheel, which uses this environment's dependencies."""
    home = tmp_path_factory.mktemp("fresh")
    venv.create(home, with_pip=False)
    python = home / "bin" / "python"
    outcome = run(sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", "--no-index", wheel, cwd=home)
    assert outcome.returncode == 0, outcome.stderr
    site = next((home / "lib").glob("python*/site-packages"))
    # A plain path line makes modules there importable, but does not run the .pth files there, such as the editable install's.
    (site / "borrowed.pth").write_text(sysconfig.get_paths()["purelib"] + "\n", encoding="utf-8")
    return home / "bin"


def test_wheel_holds_every_source_file(wheel):
    shipped = set(zipfile.ZipFile(wheel).namelist())
    for package, folder in PYPROJECT["tool"]["setuptools"]["package-dir"].items():
        for path in (ROOT / folder).rglob("*"):
            if path.suffix in (".j2", ".json", ".py", ".xz", ".yaml", ".typed") and "__pycache__" not in path.parts:
                name = "/".join([*package.split("."), *path.relative_to(ROOT / folder).parts])
                assert name in shipped, f"{path.relative_to(ROOT)} is not in the wheel"


def test_a_fresh_installation_shows_the_reference_records(installed, tmp_path):
    shown = run(installed / "attn-zoo", "leaderboard", "--reference", "--overview", cwd=tmp_path)
    assert shown.returncode == 0, shown.stderr
    assert "softmax" in shown.stdout and "uniform" in shown.stdout
    assert not list(tmp_path.iterdir())
    told = run(installed / "attn-zoo", "recommend", cwd=tmp_path)
    assert told.returncode == 0 and "similarity of passages" in told.stdout, "the transplant is shipped as well"


def test_wheel_works_from_an_empty_folder(installed, tmp_path):
    listing = run(installed / "attn-zoo", "list", cwd=tmp_path)
    assert listing.returncode == 0, listing.stderr
    for name in ("softmax", "linformer", "performer", "longformer", "reformer", "listops", "digits"):
        assert name in listing.stdout
    where = run(installed / "python", "-P", "-c", "import attn_zoo; print(attn_zoo.__file__)", cwd=tmp_path)
    assert str(ROOT) not in where.stdout, "the fresh environment imports the checkout, so it proves nothing"

    ran = run(
        installed / "attn-zoo",
        "run",
        "attention=linformer",
        "task=digits",
        "budget.steps=12",
        "budget.evaluate_every=6",
        cwd=tmp_path,
    )
    assert ran.returncode == 0, ran.stderr
    assert "linformer" in ran.stdout
    assert len(list((tmp_path / "runs").glob("*.json"))) == 1
