"""The identical network around every attention."""

from attn_zoo.encoder.build import build_model, build_paired_model, share_initial_weights
from attn_zoo.encoder.token import TokenClassifier

__all__ = ["TokenClassifier", "build_model", "build_paired_model", "share_initial_weights"]
