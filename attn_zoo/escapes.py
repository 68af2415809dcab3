"""Functions that make foreign text safe to print, such as text from records, plugins and file names. Each output format has its own
function.

The function ``terminal`` makes every character visible. The functions of the other formats call it, and then escape the special
characters of their format.
"""

from __future__ import annotations

import hashlib
import re
import unicodedata
from typing import Any

_TAG = re.compile(r"<(?=[A-Za-z/!?])")
_ENTITY = re.compile(r"&(?=#?\w+;)")
_STEERING = ("Cc", "Cf", "Cn", "Cs", "Zl", "Zp")
"""Unicode categories of characters that are not shown: controls, formats such as text direction, noncharacters, line ends."""
_BLANK = re.compile("[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u3164\ufe00-\ufe0d\uffa0\U000e0100-\U000e01ef]")
"""Letters and marks without a glyph. Two names that differ only in them would look alike."""
_FORMULA = tuple("=+-@\uff1d\uff0b\uff0d\uff20")
"""Signs with which a formula begins, and their full-width forms, which spreadsheets accept as well."""
_NUMBER = re.compile(r"[-+]?[0-9.]+(e[-+]?[0-9]+)?", re.IGNORECASE)


def terminal(text: str) -> str:
    r"""Return text for one line of a terminal. Characters that cannot be seen, such as control characters, become escapes like
    ``\x1b``.
    """
    if not text.isprintable():
        text = "".join(ascii(sign)[1:-1] if unicodedata.category(sign) in _STEERING else sign for sign in text)
    return text if text.isascii() else _BLANK.sub(lambda found: ascii(found[0])[1:-1], text)


def terminal_lines(text: str) -> str:
    """Return text with each line escaped by the function ``terminal``. Line breaks are kept."""
    return "\n".join(map(terminal, text.split("\n")))


def markdown(text: str) -> str:
    """Return text that is escaped for a cell or paragraph of GitHub Markdown.

    The result is one line without tags, entities, links, or pipes that would end a cell.
    """
    plain = _ENTITY.sub("&amp;", terminal(text)).replace("|", r"\|").replace("](", r"]\(")
    return _TAG.sub("&lt;", plain)


def escaped(text: str, format: str) -> str:
    """Return text that is escaped for one line of the given format: ``github``, ``latex`` (a comment line) or ``terminal``."""
    return markdown(text) if format == "github" else terminal(text)


def csv_cell(value: Any) -> Any:
    """Return a value as the entry of a CSV cell: a number, or text on one line.

    An apostrophe is put before text that a spreadsheet would read as a formula.
    """
    if value is None or isinstance(value, int | float):
        return value
    text = terminal(str(value))
    formula = text.lstrip().startswith(_FORMULA) and not _NUMBER.fullmatch(text.strip())
    return f"'{text}" if formula else text


def label(text: str, most: int = 80) -> str:
    """Return a name that is escaped for a picture or a narrow column, and shortened to at most ``most`` characters.

    Different names stay different.
    """
    shown = terminal(text)
    return shown if len(shown) <= most else f"{shown[: most - 5]}…{_digest(text)[:4]}"


def file_words(text: str, most: int = 80) -> str:
    """Return text that is valid as part of a file name. It has only letters, digits, dots, dashes and underscores.

    Longer text is cut to ``most`` characters, and a digest of it is added. Different texts give different results.
    """
    plain = re.sub(r"[^A-Za-z0-9_.-]", "_", text)
    return plain if plain == text and len(plain) <= most else f"{plain[:most]}-{_digest(text)[:8]}"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()


def error_text(error: BaseException) -> str:
    """Return the class and message of an error that foreign code raised. This works even if making the message fails."""
    try:
        message = str(error)
    except BaseException as second:
        message = f"its message cannot be read ({type(second).__name__})"
    return f"{type(error).__name__}: {message}"
