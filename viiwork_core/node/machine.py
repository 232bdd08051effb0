"""The machine's memory, as far as it can be read."""

from __future__ import annotations

import psutil

MIB = 1 << 20


def memory_mb() -> tuple[int, int]:
    """(total, used) in MiB; what the system would give up for a program at once is not used."""
    memory = psutil.virtual_memory()
    return memory.total // MIB, (memory.total - memory.available) // MIB


def resident_mb(pid: int) -> int | None:
    """Memory of a process in MiB; None: it is gone, or not ours to look at."""
    try:
        return int(psutil.Process(pid).memory_info().rss) // MIB
    except psutil.Error:
        return None
