"""Functions that write a plugin package from templates. Existing files are not changed."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path
from typing import Literal

from attn_zoo.scaffold.names import require_class_name, require_free_name

Kind = Literal["attention", "task"]

_COMMON = {
    ".gitignore": "gitignore.j2",
    "README.md": "README.md.j2",
    "pyproject.toml": "pyproject.toml.j2",
    "src/{name}/__init__.py": "init.py.j2",
}
# Sources are below src, so that the folder of the same name is not imported from its parent.
_OWN: dict[Kind, dict[str, str]] = {
    "attention": {"src/{name}/attention.py": "attention.py.j2", "tests/test_{name}.py": "test_attention.py.j2"},
    "task": {"src/{name}/task.py": "task.py.j2", "tests/test_{name}.py": "test_task.py.j2"},
}
"""Templates of the files that only a mechanism, or only a task, has."""


def write_package(kind: Kind, name: str, folder: Path, class_name: str | None = None) -> list[Path]:
    """Write a package that registers one new mechanism or task. The written package passes the conformance tests.

    Args:
        kind: ``attention`` for a mechanism, or ``task``.
        name: name of the package and of the mechanism or task.
        folder: folder of the package, which must be missing or empty.
        class_name: name of the class. None means a name made from ``name``.

    Returns:
        The paths of the written files relative to ``folder``, sorted.

    Raises:
        ValueError: a name is invalid or in use, or the folder is not empty; nothing is written.
        OSError: the folder cannot be written.
    """
    require_free_name(name)
    class_name = default_class_name(kind, name) if class_name is None else class_name
    require_class_name(class_name)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ValueError(
            f"{folder} must be a new or empty folder, because nothing is overwritten. Remove it, or name another folder"
        )
    texts = _rendered(kind, name, class_name)
    for path, text in texts.items():
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("x", encoding="utf-8", newline="\n") as file:
            file.write(text)
    return sorted(texts)


def default_class_name(kind: Kind, name: str) -> str:
    """Return a class name made from ``name``, such as ``MyAttention`` from ``my`` or ``my_attention``."""
    # The suffix also avoids clashes with imported names.
    camel = "".join(part.capitalize() for part in name.split("_"))
    suffix = kind.capitalize()
    return camel if camel.endswith(suffix) and camel != suffix else camel + suffix


def _rendered(kind: Kind, name: str, class_name: str) -> dict[Path, str]:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("attn_zoo.scaffold"),
        undefined=StrictUndefined,
        keep_trailing_newline=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    facts = {
        "kind": kind,
        "name": name,
        "title": name.replace("_", " ").capitalize(),
        "class_name": class_name,
        "version": version("attn-zoo"),
    }
    files = {**_COMMON, **_OWN[kind]}
    return {Path(path.format(name=name)): environment.get_template(template).render(facts) for path, template in files.items()}
