"""Descriptions of replaced attention. They are JSON in the configuration of a model, which is saved and loaded with the model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from enum import Enum
from typing import Any

from attn_zoo.contract import UnsupportedError

NAME = "attn_zoo"
"""Name of attn-zoo's attention implementation in transformers, and its key in the configuration of a model."""

NOTHING_ATTACHED = (
    f"attn_implementation={NAME!r} needs a model whose attention attn-zoo replaced, and this model has its own. Call "
    "replace_attention of attn_zoo.integrations.transformers, or its from_pretrained for a saved model"
)

VERSION = 1
"""Version of the layout of the descriptions. Other versions cannot be read."""


@dataclass(frozen=True, slots=True)
class Replacement:
    """Arguments of one call of ``replace_attention``. If the call gave no length, ``length`` is the model's number of positions."""

    attention: str
    implementation: str
    length: int
    layers: list[int] | None = None
    attention_dropout: float | None = None
    options: dict[str, Any] = field(default_factory=dict)
    short_convolution: int = 0
    origin: str = ""
    """Module that defines the mechanism. An error names it if the package of the mechanism is missing."""
    attention_version: int = 1
    """Version of the mechanism's card. For a hybrid, it is 1 plus the sum of (version - 1) over its mechanisms."""


def add(config: Any, replacement: Replacement) -> None:
    """Append a replacement to the list in the configuration of a model."""
    options = {name: value.value if isinstance(value, Enum) else value for name, value in replacement.options.items()}
    _write(config, replacements=[*_read(config).get("replacements", []), {**asdict(replacement), "options": options}])


def forget(config: Any) -> None:
    """Remove the description from a configuration, because the model has its own attention."""
    if hasattr(config, NAME):
        delattr(config, NAME)


def replacements_of(config: Any) -> list[Replacement]:
    """Return the replacements in a configuration, in the order in which they were made.

    Raises:
        UnsupportedError: this version of attn-zoo cannot read the layout of the stored replacements.
    """
    description = _read(config)
    try:
        return [Replacement(**one) for one in description.get("replacements", [])]
    except TypeError as error:
        raise UnsupportedError(
            f"config.{NAME} must describe the replaced attention, but cannot be read: {error}. Load the model with the "
            "version of attn-zoo that saved it"
        ) from error


def set_directions(config: Any, causal: Iterable[bool]) -> None:
    """Store in a configuration whether its mechanisms are causal, for the mask function ``key_mask``."""
    _write(config, causal=sorted(set(causal)))


def directions_of(config: Any) -> list[bool]:
    """Return the directions that occur among the mechanisms of a configuration: False for bidirectional, True for causal."""
    return list(_read(config).get("causal", ()))


def _read(config: Any) -> Mapping[str, Any]:
    description = getattr(config, NAME, None)
    if description is None:
        return {}
    if not isinstance(description, Mapping) or description.get("version") != VERSION:
        version = description.get("version") if isinstance(description, Mapping) else description
        raise UnsupportedError(
            f"config.{NAME} must have version {VERSION}; got {version!r}. Load the model with the version of attn-zoo that saved it"
        )
    return description


def _write(config: Any, **description: Any) -> None:
    setattr(config, NAME, {**_read(config), "version": VERSION, **description})
