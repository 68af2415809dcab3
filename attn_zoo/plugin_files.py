"""Files of plugins. Subprocesses load a plugin that is given as a file or folder instead of an installed package as well."""

from __future__ import annotations

import hashlib
import importlib
import os
import sys
import traceback
from collections.abc import Collection
from pathlib import Path
from types import ModuleType

from attn_zoo.escapes import error_text

VARIABLE = "ATTN_ZOO_PLUGIN"
"""Environment variable with the paths of plugins, separated as in PATH. Every process of attn-zoo loads them."""
_INSTALLED: dict[str, Path] = {}
"""Files and folders of the installed plugins that this process has loaded, by the name that records give them."""


def load(path: Path) -> list[ModuleType]:
    """Import a plugin and return its modules. Each module is imported once.

    Args:
        path: a file, the folder of a package, a folder with packages below ``src``, or a folder of Python files.

    Raises:
        FileNotFoundError: the path does not exist.
        ValueError: there is nothing to import, or importing failed; the message names file and line.
    """
    if not path.exists():
        raise FileNotFoundError(f"the file {path} does not exist. Correct the path")
    return [_module(file.resolve()) for file in _files(path)]


def export_plugin(path: Path) -> None:
    """Add the path of a plugin to ``$ATTN_ZOO_PLUGIN``, so that subprocesses load it.

    Raises:
        ValueError: the path contains the character that separates paths in this variable.
    """
    whole = str(path.resolve())
    if os.pathsep in whole:
        raise ValueError(
            f"the path of a plugin must not contain {os.pathsep!r}, because this character separates paths; got {whole}. "
            "Rename the file or folder"
        )
    os.environ[VARIABLE] = os.pathsep.join(dict.fromkeys([*map(str, exported_plugins()), whole]))


def unexport_plugin(path: Path) -> None:
    """Remove the path of a plugin from ``$ATTN_ZOO_PLUGIN``, so that subprocesses do not load it."""
    os.environ[VARIABLE] = os.pathsep.join(str(other) for other in exported_plugins() if other != path)


def exported_plugins() -> list[Path]:
    """Return the paths of the plugins in ``$ATTN_ZOO_PLUGIN``."""
    return [Path(part) for part in os.environ.get(VARIABLE, "").split(os.pathsep) if part]


def plugin_words() -> list[str]:
    """Return the words of a command line that name these plugins."""
    return [f"plugin={path}" for path in exported_plugins()]


def digest(path: Path) -> str:
    """Return the SHA-256 digest of a file or, for a folder, of the names and contents of all its Python files."""
    found = hashlib.sha256()
    for file in [path] if path.is_file() else sorted(path.rglob("*.py")):
        found.update(b"" if file == path else file.relative_to(path).as_posix().encode())
        found.update(file.read_bytes())
    return found.hexdigest()


def note_installed(name: str, module: str) -> None:
    """Remember the files of an installed plugin, given the name of its entry point and the module that was imported."""
    if (file := file_of(sys.modules.get(module))) is not None:
        _INSTALLED[f"{name} (installed)"] = package_of(file)


def digests(files: Collection[Path] | None = None) -> dict[str, str]:
    """Return the SHA-256 digest of each existing plugin in ``$ATTN_ZOO_PLUGIN``, by file name, and of each installed plugin.

    Args:
        files: if given, only plugins that contain one of these files count.
    """
    plugins = {**_INSTALLED, **{path.name: path for path in exported_plugins()}}
    counted = {name: path for name, path in plugins.items() if files is None or any(file.is_relative_to(path) for file in files)}
    return {name: digest(path) for name, path in counted.items() if path.exists()}


def package_of(file: Path) -> Path:
    """Return the folder of the outermost package that contains a file, or the file itself if it is in no package."""
    root = file
    while (root.parent / "__init__.py").exists():
        root = root.parent
    return root


def _files(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    packages = [path / "__init__.py"] if (path / "__init__.py").is_file() else sorted(path.glob("src/*/__init__.py"))
    files = packages or sorted(path.glob("*.py"))
    if not files:
        raise ValueError(f"{path} must be a Python file, a package, or a folder that attn-zoo new wrote. Name one of these")
    return files


def _module(file: Path) -> ModuleType:
    """Import a file under its full name, unless it is already loaded."""
    for module in list(sys.modules.values()):
        path = str(getattr(module, "__file__", ""))
        if (path.endswith(file.name) or os.path.islink(path)) and file_of(module) == file:
            return module
    root = package_of(file).parent
    name = ".".join(file.relative_to(root).with_suffix("").parts).removesuffix(".__init__")
    # Python does the same for the folder of a script. The entry stays, since a subprocess that rebuilds tasks gets the same path.
    sys.path.insert(0, str(root))
    try:
        module = importlib.import_module(name)
    except BaseException as error:  # a file outside the zoo may raise anything
        if isinstance(error, KeyboardInterrupt):
            raise
        raise ValueError(f"{file} cannot be imported: {error_text(error)} ({_where(error, root)})") from error
    if file_of(module) != file:
        raise ValueError(
            f"{file} cannot be imported as module {name!r}, because another file has this name ({module.__file__}). Rename "
            "the plugin, or uninstall the other"
        )
    return module


def _where(error: BaseException, root: Path) -> str:
    """Return the file and line of an error. It is the last frame below ``root``, because a library that the plugin calls may raise
    the error.
    """
    if isinstance(error, SyntaxError) and error.filename:
        return f"{Path(error.filename).name}:{error.lineno}"
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if Path(frame.filename).is_relative_to(root)]
    frame = (own or frames)[-1]
    return f"{Path(frame.filename).name}:{frame.lineno}"


def file_of(module: ModuleType | None) -> Path | None:
    """Return the file from which ``module`` was loaded, or None if ``module`` is None or has no file."""
    file = getattr(module, "__file__", None)
    return Path(file).resolve() if isinstance(file, str) else None
