"""Layers and models as programs for other runtimes: ``torch.export`` and ONNX, written, read again and compared with eager."""

from __future__ import annotations

from attn_zoo.export.layers import SIZES, export_layer
from attn_zoo.export.models import FORMATS, TOLERANCE, Exported, ExportRefused, export_model
from attn_zoo.export.tables import table
from attn_zoo.export.trials import survey

__all__ = ["FORMATS", "SIZES", "TOLERANCE", "ExportRefused", "Exported", "export_layer", "export_model", "survey", "table"]
