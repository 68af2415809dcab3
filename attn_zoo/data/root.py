"""The folder that contains all data sets."""

from __future__ import annotations

import os
from pathlib import Path

VARIABLE = "ATTN_ZOO_DATA"


def data_root(given: str = "") -> Path:
    """Return the data folder. It is ``given`` or, if ``given`` is empty, $ATTN_ZOO_DATA. If this variable is not set, it is
    ``data`` in the current folder."""
    return Path(given or os.environ.get(VARIABLE) or "data").expanduser()
