"""Formulas for the growth of the cost of a mechanism with its sizes (big-O). A check compares them with measured growth."""

from __future__ import annotations

import re
from dataclasses import dataclass

_FACTOR = re.compile(r"(?:log |/ )?[A-Za-z][A-Za-z0-9]*(?:\^[0-9]+(?:\.[0-9]+)?)?")


@dataclass(frozen=True, slots=True)
class Growth:
    """Growth formula: a sum of products of named sizes, such as ``n k d`` or ``n log n d + w n d``.

    ``n`` is the sequence length, the number of queries and of keys. Every other symbol is a constant of the mechanism or the model.
    ``log n`` is a separate factor, not a power of ``n``. In ``n^2 d / b`` the product is divided by b.

    Raises:
        ValueError: the text is not such a sum.
    """

    text: str

    def __post_init__(self) -> None:
        for term in self.text.split("+"):
            if not term.strip() or _FACTOR.sub("", term).strip():
                raise ValueError(
                    f"a growth must be a sum of products such as 'n k d + n^2'; got {self.text!r}. Write blanks between "
                    "symbols, and powers with ^"
                )

    def __str__(self) -> str:
        return f"O({self.text})"

    @property
    def exponent(self) -> float:
        """Largest power of ``n`` in any term of the sum."""
        return max(_power_of_n(term) for term in self.text.split("+"))

    @property
    def has_log(self) -> bool:
        """True if a term has the factor ``log n``."""
        return "log n" in self.text


def _power_of_n(term: str) -> float:
    power = 0.0
    for factor in _FACTOR.findall(term):
        symbol, _, raised = factor.partition("^")
        if symbol.removeprefix("/ ") == "n":
            power += float(raised or 1) * (-1 if symbol.startswith("/") else 1)
    return power
