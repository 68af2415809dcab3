"""Escape functions for text from outside, such as records and plugins, one for each output format."""

from __future__ import annotations

import re
import unicodedata
from typing import Any

_TAG = re.compile(r"<(?=[A-Za-z/!?])")
_STEERING = ("Cc", "Cf", "Cs", "Zl", "Zp")
"""Unicode categories of characters that steer a terminal: controls, formats such as text direction, and line ends."""
_FORMULA = ("=", "+", "-", "@")
_NUMBER = re.compile(r"[-+]?[0-9.]+(e[-+]?[0-9]+)?", re.IGNORECASE)


def terminal(text: str) -> str:
    """Escape text for one terminal line: control characters, direction marks and lone surrogates become escapes like ``\\x1b``."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(ascii(sign)[1:-1] if unicodedata.category(sign) in _STEERING else sign for sign in text)


def terminal_lines(text: str) -> str:
    """Escape each line of a text for a terminal."""
    return "\n".join(map(terminal, text.split("\n")))


def markdown(text: str) -> str:
    """Escape text for a cell or paragraph of GitHub Markdown: on one line, without tags, links, or pipes that would end a cell."""
    return _TAG.sub("&lt;", terminal(text).replace("|", r"\|").replace("](", r"]\("))


def escaped(text: str, format: str) -> str:
    """Escape text for one line of the format ``github``, ``latex`` (a comment line) or ``terminal``."""
    return markdown(text) if format == "github" else terminal(text)


def csv_cell(value: Any) -> Any:
    """Value of a CSV cell; text that a spreadsheet would take for a formula begins with an apostrophe."""
    if not isinstance(value, str):
        return value
    text = terminal_lines(value)
    formula = text.lstrip().startswith(_FORMULA) and not _NUMBER.fullmatch(text.strip())
    return f"'{text}" if formula or value[:1] in ("\t", "\r") else text
