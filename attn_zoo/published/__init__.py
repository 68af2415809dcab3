"""Published results: numbers as printed, their experimental settings, and how these settings differ from those of our records."""

from attn_zoo.published.anchors import Anchor, anchor, anchors
from attn_zoo.published.difference import Difference, Facts, phrases, protocol_difference
from attn_zoo.published.figures import SCORE, Average, Figure, Protocol, Source, averages, figures, published_for, sources

__all__ = [
    "SCORE",
    "Anchor",
    "Average",
    "Difference",
    "Facts",
    "Figure",
    "Protocol",
    "Source",
    "anchor",
    "anchors",
    "averages",
    "figures",
    "phrases",
    "protocol_difference",
    "published_for",
    "sources",
]
