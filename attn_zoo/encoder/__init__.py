"""Networks around the mechanisms. Networks for different mechanisms differ only in the mechanism."""

from attn_zoo.encoder.build import build_model, build_paired_model, build_token_reader, share_initial_weights
from attn_zoo.encoder.image import ImageClassifier, backbone_sizes
from attn_zoo.encoder.loss import LOSSES
from attn_zoo.encoder.token import PairClassifier, PositionClassifier, TokenClassifier, TokenEncoder

__all__ = [
    "LOSSES",
    "ImageClassifier",
    "PairClassifier",
    "PositionClassifier",
    "TokenClassifier",
    "TokenEncoder",
    "backbone_sizes",
    "build_model",
    "build_paired_model",
    "build_token_reader",
    "share_initial_weights",
]
