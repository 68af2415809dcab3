"""Reasons for failed exports: a kind, and the exporter's own message."""

from __future__ import annotations

import re
from dataclasses import dataclass

KINDS = {
    "sizes": "the code makes choices by a size, so that the program holds for this size alone",
    "data": "the code makes choices by numbers that are known only when it runs",
    "operator": "ONNX has no such operator, or the exporter does not know it",
    "exporter": "the exporter fails by itself",
    "runtime": "the runtime does not load or run the file",
    "numbers": "the program runs and answers something else",
}
"""Kinds of reasons, with descriptions."""
_AXES = {"0": "batch", "1": "length"}


@dataclass(frozen=True, slots=True)
class Reason:
    """Reason of a failure: one of ``KINDS``, and the first informative line of the error."""

    kind: str
    line: str


class DifferentAnswer(ValueError):
    """Output of an exported program that differs from the module's."""


def reason_of(error: BaseException) -> Reason:
    """Classify an exporter's error by its root cause."""
    while error.__cause__ is not None:
        error = error.__cause__
    text = str(error)
    if isinstance(error, DifferentAnswer):
        return Reason("numbers", text)
    if "Constraints violated" in text or "Specializations unexpectedly" in text:
        return Reason("sizes", _constraint(text))
    if "Guard failed" in text or "Got invalid dimensions" in text:
        return Reason("sizes", "the program turns out to hold for the size of its example alone")
    if "data-dependent" in text.lower():
        return Reason("data", _first_line(text))
    if missing := re.search(r"No ONNX function found for <OpOverload\(op='([^']+)', overload='([^']+)'\)>", text):
        overload = "" if missing[2] == "default" else f".{missing[2]}"
        return Reason("operator", f"no ONNX function for {missing[1]}{overload}")
    if type(error).__module__.startswith("onnxruntime"):
        return Reason("runtime", _first_line(text))
    return Reason("exporter", f"{type(error).__name__}: {_first_line(text)}")


def _constraint(text: str) -> str:
    """First violated guard in an exporter's message, with sizes by their names."""
    for line in text.splitlines():
        if guard := re.search(r"satisfy the generated guard (.*?)\.?(?:Specializations.*)?$", line):
            plain = re.sub(r"L\['\w+'\]\.size\(\)\[(\d)\]", lambda axis: _AXES.get(axis[1], f"axis {axis[1]}"), guard[1])
            return f"needs {plain.replace('torch.sym_', '')}"
        if constant := re.search(r"You marked (\w+) as dynamic but your code specialized it to be a constant", line):
            return f"{constant[1]} becomes a constant"
    return _first_line(text)


def _first_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    shown = re.sub(r"0x[0-9a-f]+", "0x…", lines[0]) if lines else "no message"
    return shown if len(shown) <= 160 else shown[:159] + "…"
