"""A process to supervise: says /health and /slots, and misbehaves as its arguments ask. Standard library only."""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


def main() -> None:
    options = arguments()
    if options.ignore_sigterm:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if options.print_env:
        say(json.dumps(dict(os.environ)))
    for start_new_session in options.grandchild:
        sleeper = subprocess.Popen(
            [sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=start_new_session == "session"
        )
        say(f"grandchild {sleeper.pid}")
    say(options.say)
    if options.exit_after is not None:
        threading.Timer(options.exit_after, os._exit, [options.exit_code]).start()
    if options.no_listen:
        time.sleep(600)
    ThreadingHTTPServer.allow_reuse_address = False
    ThreadingHTTPServer(("127.0.0.1", options.port), handler(options)).serve_forever()


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--slots", type=int, default=2)
    parser.add_argument("--ready-after", type=float, default=0.0)
    parser.add_argument("--exit-after", type=float)
    parser.add_argument("--exit-code", type=int, default=3)
    parser.add_argument("--sick-while", type=Path, help="/health fails while this file exists")
    parser.add_argument("--grandchild", action="append", default=[], choices=["group", "session"])
    parser.add_argument("--say", default="hello")
    parser.add_argument("--ignore-sigterm", action="store_true")
    parser.add_argument("--print-env", action="store_true")
    parser.add_argument("--no-listen", action="store_true")
    return parser.parse_args()


def handler(options: argparse.Namespace) -> type[BaseHTTPRequestHandler]:
    ready_at = time.monotonic() + options.ready_after

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            sick = options.sick_while is not None and options.sick_while.exists()
            ready = time.monotonic() >= ready_at and not sick
            if self.path == "/slots":
                self.answer(200, {"slots": options.slots})
            else:
                self.answer(200 if ready else 503, {"ready": ready})

        def answer(self, status: int, body: object) -> None:
            payload = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(payload)))
            self.end_headers()
            self.wfile.write(payload)

        def log_message(self, *args: object) -> None:
            return

    return Handler


if __name__ == "__main__":
    main()
