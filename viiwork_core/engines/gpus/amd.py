"""AMD cards: by the kernel's own files (KFD and sysfs), and by rocm-smi for what these leave out."""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from viiwork_core.contracts.context import RunCommand
from viiwork_core.contracts.engine import Vendor
from viiwork_core.engines.gpus.answers import Errand, printed_object, said
from viiwork_core.engines.gpus.gpu import POLL, TOOL_POLL, Gpu, Users, number, whole

ROCM = "/opt/rocm/bin"
"""Where ROCm puts its tools; its installer leaves PATH alone."""

_TOOL = "rocm-smi"
_SMI_QUESTIONS = ("--showproductname", "--showbus", "--showuse", "--showpower", "--showmeminfo", "vram", "--json")
_NODES = "sys/class/kfd/kfd/topology/nodes"
_PROCESSES = "sys/class/kfd/kfd/proc"
_AMD = 0x1002
_PID = re.compile(r"PID (\d+) is using \d+ DRM device")


@dataclass(frozen=True, slots=True)
class Node:
    """A GPU in the kernel's compute topology."""

    gpu_id: int
    pci: str
    codename: str | None
    target: str | None
    uuid: str | None


class Amd:
    """The cards and their users. `root` is where the file system begins."""

    def __init__(self, run: RunCommand, root: Path = Path("/")) -> None:
        self._run = run
        self._root = root
        self._errand = Errand()
        self._names: dict[str, str] = {}
        self._tool_helps = True
        self.interval = POLL

    async def read(self) -> tuple[Gpu, ...] | None:
        """See Source."""
        self.interval = POLL
        seen = await self._errand.run(lambda: _look(self._root))
        if not seen:
            return None
        gpus = tuple(replace(gpu, name=gpu.name or self._names.get(gpu.pci or "")) for _, gpu in seen)
        if self._tool_helps and any(_has_gap(gpu) for gpu in gpus):
            gpus = await self._without_gaps(gpus)
        return tuple(replace(gpu, name=gpu.name or node.codename) for gpu, (node, _) in zip(gpus, seen, strict=True))

    async def users(self) -> Users | None:
        """See Source."""
        users = await self._errand.run(lambda: read_users(self._root))
        if users is not None:
            return users
        nodes = await self._errand.run(lambda: read_nodes(self._root))
        text = await said(self._run, tool(), "--showpidgpus")
        return parse_users(text, smi_order(nodes)) if text is not None and nodes else None

    async def _without_gaps(self, gpus: tuple[Gpu, ...]) -> tuple[Gpu, ...]:
        """What the tool adds. A tool that adds nothing once is not started again and again for nothing."""
        self.interval = TOOL_POLL
        filled = fill(gpus, await said(self._run, tool(), *_SMI_QUESTIONS) or "")
        self._tool_helps = filled != gpus
        self._names |= {gpu.pci: gpu.name for gpu in filled if gpu.pci and gpu.name}
        return filled


def tool() -> str:
    """What to start as rocm-smi."""
    return _TOOL if shutil.which(_TOOL) else f"{ROCM}/{_TOOL}"


def _has_gap(gpu: Gpu) -> bool:
    return None in (gpu.name, gpu.memory_total, gpu.memory_used, gpu.utilisation, gpu.power)


def read_nodes(root: Path) -> tuple[Node, ...]:
    """The GPUs in the order in which the ROCm runtime counts them. Blocking.

    The kernel refuses to tell a container of cards that it was not given, and the runtime skips those too.
    """
    folders = [path for path in (root / _NODES).glob("*") if path.name.isdigit()]
    nodes = (_node(folder) for folder in sorted(folders, key=lambda path: int(path.name)))
    return tuple(node for node in nodes if node is not None)


def _node(folder: Path) -> Node | None:
    gpu_id = whole(_text(folder / "gpu_id"))
    properties = _properties(_text(folder / "properties") or "")
    if not gpu_id or properties.get("vendor_id", _AMD) != _AMD or "location_id" not in properties:
        return None  # a processor, or none of ours to use
    place, unique = properties["location_id"], properties.get("unique_id")
    return Node(
        gpu_id,
        pci=f"{properties.get('domain', 0):04x}:{place >> 8 & 0xFF:02x}:{place >> 3 & 0x1F:02x}.{place & 7}",
        codename=_text(folder / "name") or None,
        target=gfx_target(properties.get("gfx_target_version")),
        uuid=f"GPU-{unique:016x}" if unique else None,
    )


