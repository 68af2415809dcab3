"""Transplants: experiments that replace the attention of a trained encoder, train it to imitate the original, and compare both."""

from attn_zoo.analysis.starts import Start
from attn_zoo.transplant.encoder import Teacher, load_teacher
from attn_zoo.transplant.experiment import STAGES, Bench, check, swap
from attn_zoo.transplant.setting import Candidate, Setting, Trial
from attn_zoo.transplant.texts import Material, gather

__all__ = [
    "STAGES",
    "Bench",
    "Candidate",
    "Material",
    "Setting",
    "Start",
    "Teacher",
    "Trial",
    "check",
    "gather",
    "load_teacher",
    "swap",
]
