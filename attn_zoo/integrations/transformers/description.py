"""Description of replaced attention in the configuration of a model, as JSON that is saved and loaded with the model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from enum import Enum
from typing import Any

from attn_zoo.contract import UnsupportedError

NAME = "attn_zoo"
"""Name of the zoo's attention implementation in transformers, and its key in a model's configuration."""

NOTHING_ATTACHED = (
    f"attn_implementation={NAME!r}, but no mechanism is attached to this model; use replace_attention of "
    "attn_zoo.integrations.transformers, or its from_pretrained for a saved model"
)

VERSION = 1
"""Version of the description's layout; other versions are refused."""


@dataclass(frozen=True, slots=True)
class Replacement:
    """Arguments of one call of ``replace_attention``. The length is always filled in."""

    attention: str
    implementation: str
    length: int
    layers: list[int] | None = None
    attention_dropout: float | None = None
    options: dict[str, Any] = field(default_factory=dict)
    short_convolution: int = 0
    origin: str = ""
    """Module of the mechanism, for the error message if its package is missing."""
    attention_version: int = 1
    """Version of the mechanism's card; for a hybrid as in the spec of a run."""


def add(config: Any, replacement: Replacement) -> None:
    """Append a replacement to the list in a model's configuration."""
    entry = asdict(replacement)
    for name, usual in {"short_convolution": 0, "attention_version": 1}.items():
        if entry[name] == usual:  # added to version 1 later: older releases read only entries without it
            del entry[name]
    entry["options"] = {name: value.value if isinstance(value, Enum) else value for name, value in replacement.options.items()}
    _write(config, replacements=[*_read(config).get("replacements", []), entry])


def replacements_of(config: Any) -> list[Replacement]:
    """Return the replacements in a configuration in order.

    Raises:
        UnsupportedError: this version cannot read the layout.
    """
    description = _read(config)
    try:
        return [Replacement(**one) for one in description.get("replacements", [])]
    except TypeError as error:
        raise UnsupportedError(
            f"config.{NAME} describes a replaced attention, and this description cannot be read: {error}; load the model with the "
            "attn-zoo that saved it"
        ) from error


def set_directions(config: Any, causal: Iterable[bool]) -> None:
    """Store in a configuration whether its mechanisms are causal. The mask function receives the configuration and reads this."""
    _write(config, causal=sorted(set(causal)))


def directions_of(config: Any) -> list[bool]:
    """Return whether the mechanisms with a configuration are causal: a list of True, False or both."""
    return list(_read(config).get("causal", ()))


def _read(config: Any) -> Mapping[str, Any]:
    description = getattr(config, NAME, None)
    if description is None:
        return {}
    if not isinstance(description, Mapping) or description.get("version") != VERSION:
        version = description.get("version") if isinstance(description, Mapping) else description
        raise UnsupportedError(
            f"config.{NAME} must have version {VERSION} for this attn-zoo; got {version!r}; "
            "load the model with the attn-zoo that saved it"
        )
    return description


def _write(config: Any, **description: Any) -> None:
    setattr(config, NAME, {**_read(config), "version": VERSION, **description})
