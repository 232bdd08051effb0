"""The operator's token: proves to a node with API keys that a command of this machine may read the node's own files.

A new one each time the node starts, in the state folder, readable for the node's user alone. Commands of that user, and
of root, need no API key then.
"""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from typing import Final

HEADER: Final = "X-Viiwork-Operator"
NAME: Final = "operator.token"
_MOST: Final = 128


def write_operator_token(state_dir: Path) -> str:
    """Make a token, and the file for it."""
    token, path = secrets.token_urlsafe(32), state_dir / NAME
    fresh = path.with_suffix(".new")
    fresh.unlink(missing_ok=True)
    # Never readable for others, not even for a moment.
    with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(token)
    fresh.replace(path)
    return token


def read_operator_token(state_dir: Path) -> str | None:
    """None: there is none, or this user may not read it."""
    try:
        with (state_dir / NAME).open() as file:
            return file.read(_MOST).strip() or None
    except (OSError, UnicodeDecodeError):
        return None
