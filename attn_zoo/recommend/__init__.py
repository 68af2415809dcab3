"""Recommendation of a mechanism for given requirements, from declared capabilities, counted costs and recorded scores."""

from attn_zoo.recommend.ranking import Recommendation, recommend
from attn_zoo.recommend.requirements import Requirements

__all__ = ["Recommendation", "Requirements", "recommend"]
