"""The one folder that data are read from."""

from __future__ import annotations

import os
from pathlib import Path

VARIABLE = "ATTN_ZOO_DATA"


def data_root(given: str = "") -> Path:
    """The folder named, else $ATTN_ZOO_DATA, else ``data`` here."""
    return Path(given or os.environ.get(VARIABLE) or "data").expanduser()
