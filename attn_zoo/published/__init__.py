"""Published results: numbers as printed, their experimental settings, and the differences from records of the zoo."""

from attn_zoo.published.difference import Facts, protocol_difference
from attn_zoo.published.figures import SCORE, Average, Figure, Protocol, Source, averages, figures, published_for, sources
from attn_zoo.published.orderings import Ordering, orderings

__all__ = [
    "SCORE",
    "Average",
    "Facts",
    "Figure",
    "Ordering",
    "Protocol",
    "Source",
    "averages",
    "figures",
    "orderings",
    "protocol_difference",
    "published_for",
    "sources",
]
