"""Settings of PyTorch's compiler. All mechanisms that compile code share them."""

from __future__ import annotations

import copy
import sys
from collections.abc import Mapping
from typing import Any

from attn_zoo.process_state.part import Part

_FRAMES = "torch._dynamo.eval_frame"
"""Module that holds the stance of the compiler."""
_MODULES = ("torch._dynamo.config", "torch._inductor.config", "torch._functorch.config")

Settings = Mapping[tuple[str, str], Any]
"""Values of settings by module and name."""


def _changed() -> Settings:
    """Return the settings that differ from their defaults. A module that nobody has imported yet has none."""
    loaded = {name: module for name in _MODULES if (module := sys.modules.get(name)) is not None}
    return {
        (name, key): copy.deepcopy(value)
        for name, module in loaded.items()
        for key, entry in vars(module)["_config"].items()
        if not module._is_default(key) and (value := getattr(module, key)) != entry.default  # PyTorch sets some to the default
    }


def _put(before: Settings) -> None:
    for name, key in _changed().keys() - before.keys():
        module = sys.modules[name]
        setattr(module, key, copy.deepcopy(vars(module)["_config"][key].default))
    for (name, key), value in before.items():
        setattr(sys.modules[name], key, copy.deepcopy(value))


def _stance() -> Any:
    """Return whether compiled functions are compiled (``torch.compiler.set_stance``), or None if nobody has imported the
    compiler."""
    module = sys.modules.get(_FRAMES)
    return None if module is None else copy.copy(module._stance)


def _same_stance(before: Any, now: Any) -> bool:
    return bool(now == before or (before is None and now == type(now)()))


def _put_stance(before: Any) -> None:
    module = sys.modules[_FRAMES]
    vars(module)["_stance"] = module.DynamoStance() if before is None else before


COMPILER = Part("settings of the compiler", _changed, _put)
STANCE = Part("stance of the compiler", _stance, _put_stance, _same_stance)
