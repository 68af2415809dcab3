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
    Bound,
    DropoutOptions,
    LengthRule,
    NoOptions,
    above_zero,
    added_later,
    at_least,
    bounded,
    by_length,
    check_bounds,
    left_out,
    length_rules,
    plain_options,
)
from attn_zoo.contract.redraw import RedrawnAttention
from attn_zoo.contract.stack import StackedAttention
from attn_zoo.contract.task import SPLITS, UNASKED, Batch, Examples, Level, Pairs, Patches, Split, Task, TaskCard, TaskSpec, Tokens

__all__ = [
    "FLA_DTYPE",
    "FLOAT",
    "IMPLEMENTATIONS",
    "SPLITS",
    "UNASKED",
    "Attention",
    "AttentionCard",
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
    "Geometry",
    "Growth",
    "Layout",
    "LengthMap",
    "LengthMappedAttention",
    "LengthRule",
    "Level",
    "MemoryAttention",
    "MemoryState",
    "MissingDataError",
    "NoOptions",
    "Pairs",
    "Patches",
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
    "above_zero",
    "added_later",
    "allowed_pairs",
    "at_least",
    "auto_may_take",
    "auto_order",
    "bounded",
    "by_length",
    "check_bounds",
    "check_state",
    "choose_implementation",
    "hide_rows_without_keys",
    "left_out",
    "length_rules",
    "plain_options",
    "real_tokens",
    "resample",
    "softmax_over_valid",
    "unavailable",
    "weighted_mean",
]
