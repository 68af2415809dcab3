"""Interfaces of attentions, tasks and their cards. Imports nothing else of the zoo but ``precision`` and ``shapes``."""

from attn_zoo.contract.attention import Attention, AttentionCard, choose_implementation, hide_rows_without_keys
from attn_zoo.contract.carried import CarriedState, check_state
from attn_zoo.contract.claims import FLOAT, Capabilities, Cost, Geometry, Stream
from attn_zoo.contract.compressing import CompressingAttention, real_tokens
from attn_zoo.contract.dataset import DataSet, Layout
from attn_zoo.contract.errors import DamagedDataError, MissingDataError, UnknownNameError, UnsupportedError
from attn_zoo.contract.growth import Growth
from attn_zoo.contract.implementations import FLA_DTYPE, IMPLEMENTATIONS, auto_may_take, auto_order, unavailable
from attn_zoo.contract.length_maps import LengthMap, LengthMappedAttention, resample
from attn_zoo.contract.masks import allowed_pairs, softmax_over_valid, weighted_mean
from attn_zoo.contract.memory import MemoryAttention, MemoryState
from attn_zoo.contract.options import (
    LengthRule,
    added_later,
    by_length,
    check_counts,
    check_dropout,
    left_out,
    length_rules,
    plain_options,
)
from attn_zoo.contract.redraw import RedrawnAttention, check_redraw
from attn_zoo.contract.stack import StackedAttention
from attn_zoo.contract.task import (
    METRICS,
    PROBLEMS,
    SPLITS,
    UNASKED,
    Batch,
    Examples,
    Frames,
    Labels,
    Level,
    Pairs,
    Patches,
    Problem,
    Split,
    Task,
    TaskCard,
    TaskSpec,
    Tokens,
    scored,
)

__all__ = [
    "FLA_DTYPE",
    "FLOAT",
    "IMPLEMENTATIONS",
    "METRICS",
    "PROBLEMS",
    "SPLITS",
    "UNASKED",
    "Attention",
    "AttentionCard",
    "Batch",
    "Capabilities",
    "CarriedState",
    "CompressingAttention",
    "Cost",
    "DamagedDataError",
    "DataSet",
    "Examples",
    "Frames",
    "Geometry",
    "Growth",
    "Labels",
    "Layout",
    "LengthMap",
    "LengthMappedAttention",
    "LengthRule",
    "Level",
    "MemoryAttention",
    "MemoryState",
    "MissingDataError",
    "Pairs",
    "Patches",
    "Problem",
    "RedrawnAttention",
    "Split",
    "StackedAttention",
    "Stream",
    "Task",
    "TaskCard",
    "TaskSpec",
    "Tokens",
    "UnknownNameError",
    "UnsupportedError",
    "added_later",
    "allowed_pairs",
    "auto_may_take",
    "auto_order",
    "by_length",
    "check_counts",
    "check_dropout",
    "check_redraw",
    "check_state",
    "choose_implementation",
    "hide_rows_without_keys",
    "left_out",
    "length_rules",
    "plain_options",
    "real_tokens",
    "resample",
    "scored",
    "softmax_over_valid",
    "unavailable",
    "weighted_mean",
]
