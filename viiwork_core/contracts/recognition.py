"""What the setup wizard finds in a folder of models, and shows to the engines."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, slots=True)
class FolderListing:
    """One folder, without what lies in folders below it."""

    path: Path
    """Absolute."""

    files: Mapping[str, int]
    """Names of its regular files, and their sizes in bytes. Links to regular files are among them. Nothing else is:
    no pipes, no sockets, no links that lead nowhere."""


@dataclass(frozen=True, slots=True)
class FoundModel:
    """A model that an engine recognises. None: the files do not say."""

    name: str
    """What it could be called, in lower case, the same for each quantisation of it: two machines that serve the same
    model under one name share its requests."""

    path: Path
    """What stands in models[].path: the file or the folder."""

    bytes: int
    """Of its weights, all parts together."""

    kind: str = ""
    """What people would call it: its architecture, and how it is quantised."""

    context: int | None = None
    """Tokens of the longest context that it was trained on."""

    token_bytes: int | None = None
    """What one token takes in the KV cache, in 16 bits, over all layers."""

    options: Mapping[str, object] = field(default_factory=dict)
    """What the engine's block needs to say for it; mostly nothing."""

    problem: str = ""
    """Why it cannot be served, as one sentence that names what to do; empty: it can. What is damaged or lacks a part is
    told instead of left out, since somebody may look for it."""
