"""What an attention, a task and their cards promise. Imports nothing else of the zoo."""

from attn_zoo.contract.attention import Attention, AttentionCard, hide_rows_without_keys
from attn_zoo.contract.carried import CarriedState
from attn_zoo.contract.claims import FLOAT, Capabilities, Cost, Geometry, Stream
from attn_zoo.contract.compressing import CompressingAttention, real_tokens
from attn_zoo.contract.dataset import DataSet, Layout
from attn_zoo.contract.errors import DamagedDataError, MissingDataError, UnknownNameError, UnsupportedError
from attn_zoo.contract.growth import Growth
from attn_zoo.contract.implementations import IMPLEMENTATIONS, auto_may_take, auto_order, unavailable
from attn_zoo.contract.options import LengthRule, added_later, by_length, left_out, length_rules, plain_options
from attn_zoo.contract.task import SPLITS, UNASKED, Batch, Examples, Level, Pairs, Patches, Split, Task, TaskCard, TaskSpec, Tokens

__all__ = [
    "FLOAT",
    "IMPLEMENTATIONS",
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
    "Geometry",
    "Growth",
    "Layout",
    "LengthRule",
    "Level",
    "MissingDataError",
    "Pairs",
    "Patches",
    "Split",
    "Stream",
    "Task",
    "TaskCard",
    "TaskSpec",
    "Tokens",
    "UnknownNameError",
    "UnsupportedError",
    "added_later",
    "auto_may_take",
    "auto_order",
    "by_length",
    "hide_rows_without_keys",
    "left_out",
    "length_rules",
    "plain_options",
    "real_tokens",
    "unavailable",
]
