"""A double of Strata for tests: the server's interface and session files, without a model or a GPU."""

from __future__ import annotations

import json
from pathlib import Path

CHECKOUT = Path(__file__).parent / "checkout"
"""As the option `dir`, with `python` the running interpreter, it makes the engine start the double."""


def write_config(
    folder: Path, model: str, *, context: int = 4096, seed: str = "one", kv: str = "int8", **keys: object
) -> Path:
    """Write a Strata JSON with its binary and its model pack into `folder`, which must exist, and return its path.

    `keys` are further keys of the JSON.

    Session files fit from one double to another when context, seed (the model's bytes) and kv are equal.
    """
    exe, pack, path = folder / "strata", folder / "pack.bin", folder / "strata.json"
    exe.write_bytes(b"a stand-in for the engine's binary\n")
    exe.chmod(0o755)
    pack.write_bytes(f"a stand-in for the model's weights: {seed}\n".encode())
    args = ["--model", str(pack), "--kv", kv, "--max-context", str(context)]
    path.write_text(json.dumps({"exe": str(exe), "args": args, "model_name": model, **keys}, indent=2))
    return path
