"""Tables of the exportable mechanisms, in Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from tabulate import tabulate

from attn_zoo.export.reasons import KINDS

_TITLES = {"torch": "torch.export", "onnx": "ONNX"}


def table(found: Mapping[str, Any], tablefmt: str = "github") -> str:
    """Format a table with a line for each mechanism, then tables of reasons for failures and for missing dynamic sizes.

    Args:
        found: result of ``survey``, or its JSON.
        tablefmt: a format of tabulate.
    """

    def tabulated(rows: Iterable[Iterable[str]], *head: str) -> str:
        return tabulate([list(row) for row in dict.fromkeys(map(tuple, rows))], head, tablefmt=tablefmt, disable_numparse=True)

    records, why = found["records"], ("because", "in the exporter's words")
    parts = [tabulated(([*_name(r), *(_outcome(r[f]) for f in _TITLES)] for r in records), "attention", "mask", *_TITLES.values())]
    for format, title in _TITLES.items():
        failed = _both_forms((r, _last(r[format])) for r in records if r[format]["open"] is None)
        if failed:
            parts += [f"Not in {title}:", tabulated(failed, "attention", *why)]
    closed = _both_forms((r, reason) for r in records for reason in _more(r))
    if closed:
        parts += ["What could not be left open:", tabulated(closed, "attention", "open", *why)]
    kinds = {reason["kind"] for r in records for format in _TITLES for reason in r[format]["refused"].values()}
    parts.append("\n".join(f"- {kind}: {description}." for kind, description in KINDS.items() if kind in kinds))
    return "\n\n".join([*(part for part in parts if part), _setting(found)])


def _setting(found: Mapping[str, Any]) -> str:
    setting, versions = found["setting"], ", ".join(f"{name} {number}" for name, number in found["versions"].items())
    layer = f"layers of length {setting['length']}, dim {setting['dim']}, {setting['heads']} heads, in float32 on a CPU"
    return (
        f"In brackets: the largest difference to eager's output, divided by that output's largest absolute value; up to "
        f"{setting['tolerance']:g} is rounding. ONNX opset {setting['opset']}; {versions}; {layer}."
    )


def _name(record: Mapping[str, Any]) -> tuple[str, str]:
    return record["attention"] + (", causal" if record["causal"] else ""), "yes" if record["key_valid"] else "-"


def _both_forms(rows: Iterable[tuple[Mapping[str, Any], tuple[str, ...]]]) -> list[tuple[str, ...]]:
    """Lines of mechanism and reason, marked "causal" if the reason holds for the causal form only."""
    forms_of: dict[tuple[str, ...], list[bool]] = {}
    for record, reason in rows:
        forms_of.setdefault((record["attention"], *reason), []).append(record["causal"])
    return [(f"{name}, causal" if all(forms) else name, *reason) for (name, *reason), forms in forms_of.items()]


def _outcome(by_format: Mapping[str, Any]) -> str:
    if by_format["open"] is None:
        return "-"
    opened = "fixed sizes" if by_format["open"] == "fixed" else f"{by_format['open']} open"
    return f"{opened} ({by_format['difference']:.0e})"


def _last(by_format: Mapping[str, Any]) -> tuple[str, str]:
    """Reason of the least dynamic attempt."""
    why = list(by_format["refused"].values())[-1]
    return why["kind"], why["line"]


def _more(record: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Sizes that cannot be dynamic although a program exists, with reasons."""
    exported = (record[format] for format in _TITLES if record[format]["open"] is not None)
    return [(sizes, why["kind"], why["line"]) for by_format in exported for sizes, why in by_format["refused"].items()]
