"""Recommendation of an attention for given requirements, from claims, counted cost and recorded accuracy; softmax if none fits."""

from attn_zoo.recommend.ranking import Recommendation, recommend
from attn_zoo.recommend.requirements import Requirements

__all__ = ["Recommendation", "Requirements", "recommend"]
