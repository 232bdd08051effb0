"""What the double takes from its command line and its JSON file."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from viiwork_strata.testing.session_store import Identity, hash64

VERSION = "0.1.42-double"
_CONFIG_FLAGS = ("--kv", "--kv-resident", "--max-context", "--mtp-window", "--rope", "--control-vector", "--native-")
_BATCH = {"--batch", "--slots"}
_MOST_SLOTS = 8
_ABOUT = "A double of Strata's server, without a model. SIGUSR1 kills its engine, and the next request restarts it."
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
    slots: int
    """Requests at a time."""

    batch: bool
    """More than one slot is configured: no session files then."""

    replicas: bool
    """Several engines behind one server, which hide their session files."""

    one_stage: bool
    """False: the engine runs over several cards or without its prompt cache, and refuses session files."""

    aliases: tuple[str, ...]
    keys: tuple[str, ...]
    """API keys, of which a request must have one; none: none is asked for."""

    lazy: bool
    idle_seconds: float
    """After so long without a request the model is unloaded; 0: never."""

    silence_seconds: float
    """An engine that says nothing for so long is killed; 0: never."""

    max_body: int
    load_seconds: float
    token_seconds: float
    stop_seconds: float
    keep_alive_seconds: float
    die_after: int | None
    silent_after: int | None
    crash_after: int | None

    def crash(self) -> NoReturn:
        """The server itself is gone, without a word."""
        os._exit(70)


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
        slots=_slots(config, args),
        batch=_slots(config, args) > 1 or bool(_BATCH & set(args)),
        replicas=bool(config.get("replicas")),
        one_stage=not {"--layer-split", "--peer-device"} & set(args) and _value(args, "--prompt-cache") != "0",
        aliases=_aliases(config),
        keys=_keys(options.api_key, config),
        lazy=options.lazy or config.get("lazy_load") is True,
        idle_seconds=options.idle_unload if options.idle_unload is not None else _seconds(config, "idle_unload_s", 0.0),
        silence_seconds=_seconds(config, "engine_silence_s", 300.0),
        max_body=int(os.environ.get("STRATA_MAX_BODY_MIB", "256")) << 20,
        load_seconds=options.load_seconds,
        token_seconds=options.token_seconds,
        stop_seconds=options.stop_seconds,
        keep_alive_seconds=options.keep_alive_seconds,
        die_after=options.die_after,
        silent_after=options.silent_after,
        crash_after=options.crash_after,
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m viiwork_strata.testing.double", description=_ABOUT)
    parser.add_argument("--engine", choices=["mock", "strata"], default="mock")
    parser.add_argument("--config", required=True, metavar="FILE")
    parser.add_argument("--host")
    parser.add_argument("--port", type=int, default=8095)
    parser.add_argument("--gpu", metavar="LIST")
    parser.add_argument("--slot-save-path", metavar="DIR")
    parser.add_argument("--api-key", default=os.environ.get("STRATA_API_KEY"), metavar="LIST")
    parser.add_argument("--lazy", action="store_true")
    parser.add_argument("--idle-unload", type=float, metavar="S")
    own = parser.add_argument_group("the double's own")
    own.add_argument("--load-seconds", type=float, default=0.0, metavar="S", help="how long loading takes")
    own.add_argument("--token-seconds", type=float, default=0.0, metavar="S", help="time for each new token")
    own.add_argument("--stop-seconds", type=float, default=0.0, metavar="S", help="how long the end takes at SIGTERM")
    own.add_argument("--keep-alive-seconds", type=float, default=10.0, metavar="S", help="between comments in silence")
    own.add_argument("--die-after", type=int, metavar="N", help="the engine dies, once, after N tokens of an answer")
    own.add_argument("--silent-after", type=int, metavar="N", help="the engine falls silent there, once")
    own.add_argument("--crash-after", type=int, metavar="N", help="the server itself is gone there")
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


def _slots(config: dict[str, object], args: Sequence[str]) -> int:
    """Strata: ""parallel": whole number > 1 becomes engine `--batch N`; true/float/<=1 ignored; ignored when args
    already hold --batch or --slots; max 8 rows"."""
    for flag in sorted(_BATCH & set(args)):
        value = _value(args, flag) or ""
        return max(1, min(int(value), _MOST_SLOTS)) if value.isdecimal() else 1
    rows = config.get("parallel")
    return min(rows, _MOST_SLOTS) if isinstance(rows, int) and not isinstance(rows, bool) and rows > 1 else 1


def _aliases(config: dict[str, object]) -> tuple[str, ...]:
    aliases = config.get("aliases", [])
    listed = aliases.split(",") if isinstance(aliases, str) else aliases
    return tuple(str(one).strip() for one in listed) if isinstance(listed, list) else ()


def _keys(option: str | None, config: dict[str, object]) -> tuple[str, ...]:
    """A list with commas. Exits 2 for an empty one on the command line."""
    if option is not None and not option.strip():
        raise SystemExit(2)
    given = option if option is not None else str(config.get("api_key") or "")
    return tuple(key.strip() for key in given.split(",") if key.strip())


def _seconds(config: dict[str, object], key: str, default: float) -> float:
    try:
        return float(config.get(key, default) or 0)  # type: ignore[arg-type]  # whatever the file holds
    except (TypeError, ValueError) as error:
        raise SystemExit(f"bad config: {key} is no number") from error


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
