"""The environment file: variables beside the configuration, as systemd and Docker read them for the node.

A command that a person runs has the shell's environment, and the node's secret is in this file.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from viiwork_core.errors import ConfigError

NAME: Final = "viiwork.env"
_MAX_BYTES: Final = 64 << 10


def with_env_file(environ: Mapping[str, str], config: Path | None) -> dict[str, str]:
    """The environment, and what the file beside `config` adds to it. Raises ConfigError.

    What is set in the environment counts, also when it is empty: that is how a person says "none".
    """
    return {**read_env_file(config.parent / NAME), **environ} if config is not None else dict(environ)


def read_env_file(path: Path) -> dict[str, str]:
    """NAME=VALUE lines, comments left out, quotes around a value taken off; {} when there is no such file.

    Raises ConfigError, without any of the file's text.
    """
    try:
        with path.open("rb") as file:
            text = file.read(_MAX_BYTES + 1).decode()
    except FileNotFoundError:
        return {}
    except PermissionError:
        raise ConfigError(
            f"{path}: may not be read by this user", remedy="run the command as the node's user"
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read: {type(error).__name__}", remedy="write NAME=VALUE lines") from None
    if len(text) > _MAX_BYTES:
        raise ConfigError(f"{path}: is over 64 KiB", remedy="write NAME=VALUE lines, nothing else")
    pairs = (line.partition("=") for line in text.splitlines() if not line.lstrip().startswith(("#", ";")))
    return {name.strip(): _unquoted(value.strip()) for name, equals, value in pairs if equals}


def _unquoted(value: str) -> str:
    return value[1:-1] if len(value) >= 2 and value[0] == value[-1] and value[0] in "\"'" else value
