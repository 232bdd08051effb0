"""The sitter: a process that outlives its node just long enough to end what the node has started.

Run as `python -I sitter.py NODE_ID`, standard library only. Its standard input is a pipe from the node: "+PGID" and
"-PGID" lines tell which process groups are alive. However the node ends, also by SIGKILL, the kernel closes the pipe,
and the sitter ends the groups still listed. Afterwards it looks for processes of this user whose environment names
the node: those that left their group, and one that was started in the moment before its "+" line was written.

A parent-death signal would not do: it follows the thread that spawned, misses grandchildren, and macOS has none.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterable
from contextlib import suppress

MARKER = "VIIWORK_CHILD_OF"
GRACE = 2.0
"""Seconds between SIGTERM and SIGKILL."""
_SWEEPS = 5


def note(groups: set[int], line: bytes) -> None:
    """Apply one line; a damaged one is left out."""
    sign, digits = line[:1], line[1:].strip()
    if not digits.isdigit() or int(digits) < 2:
        return
    if sign == b"+":
        groups.add(int(digits))
    elif sign == b"-":
        groups.discard(int(digits))


def signal_groups(groups: Iterable[int], number: int) -> bool:
    """Signal each group; True if any of them still exists."""
    found = False
    for pgid in groups:
        try:
            os.killpg(pgid, number)
            found = True
        except OSError:
            continue
    return found


def marked(node_id: str) -> list[int]:
    """The processes of this user that carry the node's marker."""
    try:
        import psutil  # late: a sitter that only waits needs none of it
    except ImportError:
        return []
    pids = []
    for process in psutil.process_iter():
        try:
            ours = process.pid != os.getpid() and process.uids().real == os.getuid()
            if ours and process.environ().get(MARKER) == node_id:
                pids.append(process.pid)
        except (psutil.Error, OSError):
            continue
    return pids


def signal_marked(node_id: str, number: int) -> bool:
    """Signal each marked process; True if there was one."""
    pids = marked(node_id)
    for pid in pids:
        with suppress(OSError):
            os.kill(pid, number)
    return bool(pids)


def end(groups: set[int], node_id: str) -> None:
    """SIGTERM all, and SIGKILL after two seconds whoever is left."""
    listed = signal_groups(groups, signal.SIGTERM)
    strays = signal_marked(node_id, signal.SIGTERM)
    deadline = time.monotonic() + GRACE
    while (listed or strays) and time.monotonic() < deadline:
        time.sleep(0.1)
        listed = signal_groups(groups, 0)
        strays = bool(marked(node_id))
    for _ in range(_SWEEPS):
        listed = signal_groups(groups, signal.SIGKILL)
        strays = signal_marked(node_id, signal.SIGKILL)
        if not (listed or strays):
            return
        time.sleep(0.1)


def main() -> None:
    """Wait for the node's end. Signals meant for the node's session or service must not end the sitter first."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    groups: set[int] = set()
    for line in sys.stdin.buffer:
        note(groups, line)
    end(groups, sys.argv[1])


if __name__ == "__main__":
    main()
