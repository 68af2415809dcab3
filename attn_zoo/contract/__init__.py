"""Interfaces of mechanisms, of tasks and of their cards. This package may import only ``checks``, ``grouping``, ``precision`` and
``shapes``.
"""

from attn_zoo.contract.attention import Attention, OptionsT
from attn_zoo.contract.attention_card import AttentionCard, choose_implementation
from attn_zoo.contract.auxiliary import AuxiliaryLoss, auxiliary_loss
from attn_zoo.contract.carried import CarriedState, check_state
from attn_zoo.contract.claims import FLOAT, Capabilities, Cost, Geometry, Stream
from attn_zoo.contract.compressing import CompressingAttention, real_tokens
from attn_zoo.contract.dataset import DataSet, Layout
from attn_zoo.contract.dtypes import check_dtype, check_floating
from attn_zoo.contract.errors import DamagedDataError, MissingDataError, UnknownNameError, UnsupportedError
from attn_zoo.contract.growth import Growth
from attn_zoo.contract.implementations import FLA_DTYPE, IMPLEMENTATIONS, auto_may_take, auto_order, unavailable
from attn_zoo.contract.length_maps import LengthMap, LengthMappedAttention, resample
from attn_zoo.contract.masks import allowed_pairs, hide_rows_without_keys, softmax_over_valid, weighted_mean, with_sink_token
from attn_zoo.contract.memory import MemoryAttention, MemoryState
from attn_zoo.contract.options import (
    Bound,
    DropoutOptions,
    LengthRule,
    NoOptions,
    SinkOptions,
    above_zero,
    added_later,
    at_least,
    bounded,
    by_length,
    check_bounds,
    left_out,
    length_rules,
    plain_options,
    share_of_length,
)
from attn_zoo.contract.redraw import RedrawnAttention
from attn_zoo.contract.stack import StackedAttention, join_stacks
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
    "AuxiliaryLoss",
    "Batch",
    "Bound",
    "Capabilities",
    "CarriedState",
    "CompressingAttention",
    "Cost",
    "DamagedDataError",
    "DataSet",
    "DropoutOptions",
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
    "NoOptions",
    "OptionsT",
    "Pairs",
    "Patches",
    "Problem",
    "RedrawnAttention",
    "SinkOptions",
    "Split",
    "StackedAttention",
    "Stream",
    "Task",
    "TaskCard",
    "TaskSpec",
    "Tokens",
    "UnknownNameError",
    "UnsupportedError",
    "above_zero",
    "added_later",
    "allowed_pairs",
    "at_least",
    "auto_may_take",
    "auto_order",
    "auxiliary_loss",
    "bounded",
    "by_length",
    "check_bounds",
    "check_dtype",
    "check_floating",
    "check_state",
    "choose_implementation",
    "hide_rows_without_keys",
    "join_stacks",
    "left_out",
    "length_rules",
    "plain_options",
    "real_tokens",
    "resample",
    "scored",
    "share_of_length",
    "softmax_over_valid",
    "unavailable",
    "weighted_mean",
    "with_sink_token",
]
