"""What a scrape says of the node itself and of its machine's cards."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from prometheus_client.metrics_core import Metric

from viiwork_core.observe.family import OWN, family

MIB: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class CardFigures:
    """One GPU. None: not known, which is not 0."""

    index: int
    name: str
    utilisation: float | None = None
    """0 to 100."""

    memory_used: int | None = None
    """MiB."""

    memory_total: int | None = None
    """MiB."""

    power: float | None = None
    """Watts."""


@dataclass(frozen=True, slots=True)
class MachineFigures:
    """A node at one moment."""

    node: str = ""
    version: str = ""
    mesh: str = ""
    """secured, open or none."""

    uptime_s: float = 0.0
    members: int = 0
    """Other nodes that it knows."""

    draining: bool = False

    cards: Sequence[CardFigures] = ()


_CARD: Final = (
    ("viiwork_gpu_utilization_ratio", "utilisation", 0.01, "share of the time in which a card computed, 0 to 1"),
    ("viiwork_gpu_memory_used_bytes", "memory_used", MIB, "memory of a card that is taken, by whatever program"),
    ("viiwork_gpu_memory_total_bytes", "memory_total", MIB, "memory of a card; of one that shares it, the machine's"),
    ("viiwork_gpu_power_watts", "power", 1, "power that a card draws"),
)


def machine(now: MachineFigures) -> Iterator[Metric]:
    """The families. What a card does not tell is absent."""
    of = "always 1. It puts the node's name to what Prometheus calls an instance. mesh: secured, open or none"
    yield family(
        "gauge", "viiwork_node_info", OWN + of, ("node", "version", "mesh"), [((now.node, now.version, now.mesh), 1)]
    )
    for name, value, of in (
        ("viiwork_uptime_seconds", now.uptime_s, "time since its process began"),
        ("viiwork_members", now.members, "other nodes of the mesh that it knows"),
        ("viiwork_draining", now.draining, "1 while it takes no new work, else 0"),
    ):
        yield family("gauge", name, OWN + of, (), [((), float(value))])
    for name, figure, unit, of in _CARD:
        told = [((str(one.index), one.name), getattr(one, figure)) for one in now.cards]
        values = [(labels, value * unit) for labels, value in told if value is not None]
        yield family("gauge", name, OWN + of, ("gpu", "name"), values)
