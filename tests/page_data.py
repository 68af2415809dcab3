"""Data of the HTML page, which its script reads."""

from __future__ import annotations

import base64
import json
import re
import zlib
from typing import Any


def data_of(page: str) -> dict[str, Any]:
    """Return the data of a page."""
    (coded,) = re.findall(r'<script type="text/plain" id="data">([A-Za-z0-9+/=]+)</script>', page)
    return dict(json.loads(zlib.decompress(base64.b64decode(coded))))


def text_of(page: str) -> str:
    """Return every text of the data of a page but plots, one on each line."""

    def texts(value: Any) -> list[str]:
        if isinstance(value, dict):
            return [text for name, item in value.items() if name != "plots" for text in texts(item)]
        return [text for item in value for text in texts(item)] if isinstance(value, list) else [str(value)]

    return "\n".join(texts(data_of(page)))
