"""NVIDIA cards: by the driver's library (NVML) where Python reaches it, else by nvidia-smi."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any, TypeVar

from viiwork_core.contracts.context import RunCommand
from viiwork_core.contracts.engine import Vendor
from viiwork_core.engines.gpus.answers import Errand, said
from viiwork_core.engines.gpus.gpu import POLL, TOOL_POLL, Gpu, Users, number, whole

T = TypeVar("T")

TOOL = "nvidia-smi"
FIELDS = "index,uuid,name,memory.total,memory.used,utilization.gpu,power.draw"

_MIB = 1 << 20


class Nvidia:
    """The cards and their users. `load` imports the library's Python module, or raises ImportError."""

    def __init__(self, run: RunCommand, load: Callable[[], Any] | None = None) -> None:
        self._run = run
        self._driver = Driver(load or _pynvml)
        self._errand = Errand()
        self.interval = POLL

    async def read(self) -> tuple[Gpu, ...] | None:
        """See Source."""
        gpus = await self._errand.run(self._driver.gpus)
        self.interval = TOOL_POLL if gpus is None else POLL
        if gpus is None:
            text = await said(self._run, TOOL, f"--query-gpu={FIELDS}", "--format=csv,noheader,nounits")
            gpus = parse_gpus(text or "") or None
        return gpus

    async def users(self) -> Users | None:
        """See Source."""
        users = await self._errand.run(self._driver.users)
        if users is not None:
            return users
        indices = await said(self._run, TOOL, "--query-gpu=index,uuid", "--format=csv,noheader")
        apps = await said(self._run, TOOL, "--query-compute-apps=pid,gpu_uuid", "--format=csv,noheader")
        return None if indices is None or apps is None else parse_users(indices, apps)


def lists_a_card(text: str) -> bool:
    """Does the output of `nvidia-smi -L` name a card?"""
    return "GPU " in text


def parse_gpus(text: str, *, fields: int = 7) -> tuple[Gpu, ...]:
    """The rows of --query-gpu=FIELDS as csv,noheader,nounits, or of their first two. Other lines are left out."""
    return tuple(gpu for line in text.splitlines() if (gpu := _row(line, fields)) is not None)


def parse_users(indices: str, apps: str) -> Users:
    """Who is on which card: rows of --query-gpu=index,uuid and of --query-compute-apps=pid,gpu_uuid, no header."""
    index_of = {gpu.uuid: gpu.index for gpu in parse_gpus(indices, fields=2) if gpu.uuid}
    found: dict[int, frozenset[int]] = {}
    for line in apps.splitlines():
        pid, _, uuid = line.partition(",")
        process, index = whole(pid), index_of.get(uuid.strip())
        if process is not None and index is not None:
            found[process] = found.get(process, frozenset()) | {index}
    return found


def _row(line: str, fields: int) -> Gpu | None:
    cells = [cell.strip() for cell in line.split(",")]
    index = whole(cells[0])
    if index is None or len(cells) < fields:
        return None
    uuid = cells[1] if cells[1].startswith("GPU-") else None
    if fields == 2:
        return Gpu(index, Vendor.NVIDIA, uuid)
    total, used, utilisation, power = (number(cell) for cell in cells[-4:])
    return Gpu(
        index,
        Vendor.NVIDIA,
        uuid,
        name=", ".join(cells[2:-4]) or None,
        memory_total=None if total is None else int(total),
        memory_used=None if used is None else int(used),
        utilisation=utilisation,
        power=power,
    )


def _pynvml() -> Any:
    # By name, and late: the distribution (nvidia-ml-py) is there on Linux only, and nothing else of the node needs it.
    return importlib.import_module("pynvml")


class Driver:
    """NVML. Blocking. Each method returns None when the library, the driver or its answer is missing.

    It stays open between readings: a driver that nobody holds open puts its cards to sleep, and each reading would
    wake them.
    """

    def __init__(self, load: Callable[[], Any]) -> None:
        self._load = load
        self._nvml: Any = None

    def gpus(self) -> tuple[Gpu, ...] | None:
        """The cards, by index."""
        return self._asked(lambda nvml: tuple(self._gpu(nvml, index) for index in range(nvml.nvmlDeviceGetCount())))

    def users(self) -> Users | None:
        """The processes that compute, and the cards they are on."""
        return self._asked(self._users)

    def _asked(self, question: Callable[[Any], T]) -> T | None:
        try:
            nvml = self._nvml or self._load()
        except ImportError:
            return None
        try:
            if self._nvml is None:
                nvml.nvmlInit()
                self._nvml = nvml
            return question(nvml)
        except nvml.NVMLError:
            self._nvml = None  # opened again the next time: the driver may have been replaced
            return None

    def _gpu(self, nvml: Any, index: int) -> Gpu:
        handle = _told(nvml, nvml.nvmlDeviceGetHandleByIndex, index)
        if handle is None:
            return Gpu(index, Vendor.NVIDIA)  # it fell off the bus; its neighbours did not
        memory = _told(nvml, nvml.nvmlDeviceGetMemoryInfo, handle)
        rates = _told(nvml, nvml.nvmlDeviceGetUtilizationRates, handle)
        milliwatts = _told(nvml, nvml.nvmlDeviceGetPowerUsage, handle)
        return Gpu(
            index,
            Vendor.NVIDIA,
            uuid=_told(nvml, nvml.nvmlDeviceGetUUID, handle),
            name=_told(nvml, nvml.nvmlDeviceGetName, handle),
            memory_total=None if memory is None else memory.total // _MIB,
            memory_used=None if memory is None else memory.used // _MIB,
            utilisation=None if rates is None else float(rates.gpu),
            power=None if milliwatts is None else milliwatts / 1000,
        )

    def _users(self, nvml: Any) -> Users:
        found: dict[int, frozenset[int]] = {}
        for index in range(nvml.nvmlDeviceGetCount()):
            handle = _told(nvml, nvml.nvmlDeviceGetHandleByIndex, index)
            processes = handle and _told(nvml, nvml.nvmlDeviceGetComputeRunningProcesses, handle)
            for process in processes or ():
                found[process.pid] = found.get(process.pid, frozenset()) | {index}
        return found


def _told(nvml: Any, question: Callable[[Any], Any], about: Any) -> Any:
    """The answer, or None: many cards do not support every question."""
    try:
        return question(about)
    except nvml.NVMLError:
        return None
