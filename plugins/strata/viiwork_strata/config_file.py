"""The JSON file that a Strata server is started from, read as Strata reads it."""

from __future__ import annotations

import json
import os
import stat
from codecs import BOM_UTF8
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from viiwork_core import ConfigError, Spec

LARGEST = 1 << 20
"""Bytes. Strata's own files have a few kilobytes; a larger one is some other file."""

_REMEDY = "set it to the Strata JSON file of the model"


@dataclass(frozen=True, slots=True)
class ConfigFile:
    """One reading of the file."""

    path: Path
    values: Mapping[str, object]


def refusal(spec: Spec, key: str, reason: str, remedy: str) -> ConfigError:
    """Why the model cannot be started: `key` is what must be changed, or what disagrees with it."""
    return ConfigError(f"model {spec.model}: {key}: {reason}", remedy=remedy)


def config_path(spec: Spec) -> Path:
    """The JSON file of the model. Raises ConfigError when there is none."""
    if spec.path is None:
        raise refusal(spec, "path", "is missing", _REMEDY)
    return spec.path


def read_config(spec: Spec) -> ConfigFile:
    """Read the model's JSON file (UTF-8, a byte order mark is ignored). Blocking.

    Raises ConfigError when it cannot be read, is not a regular file of 1 MiB at most, or is not a JSON object.
    """
    path = config_path(spec)
    try:
        data = _bytes_of(path).removeprefix(BOM_UTF8)
        values = json.loads(data.decode())
    except OSError as error:
        raise refusal(spec, "path", f"{path} cannot be read: {error.strerror}", _REMEDY) from error
    except _NotAConfig as error:
        raise refusal(spec, "path", f"{path} {error}", _REMEDY) from error
    except (ValueError, RecursionError) as error:
        raise refusal(spec, "path", f"{path} is not JSON: {error}", "correct the file") from error
    if not isinstance(values, dict):
        raise refusal(spec, "path", f"{path} is not a JSON object", _REMEDY)
    return ConfigFile(path, values)


class _NotAConfig(Exception):
    """Whatever it is, it is not such a file."""


def _bytes_of(path: Path) -> bytes:
    # Without blocking, since opening a named pipe would wait for a writer.
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise _NotAConfig("is not a regular file")
        data = file.read(LARGEST + 1)
    if len(data) > LARGEST:
        raise _NotAConfig(f"has more than {LARGEST} bytes (1 MiB)")
    return data
