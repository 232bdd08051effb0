"""python -m viiwork_mlx.server --model DIR --model-name NAME [--parallel N] [--context N] [--kv-dir DIR]

What else mlx_lm.server takes is taken too.
"""

# mypy: allow-untyped-calls

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from mlx_lm import server as mlx_server

from viiwork_mlx.server.listener import Listener

PROGRAM = "viiwork_mlx.server"


def own_arguments(argv: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """The wrapper's arguments, and those that are mlx_lm's."""
    # No abbreviations: --model would be one.
    parser = argparse.ArgumentParser(prog=PROGRAM, allow_abbrev=False, add_help=False)
    parser.add_argument("--model-name", required=True, help="the name that requests use")
    parser.add_argument("--parallel", type=int, default=1, help="requests that generate at the same time")
    parser.add_argument("--context", type=int, help="most tokens of a prompt and its answer together")
    parser.add_argument("--kv-dir", type=Path, help="existing folder for cache files")
    own, theirs = parser.parse_known_args(argv)
    if own.parallel < 1:
        parser.error("--parallel must be at least 1")
    if own.context is not None and own.context < 1:
        parser.error("--context must be at least 1")
    if own.kv_dir is not None and not own.kv_dir.is_dir():
        parser.error(f"--kv-dir: {own.kv_dir} is not a folder")
    # A page in a browser of this machine has no business here; whoever may cross origins is the node's to say.
    return own, ["--decode-concurrency", str(own.parallel), "--allowed-origins", "", *theirs]


def serve(own: argparse.Namespace, host: str, port: int, provider: mlx_server.ModelProvider) -> None:
    """Serve until a signal, or until the generation thread ends. Ends the process."""
    model = provider.cli_args.model
    if model is None or not Path(model).is_dir():  # a name that is no folder would be looked up as a download
        end(2, f"--model: {model} is not a folder")
    try:
        listener = Listener((host, port), own, provider.cli_args)
    except OSError as error:
        end(1, f"cannot listen on {host} port {port}: {error.strerror}")
    try:
        listener.serve_forever(poll_interval=0.1)
    except KeyboardInterrupt:
        listener.backend.generation.stop_and_join()
        end(0)
    listener.backend.generation.join()
    failure = listener.backend.generation.failure
    words = f"{type(failure).__name__}: {' '.join(str(failure).split())}"
    if not listener.backend.model.ready.is_set():
        end(1, f"cannot load the model {model}: {words}")
    end(1, f"the generation thread ended: {words}")


def end(code: int, words: str = "") -> None:
    """End the process at once: MLX's threads abort it when the interpreter is taken down around them."""
    if words:
        sys.stderr.write(f"{PROGRAM}: {words}\n")
    sys.stderr.flush()
    os._exit(code)


def main() -> None:
    os.umask(0o077)  # cache files are for this user only
    own, theirs = own_arguments(sys.argv[1:])
    # mlx_lm makes its parser inside main() and hands the result to the module's own `run`, which then makes its own
    # classes and takes no others. So main() is used for the arguments, and this `run` for the rest. It is the one
    # place where something of mlx_lm is replaced.
    mlx_server.run = partial(serve, own)
    sys.argv = [PROGRAM, *theirs]
    mlx_server.main()


if __name__ == "__main__":
    main()
