"""Keys that processes and hosts compare are equal in all of them, whatever seeds Python's own hashes have."""

from __future__ import annotations

import json
import os
import subprocess
import sys

PROGRAM = """
import asyncio, json, random, tempfile
from pathlib import Path

from viiwork_core import Address, Candidate, NoOptions, Query, Spec
from viiwork_core.builtin.policies import LeastBusy
from viiwork_core.engines.calls import digest_of
from viiwork_core.security.secret import MeshSecret, SessionKeys
from viiwork_core.testing.fake_plugin import FakeCacheTransfer, FakeOptions
from viiwork_core.testing.servers import kit_context


async def fingerprint(folder):
    model = folder / "model"
    model.write_bytes(b"the same weights")
    spec = Spec(model="m", index=0, backends=1, path=model, context=4096, parallel=2)
    async with FakeCacheTransfer(FakeOptions(), kit_context(folder)) as cache:
        return dict(await cache.fingerprint(spec, Address("127.0.0.1", 1)))


def ranked(session):
    random.shuffle(places)
    return list(LeastBusy(NoOptions()).rank(Query("m", session, 9), places, random.Random()))


secret = MeshSecret.from_bytes(bytes(range(32)))
sessions = ["session", "", "\\u00e9", "x" * 5000]
places = [Candidate(id=f"host-{number}", local=False, slots=2, free=1) for number in range(20)]
with tempfile.TemporaryDirectory() as folder:
    parts = asyncio.run(fingerprint(Path(folder)))
print(json.dumps({
    "hash": hash("session"),
    "keys": [SessionKeys(one, mesh="default").session_key(name) for one in (secret, None) for name in sessions],
    "order": [ranked(name) for name in sessions[1:]],
    "fingerprint": digest_of(parts),
    "unordered": digest_of({name: "value" for name in {"a", "b", "c", "d", "e", "f"}}),
}))
"""


def told(seed: str) -> dict[str, object]:
    environ = {**os.environ, "PYTHONHASHSEED": seed}
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, object] = json.loads(done.stdout)
    return found


def test_every_process_makes_the_same_keys() -> None:
    first, second, third = told("1"), told("2"), told("random")
    assert first.pop("hash") != second.pop("hash"), "Python's own hashes differ"
    third.pop("hash")
    assert first == second == third
