"""Recommendation of an attention for given requirements, from capabilities, measured cost, recorded accuracy, and doubts."""

from attn_zoo.recommend.need import Need
from attn_zoo.recommend.ranking import Choice, Recommendation, recommend

__all__ = ["Choice", "Need", "Recommendation", "recommend"]
