"""What of the zoo can be exported: every mechanism, causal and not, in both formats, and the reasons where it cannot."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from attn_zoo import registry
from attn_zoo.export.layers import capture, offered_sizes, subject_of
from attn_zoo.export.models import FORMATS, OPSET, TOLERANCE, refuse_output
from attn_zoo.layer import MultiHeadAttention

LENGTH, DIM, HEADS = 64, 16, 2
"""Of the layers that are tried; what can be exported depends on the operators, not on how large they are."""


def survey(names: Sequence[str] | None = None, tell: Callable[[str], None] = lambda line: None) -> dict[str, Any]:
    """Try to export a layer with each mechanism's defaults, with as many sizes open as the exporter allows.

    Args:
        names: registered attentions; all by default.
        tell: takes a line about each mechanism as it is done.

    Returns:
        The setting, the versions, and a record for each mechanism and form: by format the open sizes and the difference to
        eager, or None, and the reasons why not more could be left open.

    Raises:
        UnknownNameError: no such attention.
        UnsupportedError: the extra is missing.
    """
    refuse_output(Path(tempfile.gettempdir()) / "never-written", "onnx")
    cards = [registry.card(name) for name in names or registry.attentions()]
    forms = [(card.name, causal) for card in cards for causal in ((False, True) if card.can.causal else (False,))]
    return {
        "schema": 1,
        "setting": {"length": LENGTH, "dim": DIM, "heads": HEADS, "tolerance": TOLERANCE, "opset": OPSET},
        "versions": {name: version(name) for name in ("torch", "onnx", "onnxruntime", "onnxscript")},
        "records": [_telling(name, causal, tell) for name, causal in forms],
    }


def record_of(name: str, causal: bool) -> dict[str, Any]:
    """What became of one mechanism in one form."""
    torch.manual_seed(0)
    subject = subject_of(MultiHeadAttention(DIM, HEADS, name, length=LENGTH, causal=causal).eval())
    found = capture(subject, offered_sizes(subject))
    formats: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for format in FORMATS:
            made = found.write_best(Path(folder) / f"layer.{format}", format)
            refused = {sizes: asdict(reason) for sizes, reason in found.refused[format].items()}
            formats[format] = {"open": None if made is None else " and ".join(made.open_sizes) or "fixed", "refused": refused}
            if made is not None:
                formats[format]["difference"] = float(f"{made.difference:.0e}")
    return {"attention": name, "causal": causal, "key_valid": subject.padded, **formats}


def _telling(name: str, causal: bool, tell: Callable[[str], None]) -> dict[str, Any]:
    began = time.perf_counter()
    record = record_of(name, causal)
    opened = ", ".join(f"{format}: {record[format]['open'] or '-'}" for format in FORMATS)
    tell(f"{name}{' causal' * causal}: {opened} ({time.perf_counter() - began:.1f} s)")
    return record
