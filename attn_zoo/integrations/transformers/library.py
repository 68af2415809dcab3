"""Import of the package transformers when it is needed, and registration of attn-zoo's functions with it."""

from __future__ import annotations

import importlib.util
from typing import Any

from attn_zoo.contract import UnsupportedError
from attn_zoo.integrations.transformers.description import NAME


def require_transformers() -> Any:
    """Register attn-zoo's attention and mask functions with the package transformers, and return the package. Models with their
    original attention are not affected.

    Raises:
        UnsupportedError: the package is missing; the message gives the command to install it.
    """
    if importlib.util.find_spec("transformers") is None:
        raise UnsupportedError(
            "models of Hugging Face need the package transformers, which is not installed. Install it with: pip install "
            "'attn-zoo[text]'"
        )
    import transformers

    from attn_zoo.integrations.transformers.interface import attend, key_mask

    transformers.AttentionInterface.register(NAME, attend)
    transformers.AttentionMaskInterface.register(NAME, key_mask)
    return transformers
