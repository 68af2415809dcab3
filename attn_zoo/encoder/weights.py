"""Files that hold the weights of a network, and the facts that are needed to build the network again."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

SUFFIX = ".safetensors"
_HEADER = "attn_zoo_weights"


def save_weights(model: nn.Module, file: Path, facts: Mapping[str, Any]) -> None:
    """Write the weights and buffers of a network to ``file``, together with ``facts`` (plain data about the network). An existing
    file is replaced as a whole.

    Raises:
        OSError: the file cannot be written.
    """
    tensors = {name: tensor.detach().cpu().clone().contiguous() for name, tensor in model.state_dict().items()}
    half = file.with_name(f"{file.name}.half")
    file.parent.mkdir(parents=True, exist_ok=True)
    try:
        save_file(tensors, half, metadata={_HEADER: json.dumps(dict(facts))})
        half.replace(file)
    except (OSError, SafetensorError) as error:
        half.unlink(missing_ok=True)
        raise OSError(f"the weights could not be written to {str(file)!r}: {error}") from error


def read_weights(file: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the tensors in ``file`` by name, and the facts that were given to ``save_weights``.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the file was not written by ``save_weights``.
    """
    if not file.is_file():
        raise FileNotFoundError(
            f"the weights file {str(file)!r} does not exist; attn-zoo run weights.after=[STEP] writes such files"
        )
    try:
        with safe_open(file, framework="pt") as opened:
            facts = json.loads((opened.metadata() or {})[_HEADER])
            return {name: opened.get_tensor(name) for name in opened.keys()}, facts  # noqa: SIM118 (no mapping)
    except (SafetensorError, KeyError, ValueError) as error:
        raise ValueError(
            f"{str(file)!r} does not hold the weights of a run; attn-zoo run weights.after=[STEP] writes such files"
        ) from error
