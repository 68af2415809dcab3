"""Docstrings of this house for Sphinx: Google's sections, plain sentences before every colon, and types that need no page."""

from __future__ import annotations

import importlib
import re
from typing import TYPE_CHECKING, Any

from docutils import nodes
from sphinx.ext.napoleon import Config
from sphinx.ext.napoleon.docstring import GoogleDocstring

if TYPE_CHECKING:
    from sphinx.addnodes import pending_xref
    from sphinx.application import Sphinx
    from sphinx.environment import BuildEnvironment

_CONFIG: Any = Config()
"""Napoleon's own settings, which an application has only where Napoleon is one of its extensions."""


class _Docstring(GoogleDocstring):
    """What is returned is told in sentences: what stands before a colon is no type."""

    def _consume_returns_section(self, preprocess_types: bool = False) -> list[tuple[str, str, list[str]]]:
        lines = self._dedent(self._consume_to_next_section())
        return [("", "", lines)] if lines else []


def sections(app: Sphinx, what: Any, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """To reStructuredText. Napoleon as an extension would take the words before a colon on an attribute for its type as well."""
    if what in ("attribute", "data", "property"):
        return
    plain = [re.sub(r"(?<![\w`*])\*\*(?=\w)", r"\\*\\*", line) for line in lines]  # **options is a name and starts no bold text
    lines[:] = _Docstring(plain, _CONFIG, app, what, name, obj, options).lines()


def signature(
    app: Sphinx, what: str, name: str, obj: Any, options: Any, given: str | None, returns: str | None
) -> tuple[str | None, str | None]:
    """Defaults that are no Python to read: functions by their name, what a dataclass's factory makes by an ellipsis."""
    if given:
        given = re.sub(r"<function (\w+)>", r"\1", given).replace("<factory>", "...")
    return given, returns


def reference(app: Sphinx, env: BuildEnvironment, node: pending_xref, shown: nodes.TextElement) -> nodes.TextElement | None:
    """A name of the zoo that no page has, in an annotation say, is plain text if it exists; if not, Sphinx warns."""
    target = str(node.get("reftarget", ""))
    module, _, name = target.rpartition(".")
    if node.get("refdomain") != "py" or not module.startswith("attn_zoo"):
        return None
    try:
        return shown if hasattr(importlib.import_module(module), name) else None
    except ImportError:
        return None
