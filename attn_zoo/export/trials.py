"""Survey of exports: every mechanism, causal and not, in both formats, with reasons of failures."""

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
"""Length, width and number of heads of the exported layers; success depends on the operators, not on these sizes."""


def survey(names: Sequence[str] | None = None, tell: Callable[[str], None] = lambda line: None) -> dict[str, Any]:
    """Try to export a layer of each mechanism with its default options, with as many dynamic sizes as the exporter allows.

    Args:
        names: registered attentions; all by default.
        tell: callback that receives a line about each mechanism.

    Returns:
        Setting, versions, and a record for each mechanism and form: for each format the dynamic sizes (None if not exported),
        the difference from eager, and the reasons for missing dynamic sizes.

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
        "records": [_record_with_progress(name, causal, tell) for name, causal in forms],
    }


def record_of(name: str, causal: bool) -> dict[str, Any]:
    """Export a layer of one mechanism, causal or not, in all formats, and record the results."""
    torch.manual_seed(0)
    subject = subject_of(MultiHeadAttention(DIM, HEADS, name, length=LENGTH, causal=causal).eval())
    captured = capture(subject, offered_sizes(subject))
    formats: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for format in FORMATS:
            exported = captured.write_best(Path(folder) / f"layer.{format}", format)
            refused = {sizes: asdict(reason) for sizes, reason in captured.refused[format].items()}
            formats[format] = {
                "open": None if exported is None else " and ".join(exported.open_sizes) or "fixed",
                "refused": refused,
            }
            if exported is not None:
                formats[format]["difference"] = float(f"{exported.difference:.0e}")
    return {"attention": name, "causal": causal, "key_valid": subject.padded, **formats}


def _record_with_progress(name: str, causal: bool, tell: Callable[[str], None]) -> dict[str, Any]:
    began = time.perf_counter()
    record = record_of(name, causal)
    opened = ", ".join(f"{format}: {record[format]['open'] or '-'}" for format in FORMATS)
    tell(f"{name}{' causal' * causal}: {opened} ({time.perf_counter() - began:.1f} s)")
    return record
