"""Jinja's environment for the pages."""

from __future__ import annotations

from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined


@cache
def _environment() -> Environment:
    # No escaping: what is made is Markdown, and what goes into it is escaped for that where it is made.
    return Environment(loader=PackageLoader("zoo_pages"), undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)


def render(template: str, **facts: Any) -> str:
    """A page from a template; a fact that the template wants and does not get is an error."""
    return _environment().get_template(template).render(**facts).rstrip() + "\n"