def gfx_target(version: int | None) -> str | None:
    """90006 is gfx906, 90010 gfx90a, 100302 gfx1032."""
    if not version:
        return None
    return f"gfx{version // 10000}{version // 100 % 100:x}{version % 100:x}"


def _look(root: Path) -> tuple[tuple[Node, Gpu], ...]:
    """The nodes, each with what its driver tells. Blocking."""
    folder = root / "sys/bus/pci/devices"
    return tuple((node, _gpu(folder / node.pci, index, node)) for index, node in enumerate(read_nodes(root)))


def _gpu(device: Path, index: int, node: Node) -> Gpu:
    sensors = [*device.glob("hwmon/hwmon*/power1_average"), *device.glob("hwmon/hwmon*/power1_input")]
    microwatts = next((value for sensor in sensors if (value := whole(_text(sensor))) is not None), None)
    return Gpu(
        index,
        Vendor.AMD,
        node.uuid,
        name=_text(device / "product_name") or None,
        target=node.target,
        pci=node.pci,
        memory_total=_mib(_text(device / "mem_info_vram_total")),
        memory_used=_mib(_text(device / "mem_info_vram_used")),
        utilisation=number(_text(device / "gpu_busy_percent")),
        power=None if microwatts is None else microwatts / 1e6,
    )


def read_users(root: Path) -> Users | None:
    """Who has compute queues on which card; None: the kernel does not tell. Blocking."""
    folder = root / _PROCESSES
    if not folder.is_dir():
        return None
    index_of = {node.gpu_id: index for index, node in enumerate(read_nodes(root))}
    found: dict[int, frozenset[int]] = {}
    for process in folder.glob("*"):
        if (pid := whole(process.name)) is not None:
            ids = {whole(_text(queue)) for queue in process.glob("queues/*/gpuid")}
            found[pid] = frozenset(index_of[one] for one in ids if one is not None and one in index_of)
    return found


def parse_users(text: str, order: Sequence[int]) -> Users:
    """The output of `rocm-smi --showpidgpus`. `order`: our index of each of its cards."""
    found: dict[int, frozenset[int]] = {}
    pid: int | None = None
    for line in text.splitlines():
        cards = [whole(word) for word in line.split()]
        if start := _PID.match(line):
            pid = int(start[1])
            found[pid] = frozenset()
        elif pid is not None and cards and None not in cards:
            found[pid] |= {order[card] for card in cards if card is not None and card < len(order)}
        else:
            pid = None
    return found


def smi_order(nodes: Sequence[Node]) -> tuple[int, ...]:
    """Our index of each card of rocm-smi, which counts by PCI address."""
    return tuple(sorted(range(len(nodes)), key=lambda index: nodes[index].pci))


def fill(gpus: tuple[Gpu, ...], text: str) -> tuple[Gpu, ...]:
    """The cards with their gaps filled from the output of rocm-smi ... --json, matched by PCI address."""
    cards = _smi_cards(text)
    return tuple(_filled(gpu, cards.get(gpu.pci or "", {})) for gpu in gpus)


def _filled(gpu: Gpu, card: Mapping[str, str]) -> Gpu:
    # The keys changed their words and their capitals from release to release.
    name = card.get("card series") or card.get("card model")
    power = card.get("average graphics package power (w)") or card.get("current socket graphics package power (w)")
    found = replace(
        gpu,
        name=name if name and name != "N/A" and not name.startswith("0x") else None,
        memory_total=_mib(card.get("vram total memory (b)")),
        memory_used=_mib(card.get("vram total used memory (b)")),
        utilisation=number(card.get("gpu use (%)")),
        power=number(power),
    )
    gaps = ("name", "memory_total", "memory_used", "utilisation", "power")
    return replace(gpu, **{gap: getattr(found, gap) for gap in gaps if getattr(gpu, gap) is None})


def _smi_cards(text: str) -> dict[str, dict[str, str]]:
    """By PCI address in lower case."""
    cards = [one for one in printed_object(text).values() if isinstance(one, dict)]
    lowered = [{str(key).lower(): str(value) for key, value in card.items()} for card in cards]
    return {card["pci bus"].lower(): card for card in lowered if "pci bus" in card}


def _properties(text: str) -> dict[str, int]:
    pairs = (line.split() for line in text.splitlines())
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and whole(pair[1]) is not None}


def _mib(text: str | None) -> int | None:
    size = whole(text)
    return None if size is None else size >> 20


def _text(path: Path) -> str | None:
    try:
        return path.read_text("utf-8", "replace").strip()
    except OSError:
        return None
