"""attn-zoo: efficient attention mechanisms behind one interface, compared fairly."""

from attn_zoo.contract import (
    Attention,
    AttentionCard,
    Capabilities,
    Cost,
    Geometry,
    Task,
    TaskCard,
    UnknownNameError,
    UnsupportedError,
)
from attn_zoo.layer import MultiHeadAttention, join_layers
from attn_zoo.registry import (
    attentions,
    build_attention,
    build_task,
    card,
    load_plugins,
    register_attention,
    register_task,
    task_card,
    task_names,
)

__version__ = "0.1.0"

__all__ = [
    "Attention",
    "AttentionCard",
    "Capabilities",
    "Cost",
    "Geometry",
    "MultiHeadAttention",
    "Task",
    "TaskCard",
    "UnknownNameError",
    "UnsupportedError",
    "attentions",
    "build_attention",
    "build_task",
    "card",
    "join_layers",
    "load_plugins",
    "register_attention",
    "register_task",
    "task_card",
    "task_names",
]
