"""Published results: numbers as printed, their experimental settings, and how these settings differ from those of our records."""

from attn_zoo.published.anchors import Anchor, anchor, anchors
from attn_zoo.published.difference import Difference, Facts, phrases, protocol_difference
from attn_zoo.published.figures import SCORE, Figure, Protocol, Source, figures, published_for

__all__ = [
    "SCORE",
    "Anchor",
    "Difference",
    "Facts",
    "Figure",
    "Protocol",
    "Source",
    "anchor",
    "anchors",
    "figures",
    "phrases",
    "protocol_difference",
    "published_for",
]
