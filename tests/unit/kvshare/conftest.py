"""What the tests of kvshare share: headers, sealed streams and a store."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable
from pathlib import Path
from typing import Any

import anyio
import pytest
from blake3 import blake3

from viiwork_core.kvshare.replicas import Replica, ReplicaStore
from viiwork_core.kvshare.sealing import BLOCK, ReplicaHeader, ReplicaLabel, TransferHeader, seal

KEY = bytes(range(32))
SESSION = "5e" * 16


class ManualClock:
    """A clock that stands until it is moved."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def wall(self) -> float:
        return self.now


class Bench:
    """Makes what a test needs."""

    key = KEY
    session = SESSION

    def label(self, **changes: Any) -> ReplicaLabel:
        fields: dict[str, Any] = {
            "model": "tiny",
            "group": "agents",
            "fingerprint": "f" * 64,
            "session": SESSION,
            "turn": 1,
            "tokens": 100,
        }
        return ReplicaLabel(**{**fields, **changes})

    def header(self, data: bytes, **changes: Any) -> TransferHeader:
        """How `data` is sent."""
        label = self.label()
        fields = {name: getattr(label, name) for name in ReplicaLabel.__struct_fields__}
        return TransferHeader(**{**fields, "length": len(data), **changes})

    def stored(self, data: bytes, origin: str = "", **changes: Any) -> ReplicaHeader:
        """The header that `data` has once it has arrived."""
        return self.header(data, **changes).stored(self.blake3(data), origin)

    def blake3(self, data: bytes) -> str:
        return blake3(data).hexdigest()

    def blocks(self, data: bytes) -> list[bytes]:
        return [data[at : at + BLOCK] for at in range(0, len(data), BLOCK)]

    def pieces(self, data: bytes, key: bytes = KEY, **changes: Any) -> list[bytes]:
        """The sealed stream of `data`: the header, one piece for each MiB, and the hash."""
        return self.sealed(self.header(data, **changes), self.blocks(data), data, key)

    def sealed(self, header: TransferHeader, blocks: Iterable[bytes], whole: bytes, key: bytes = KEY) -> list[bytes]:
        """A sealed stream of any blocks, and the hash of `whole`."""
        return [bytes(piece) for piece in seal(key, header, blocks, lambda: blake3(whole).digest())]

    def keep(self, store: ReplicaStore, data: bytes, **changes: Any) -> Replica:
        arrival = store.begin(self.header(data, **changes))
        try:
            arrival.write(self.blocks(data))
            return arrival.commit(self.blake3(data))
        finally:
            arrival.discard()

    async def stream(self, pieces: Iterable[bytes]) -> AsyncIterator[bytes]:
        for piece in pieces:
            yield piece

    async def until(self, condition: Callable[[], bool], seconds: float = 10.0) -> None:
        """Wait for a condition; fails the test when it does not come true in time."""
        with anyio.fail_after(seconds):
            while not condition():  # noqa: ASYNC110 - threads and files set no event
                await anyio.sleep(0.002)

    def files(self, folder: Path) -> set[str]:
        return {path.suffix for path in folder.iterdir()}


@pytest.fixture
def bench() -> Bench:
    return Bench()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def store(tmp_path: Path, clock: ManualClock) -> ReplicaStore:
    return ReplicaStore(tmp_path / "replicas", 10_000, clock).open()
