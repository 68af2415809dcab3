"""What makes a setting a doubtful one: options that undo the mechanism, and matrix products that cost more than softmax's."""

from __future__ import annotations

from typing import Any

from torch import nn

from attn_zoo.contract import AttentionCard, Geometry
from attn_zoo.layer import MultiHeadAttention
from attn_zoo.registry import card


def doubts(entry: AttentionCard, geometry: Geometry, options: Any) -> tuple[str, ...]:
    """The card's own warnings, and one where its matrix products outnumber those of softmax. Each begins with the mechanism."""
    found = list(entry.build.warnings(geometry, options))
    softmax = card("softmax")
    most = softmax.cost(geometry, softmax.options()).flops
    flops = entry.cost(geometry, options).flops
    if flops > most:
        times = f"{flops / most:.2f}" if flops / most >= 1.005 else "a little over 1.00"
        found.append(f"its matrix products cost {times} times those of softmax here")
    return tuple(f"{entry.name}: {words}" for words in found)


def doubts_of_model(model: nn.Module) -> tuple[str, ...]:
    """Those of all attention layers of a model, each once."""
    layers = [module.mechanism for module in model.modules() if isinstance(module, MultiHeadAttention)]
    return tuple(dict.fromkeys(words for m in layers for words in doubts(m.card, m.geometry, m.options)))
