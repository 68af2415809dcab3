"""Loading of saved models whose softmax attention was replaced by a mechanism."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from attn_zoo.contract import UnknownNameError, UnsupportedError
from attn_zoo.integrations.transformers.description import Replacement, replacements_of
from attn_zoo.integrations.transformers.library import require_transformers
from attn_zoo.integrations.transformers.replace import carry_out, zoo_layers
from attn_zoo.rows import attention_version


def from_pretrained(kind: Any, folder: str | Path, **options: Any) -> Any:
    """Return a model with replaced attention that was saved by ``save_pretrained``. Its weights must be in the format safetensors.

    Args:
        kind: ``AutoModel``, another of transformers' auto classes, or the model's own class.
        folder: path of a folder, or a name on the Hugging Face hub.
        **options: arguments of transformers' ``from_pretrained``, such as ``dtype`` and ``device_map``.

    Returns:
        The model, in evaluation mode, with its saved mechanisms.

    Raises:
        UnsupportedError: the configuration does not describe a replaced attention, weights of a mechanism are missing or
            unexpected, or a mechanism is missing or has another version. It is also raised if an option would run code from the
            folder or load weights in another format, or if the package transformers is missing.
        OSError: transformers finds no such model.
    """
    library = require_transformers()
    _refuse_code(options)
    own = {name: options[name] for name in ("cache_dir", "revision", "token", "local_files_only", "subfolder") if name in options}
    config = options.pop("config", None) or library.AutoConfig.from_pretrained(folder, trust_remote_code=False, **own)
    replacements = replacements_of(config)
    if not replacements:
        raise UnsupportedError(
            f"the configuration in {folder} must describe a replaced attention, but does not. Load the model with "
            "from_pretrained of transformers"
        )
    for replacement in replacements:
        _require(replacement, folder)
    model_class = _class_for(kind, config, library)
    loader = _with_mechanisms(model_class, replacements)
    wants_info = options.pop("output_loading_info", False)
    safe = {"use_safetensors": True, "trust_remote_code": False}
    model, info = loader.from_pretrained(folder, config=config, **{**options, **safe}, output_loading_info=True)
    model.__class__ = model_class
    _check_whole(model, info, folder, library.__version__)
    return (model, info) if wants_info else model


def _refuse_code(options: Mapping[str, Any]) -> None:
    """Raise an error if an option asks for code from the folder, or for weights in a format that can hold code."""
    if options.get("trust_remote_code"):
        raise UnsupportedError(
            "trust_remote_code must not be given, because code in the folder of a model is never run. Leave it out"
        )
    formats = [name for name in ("gguf_file", "from_tf", "from_flax") if options.get(name)]
    if formats or options.get("use_safetensors") not in (None, True):
        name = formats[0] if formats else "use_safetensors"
        raise UnsupportedError(f"weights must be in the format safetensors, because other formats can run code. Leave {name} out")


def _require(replacement: Replacement, folder: str | Path) -> None:
    try:
        version = attention_version(replacement.attention)
    except UnknownNameError as error:
        package = replacement.origin.partition(".")[0] or "a package that is not named"
        raise UnsupportedError(
            f"the model in {folder} needs the mechanism {replacement.attention!r} of {package}, which is not installed or "
            f"could not be loaded. Install this package, or see attn-zoo list for the cause. {error}"
        ) from error
    if version != replacement.attention_version:
        raise UnsupportedError(
            f"the model in {folder} needs version {replacement.attention_version} of {replacement.attention}, but this "
            f"attn-zoo has version {version}. Load the model with the version of attn-zoo that saved it"
        )


def _class_for(kind: Any, config: Any, library: Any) -> Any:
    if issubclass(kind, library.PreTrainedModel):
        return kind
    with torch.device("meta"):
        return type(kind.from_config(config, trust_remote_code=False))


def _with_mechanisms(model_class: Any, replacements: list[Replacement]) -> Any:
    """Return a subclass whose constructor attaches the mechanisms, so that transformers loads their weights too."""

    def build(self: Any, config: Any, *args: Any, **kwargs: Any) -> None:
        model_class.__init__(self, config, *args, **kwargs)
        for replacement in replacements:
            carry_out(self, replacement)

    # It has the name of the original, because transformers imports the module of a class and saves its name.
    attributes = {"__init__": build, "__module__": model_class.__module__, "__qualname__": model_class.__qualname__}
    return type(model_class.__name__, (model_class,), attributes)


def _check_whole(model: Any, info: Any, folder: str | Path, version: str) -> None:
    """Raise an error if weights of a mechanism were not loaded and still have their initial values."""
    misfits = [f"{word} {name}" for word in ("missing", "unexpected") for name in info[f"{word}_keys"] if ".zoo." in name]
    for mechanism in zoo_layers(model):
        unsaved = {name for name, _ in mechanism.named_buffers()} - set(mechanism.state_dict())
        misfits += [f"unsaved {mechanism.card.name} {name}" for name in sorted(unsaved)]
    if misfits:
        raise UnsupportedError(
            f"the weights in {folder} do not fit the mechanisms of its configuration: {', '.join(sorted(misfits)[:8])}. They "
            f"were saved with transformers {getattr(model.config, 'transformers_version', None)}, and this is version "
            f"{version}. Load the model with that version, or pass key_mapping= if modules were renamed"
        )
