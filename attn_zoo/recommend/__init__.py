"""Which attention to take for a need: what holds it, what that costs where it was measured, how it scored, and what is in doubt."""

from attn_zoo.recommend.need import Need
from attn_zoo.recommend.ranking import Choice, Recommendation, recommend

__all__ = ["Choice", "Need", "Recommendation", "recommend"]
