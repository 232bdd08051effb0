"""The GPU of an Apple chip. Only root may read its load, so this tells what it is and not what it does."""

from __future__ import annotations

from viiwork_core.contracts.context import RunCommand
from viiwork_core.contracts.engine import Vendor
from viiwork_core.engines.gpus.answers import printed_object, said
from viiwork_core.engines.gpus.gpu import Gpu, Users, whole

_STATIC = 3600.0


class Apple:
    """The GPU. It is read once: system_profiler takes a second, and its answer never changes."""

    def __init__(self, run: RunCommand) -> None:
        self._run = run
        self._known: tuple[Gpu, ...] | None = None
        self.interval = _STATIC

    async def read(self) -> tuple[Gpu, ...] | None:
        """See Source."""
        if self._known is None:
            displays = await said(self._run, "system_profiler", "SPDisplaysDataType", "-json")
            memory = await said(self._run, "sysctl", "hw.memsize")
            self._known = parse_gpus(displays or "", memory or "") or None
        return self._known

    async def users(self) -> Users | None:
        """Always None: there is one GPU, and nobody to ask who is on it."""
        return None


def parse_gpus(displays: str, memory: str) -> tuple[Gpu, ...]:
    """From the outputs of `system_profiler SPDisplaysDataType -json` and `sysctl hw.memsize`."""
    entries = printed_object(displays).get("SPDisplaysDataType")
    ours = [entry for entry in entries if _is_apple(entry)] if isinstance(entries, list) else []
    names = [str(name) if (name := entry.get("sppci_model") or entry.get("_name")) else None for entry in ours]
    size = whole(memory.rpartition(":")[2])
    total = None if size is None else size >> 20
    return tuple(Gpu(index, Vendor.APPLE, name=name, memory_total=total) for index, name in enumerate(names))


def _is_apple(entry: object) -> bool:
    return isinstance(entry, dict) and entry.get("spdisplays_vendor") == "sppci_vendor_Apple"
