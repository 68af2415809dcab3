"""The README says what is: its tables come from committed results, its Python runs, its commands exist."""

from __future__ import annotations

import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
