"""The folder that contains all data sets."""

from __future__ import annotations

import os
from pathlib import Path

VARIABLE = "ATTN_ZOO_DATA"


def data_root(given: str = "") -> Path:
    """Return the data folder. It is ``given``; if that is empty, $ATTN_ZOO_DATA; and without this variable, ``data`` in the current
    folder."""
    return Path(given or os.environ.get(VARIABLE) or "data").expanduser()
