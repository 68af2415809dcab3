"""Published results: numbers as printed, their experimental settings, and the published score to show beside each mechanism."""

from attn_zoo.published.anchors import Anchor, anchors
from attn_zoo.published.figures import SCORE, Figure, Protocol, Source, figures, published_for

__all__ = ["SCORE", "Anchor", "Figure", "Protocol", "Source", "anchors", "figures", "published_for"]
