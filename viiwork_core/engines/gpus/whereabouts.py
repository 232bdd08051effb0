"""Is a backend on the cards it was given? The pin is a wish; what the driver says of its processes is the answer."""

from __future__ import annotations

import os
from collections.abc import Collection
from contextlib import suppress
from enum import StrEnum

import psutil

from viiwork_core.engines.gpus.gpu import Users


class Whereabouts(StrEnum):
    """Where a backend's processes were found."""

    RIGHT = "right"
    FEWER = "fewer"
    """On some of its own cards and on no other: its arguments may want it so, and no neighbour is harmed."""
    WRONG = "wrong"
    """On a card that is not its own. It answers well, and takes a neighbour's memory and time."""
    UNKNOWN = "unknown"


def cards_in_use(tree: Collection[int], users: Users) -> frozenset[int]:
    """The cards that any process of `tree` computes on."""
    return frozenset[int]().union(*(users[pid] for pid in tree if pid in users))


def whereabouts(gpus: Collection[int], tree: Collection[int], users: Users | None) -> Whereabouts:
    """Compare the cards a backend was given with those its processes are on.

    Unknown: nobody can say (`users` is None), or none of the processes was seen on any card. That is no fault: a
    container without the host's PID namespace sees other ids, and Vulkan is not listed as computing.
    """
    found = cards_in_use(tree, users or {})
    if not found:
        return Whereabouts.UNKNOWN
    if found == set(gpus):
        return Whereabouts.RIGHT
    return Whereabouts.FEWER if found < set(gpus) else Whereabouts.WRONG


def process_tree(leader: int) -> frozenset[int]:
    """A backend's process and all it started, also what was cut off from its parents. Blocking; some 10 ms."""
    tree = {leader}
    with suppress(psutil.Error):
        tree |= {child.pid for child in psutil.Process(leader).children(recursive=True)}
    return frozenset(tree | {pid for pid in psutil.pids() if _session(pid) == leader})


def _session(pid: int) -> int | None:
    try:
        return os.getsid(pid)
    except OSError:
        return None
