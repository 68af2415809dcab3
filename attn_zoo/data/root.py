"""Folder that holds all data sets."""

from __future__ import annotations

import os
from pathlib import Path

VARIABLE = "ATTN_ZOO_DATA"


def data_root(given: str = "") -> Path:
    """Return the folder ``given``, else $ATTN_ZOO_DATA, else ``data`` in the current folder."""
    return Path(given or os.environ.get(VARIABLE) or "data").expanduser()
