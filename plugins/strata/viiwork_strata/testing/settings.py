"""What the double takes from its command line and its JSON file."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from viiwork_strata.testing.session_store import Identity, hash64

VERSION = "0.1.42-double"
_CONFIG_FLAGS = ("--kv", "--kv-resident", "--max-context", "--mtp-window", "--rope", "--control-vector", "--native-")
_EDGE = 1 << 20
"""The model's fingerprint covers each file's size and its first and last MiB."""


@dataclass(frozen=True, slots=True)
class Settings:
    """A double's settings. Times in seconds."""

    host: str
    port: int
    model: str
    max_context: int
    identity: Identity
    slot_dir: Path | None
    batch: bool
    """More than one slot is configured: no session files then."""

    one_stage: bool
    """False: the engine runs over several cards or without its prompt cache, and refuses session files."""

    load_seconds: float
    token_seconds: float


def parse(argv: Sequence[str] | None = None) -> Settings:
    """Exits 2 for bad arguments and 1 for a bad JSON, as Strata does."""
    options = _parser().parse_args(argv)
    config = _read(Path(options.config))
    args = _args(config)
    return Settings(
        host=options.host or str(config.get("host", "127.0.0.1")),
        port=options.port,
        model=str(config.get("model_name", "qwen3.8-flash-next")),
        max_context=_max_context(args),
        identity=Identity(_model_fingerprint(config, args), _config_fingerprint(config, args)),
        slot_dir=_slot_dir(options.slot_save_path, config),
        batch=_parallel(config) or "--batch" in args or "--slots" in args,
        one_stage=not {"--layer-split", "--peer-device"} & set(args) and _value(args, "--prompt-cache") != "0",
        load_seconds=options.load_seconds,
        token_seconds=options.token_seconds,
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="viiwork_strata.testing.double", allow_abbrev=False)
    parser.add_argument("--engine", choices=["mock", "strata"], default="mock")
    parser.add_argument("--config", required=True)
    parser.add_argument("--host")
    parser.add_argument("--port", type=int, default=8095)
    parser.add_argument("--gpu")
    parser.add_argument("--slot-save-path")
    parser.add_argument("--load-seconds", type=float, default=0.0, help="the double's own: how long loading takes")
    parser.add_argument("--token-seconds", type=float, default=0.0, help="the double's own: time for each new token")
    return parser


def _read(path: Path) -> dict[str, object]:
    try:
        config = json.loads(path.read_text("utf-8-sig"))
    except (OSError, ValueError) as error:
        raise SystemExit(f"bad config {path}: {error}") from error
    if not isinstance(config, dict):
        raise SystemExit(f"bad config {path}: not an object")
    return config


def _args(config: dict[str, object]) -> list[str]:
    args = config.get("args", [])
    if not isinstance(args, list) or not all(isinstance(arg, str) for arg in args):
        raise SystemExit("bad config: args must be a list of strings")
    if any(arg.startswith("--max-context=") for arg in args):
        raise SystemExit("engine: unknown argument --max-context=N")
    return args


def _value(args: Sequence[str], flag: str) -> str | None:
    """The argument after the first occurrence of the flag."""
    at = args.index(flag) + 1 if flag in args else len(args)
    return args[at] if at < len(args) else None


def _max_context(args: Sequence[str]) -> int:
    value = _value(args, "--max-context") or "4096"
    if not value.isdecimal():
        raise SystemExit(f"engine: --max-context {value} is not a number")
    return int(value)


def _parallel(config: dict[str, object]) -> bool:
    value = config.get("parallel")
    return isinstance(value, int) and not isinstance(value, bool) and value > 1


def _cwd(config: dict[str, object]) -> Path:
    return Path.cwd() / str(config.get("cwd", ""))


def _slot_dir(option: str | None, config: dict[str, object]) -> Path | None:
    if option is None and "slot_save_path" not in config:
        return None
    folder = Path(option).resolve() if option is not None else _cwd(config) / str(config["slot_save_path"])
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder


def _model_fingerprint(config: dict[str, object], args: Sequence[str]) -> int:
    """Role, size and edges of every file that the arguments name; the paths do not matter."""
    seen = b""
    for role, value in zip(["", *args], args, strict=False):
        path = _cwd(config) / value
        if path.is_file():
            data = path.read_bytes()
            seen += role.encode() + len(data).to_bytes(8, "little") + data[:_EDGE] + data[-_EDGE:]
    return hash64(seen)


def _config_fingerprint(config: dict[str, object], args: Sequence[str]) -> int:
    env = config.get("env")
    rotation = env.get("STRATA_KV_ROT") if isinstance(env, dict) else None
    chosen = [(arg, _value(args, arg)) for arg in args if arg == "--no-ple" or arg.startswith(_CONFIG_FLAGS)]
    return hash64(json.dumps([VERSION, config.get("backend", "cuda"), rotation, chosen]).encode())
