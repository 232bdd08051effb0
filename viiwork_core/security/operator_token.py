"""The operator's token: proves to a node with API keys that a command of this machine may read the node's own files.

A new one each time the node starts, in the state folder, readable for the node's user alone. Commands of that user, and
of root, need no API key then.
"""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Final

from viiwork_core.atomic_file import write_atomically

HEADER: Final = "X-Viiwork-Operator"
NAME: Final = "operator.token"
_MOST: Final = 128


def write_operator_token(state_dir: Path) -> str:
    """Make a token, and the file for it."""
    token = secrets.token_urlsafe(32)
    write_atomically(state_dir / NAME, token.encode(), settled=False)
    return token


def read_operator_token(state_dir: Path) -> str | None:
    """None: there is none, or this user may not read it."""
    try:
        with (state_dir / NAME).open() as file:
            return file.read(_MOST).strip() or None
    except (OSError, UnicodeDecodeError):
        return None
