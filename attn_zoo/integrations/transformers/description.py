"""What a model's configuration says of its replaced attention, as plain JSON, so that it is saved and loaded with it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from enum import Enum
from typing import Any

from attn_zoo.contract import UnsupportedError

NAME = "attn_zoo"
"""Our name among transformers' attention implementations, and our key in a model's configuration."""

NOTHING_ATTACHED = (
    f"attn_implementation={NAME!r}, but no mechanism is attached to this model; use replace_attention of "
    "attn_zoo.integrations.transformers, or its from_pretrained for a saved model"
)

VERSION = 1
"""Of the layout below. A layout of another version is refused, not guessed at."""


@dataclass(frozen=True, slots=True)
class Replacement:
    """One call of ``replace_attention``, with its length decided."""

    attention: str
    implementation: str
    length: int
    layers: list[int] | None = None
    attention_dropout: float | None = None
    options: dict[str, Any] = field(default_factory=dict)
    short_convolution: int = 0
    origin: str = ""
    """Where the mechanism came from, for whoever lacks it."""


def add(config: Any, replacement: Replacement) -> None:
    """Write a replacement into a model's configuration, after those before it."""
    said = asdict(replacement)
    if not replacement.short_convolution:  # younger than the layout, which older versions still read without it
        del said["short_convolution"]
    said["options"] = {name: value.value if isinstance(value, Enum) else value for name, value in replacement.options.items()}
    _write(config, replacements=[*_read(config).get("replacements", []), said])


def replacements_of(config: Any) -> list[Replacement]:
    """The replacements that a configuration tells of, in order.

    Raises:
        UnsupportedError: they are written in a layout that this version does not read.
    """
    said = _read(config)
    try:
        return [Replacement(**one) for one in said.get("replacements", [])]
    except TypeError as error:
        raise UnsupportedError(f"config.{NAME} tells of a replacement that cannot be read: {error}") from error


def set_directions(config: Any, causal: Iterable[bool]) -> None:
    """Note in the configuration, which mask functions are given, whether the mechanisms under it were built causal."""
    _write(config, causal=sorted(set(causal)))


def directions_of(config: Any) -> list[bool]:
    """Whether the mechanisms under a configuration were built causal; both, where the model has both."""
    return list(_read(config).get("causal", ()))


def _read(config: Any) -> Mapping[str, Any]:
    said = getattr(config, NAME, None)
    if said is None:
        return {}
    if not isinstance(said, Mapping) or said.get("version") != VERSION:
        version = said.get("version") if isinstance(said, Mapping) else said
        raise UnsupportedError(
            f"config.{NAME} has version {version!r}, and this attn-zoo reads version {VERSION}; "
            "load the model with the attn-zoo that saved it"
        )
    return said


def _write(config: Any, **said: Any) -> None:
    setattr(config, NAME, {**_read(config), "version": VERSION, **said})
