"""Export of layers and models to ``torch.export`` and ONNX; each written file is run and compared with the eager module."""

from __future__ import annotations

from attn_zoo.export.layers import SIZES, export_layer
from attn_zoo.export.models import FORMATS, TOLERANCE, Exported, ExportRefused, export_model
from attn_zoo.export.tables import table
from attn_zoo.export.trials import survey

__all__ = ["FORMATS", "SIZES", "TOLERANCE", "ExportRefused", "Exported", "export_layer", "export_model", "survey", "table"]
