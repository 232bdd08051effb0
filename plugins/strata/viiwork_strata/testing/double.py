"""The double as a program: an HTTP/1.0 server with the interface of Strata's server about 0.1.42.

    python -m viiwork_strata.testing.double --config FILE --port N [--load-seconds S] [--die-after N] ...

While it loads its port is closed. `--help` tells what it can be told to do; SIGUSR1 kills its engine. Not doubled: tool
calls, pictures, parked conversations, /v1/messages, /v1/responses, /settings, /config, and the replies of /metrics in
full.
"""

from __future__ import annotations

import signal
import socket
import sys
import time
from collections.abc import Sequence

from viiwork_strata.testing.handler import DoubleServer
from viiwork_strata.testing.machine import Machine
from viiwork_strata.testing.settings import Settings, parse


class Told(BaseException):
    """To end, by a signal. No Exception: the server would take one that comes between two requests for a request's
    failure, and serve on."""


def _stop(*_: object) -> None:
    raise Told


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def _check_port(settings: Settings) -> None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((settings.host, settings.port))
        except OSError as error:
            sys.stderr.write(f"error: port {settings.port} is taken: {error.strerror}\n")
            raise SystemExit(2) from error


def _serve(settings: Settings) -> None:
    """Port free? Load. Only then listen."""
    _check_port(settings)
    if not settings.lazy:
        _say(f"[strata] loading {settings.model}")
        time.sleep(settings.load_seconds)
    machine = Machine(settings)
    signal.signal(signal.SIGUSR1, lambda *_: machine.die())
    with DoubleServer(machine) as server:
        _say(f"ready: http://{settings.host}:{server.server_address[1]}/v1")
        server.serve_forever(poll_interval=0.05)


def main(argv: Sequence[str] | None = None) -> None:
    """Run until SIGTERM or SIGINT. The engine's end takes its time then, unless a second signal cuts it short."""
    signal.signal(signal.SIGTERM, _stop)
    signal.signal(signal.SIGINT, _stop)
    settings = parse(argv)
    try:
        _serve(settings)
    except Told:
        try:
            _say("[strata] stopping the engine")
            time.sleep(settings.stop_seconds)
            _say("[strata] the engine has stopped")
        except Told:
            _say("[strata] the engine is killed")


if __name__ == "__main__":
    main()
