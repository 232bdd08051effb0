"""Makes plain.py importable: the node that a test kills imports it too, from outside pytest."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
