"""attn-zoo compares efficient attention mechanisms behind one interface."""

from __future__ import annotations

TYPE_CHECKING = False  # typing itself takes ten milliseconds to import, in which an interrupt would print a traceback
if TYPE_CHECKING:
    from typing import Any

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

_ROOMS = ("contract", "layer", "registry")
"""Modules that define the names in ``__all__``."""


def __getattr__(name: str) -> Any:
    """Import a name when it is first used. Tables of records then do not wait for PyTorch, whose import takes seconds."""
    from importlib import import_module

    if name in __all__:
        for room in _ROOMS:
            found = getattr(import_module(f"attn_zoo.{room}"), name, None)
            if found is not None:
                globals()[name] = found
                return found
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
