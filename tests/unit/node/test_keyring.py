"""The keyring: which keys count, what they may ask for, and what the node says of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import msgspec
import pytest
from structlog.testing import capture_logs

from viiwork_core.config.api_key import ApiKeyConfig
from viiwork_core.config.schema import ApiConfig, Config, MeshConfig, NodeConfig
from viiwork_core.errors import BackendFailed, Forbidden, KeyConflict, ModelForbidden
from viiwork_core.mesh.capacity import PeerView
from viiwork_core.mesh.member import Member
from viiwork_core.mesh.report import CapacityReport
from viiwork_core.node.addresses import Places
from viiwork_core.node.background import Background
from viiwork_core.node.keyring import Keyring
from viiwork_core.security.keys import ApiKey, digest_of, hash_text, new_token
from viiwork_core.testing.fake_clock import FakeClock

HERE = Places(None, (), "127.0.0.1", 1, hosts=("127.0.0.1",))


def entry(name: str, token: str, **limits: Any) -> ApiKeyConfig:
    return ApiKeyConfig(name=name, hash=hash_text(digest_of(token)), **limits)


def config(folder: Path, *keys: ApiKeyConfig) -> Config:
    mesh = MeshConfig(network="none")
    return Config(node=NodeConfig(name="here", state_dir=folder), api=ApiConfig(keys=keys), mesh=mesh)


def keyring(folder: Path, *keys: ApiKeyConfig, places: Places = HERE, secured: bool = True) -> Keyring:
    return Keyring(config(folder, *keys), places, tuple, FakeClock(), secured=secured)


def play(one: Keyring, scene: Callable[[], Coroutine[Any, Any, None]]) -> list[Any]:
    """Open it, let it follow no mesh, and what it logs."""

    async def run() -> None:
        async with Background(1.0) as background:
            await one.open()
            one.follow(None, background)
            await scene()

    with capture_logs() as logs:
        asyncio.run(run())
    return logs


async def nothing() -> None:
    """No more than to open it."""


@pytest.mark.parametrize(
    ("hosts", "level", "event"),
    [
        (("127.0.0.1",), "info", "the API is open to this machine"),
        (("127.0.0.1", "::1", "127.0.0.9"), "info", "the API is open to this machine"),
        (("0.0.0.0",), "warning", "the API is open"),
        (("127.0.0.1", "192.168.0.7"), "warning", "the API is open"),
        (("127.0.0.1", "100.64.0.7"), "warning", "the API is open"),
        (("::",), "warning", "the API is open"),
    ],
)
def test_an_open_api_is_told_and_warned_of(tmp_path: Path, hosts: tuple[str, ...], level: str, event: str) -> None:
    places = Places(None, (), hosts[0], 1, hosts=hosts)
    (told,) = play(keyring(tmp_path, places=places), nothing)
    assert (told["log_level"], told["event"]) == (level, event)


def test_an_address_that_comes_later_is_warned_of(tmp_path: Path) -> None:
    places = Places(None, (), "127.0.0.1", 1, True, asyncio.Queue(), ("127.0.0.1",))
    (told,) = play(keyring(tmp_path, places=places), nothing)
    assert (told["log_level"], told["addresses"]) == ("warning", ["that of the mesh"])


def test_keys_of_the_configuration_come_before_those_of_the_table(tmp_path: Path) -> None:
    mine, shared = new_token(), new_token()
    one = keyring(tmp_path, entry("a", mine))

    async def scene() -> None:
        with pytest.raises(KeyConflict, match=r"stands in api\.keys"):
            await one.create(ApiKey("a", digest_of(shared)))
        with pytest.raises(KeyConflict, match="this token is a key already"):
            await one.create(ApiKey("b", digest_of(mine)))
        await one.create(ApiKey("b", digest_of(shared), daily_tokens=5))
        assert [found["from"] for found in one.infos()] == ["config", "mesh"]
        one.reload(config(tmp_path, entry("b", mine)))
        assert (one.ring.find(mine), one.ring.find(shared)) == (ApiKey("b", digest_of(mine)), None)
        one.reload(config(tmp_path))
        assert [key.name for key in one.ring] == ["b"]
        await one.revoke("b", opens=True)
        assert not one.ring

    told = play(one, scene)
    assert [line["event"] for line in told if line["event"].startswith("clients")] == ["clients must show an API key"]


class Silent:
    """A mesh whose members answer nothing."""

    def __init__(self) -> None:
        self.links = self.membership = self

    def members(self) -> tuple[()]:
        return ()

    async def get_json_bytes(self, member: Member, path: str, timeout_s: float) -> bytes:
        raise BackendFailed(f"{member.node} says nothing to {path} within {timeout_s:g} s")


LATER = "ab" * 16


class Later(Silent):
    """A mesh with one key, written by a later version."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = 0
        self.answered = asyncio.Event()

    async def get_json_bytes(self, member: Member, path: str, timeout_s: float) -> bytes:
        del member, path, timeout_s
        self.asked += 1
        self.answered.set()
        key = {"ver": 1, "by": "keyed", "hash": "sha512:00"}
        return msgspec.json.encode({"v": 1, "digest": LATER, "keys": {"alice": key}})


def test_keys_that_cannot_be_read_here_do_not_open_the_api(tmp_path: Path) -> None:
    one = keyring(tmp_path, places=Places("127.0.0.2", (), "127.0.0.2", 1, hosts=("127.0.0.2",)))

    async def scene() -> None:
        mesh = Later()
        async with Background(1.0) as background:
            one.follow(mesh, background)  # type: ignore[arg-type]  # as much of a mesh as is asked
            one.heard(told("keyed", LATER))
            await mesh.answered.wait()
            for _ in range(20):  # nothing is written to the disk, so this is more than it takes
                await asyncio.sleep(0)
                one.heard(told("keyed", LATER))
            assert one._book.contains(LATER), "all of it that can be read"
            assert one.ring, "there are keys, though none that this version knows"
            assert len(one.ring) == 0
            assert mesh.asked == 1, "it is not asked again for what it has said"

    logs = play(one, scene)
    assert [log["event"] for log in logs if "ignored" in log["event"]] == ["key ignored"]


def told(node: str, keys: str | msgspec.UnsetType) -> PeerView:
    member = Member(node, f"id-{node}", "127.0.0.1", 1)
    return PeerView(member, CapacityReport(node, f"id-{node}", "1", keys=keys), 0.0, 1.0)


@pytest.mark.parametrize("other", [msgspec.UNSET, "empty"])
def test_who_has_no_keys_does_not_open_the_api_that_another_member_has_closed(
    tmp_path: Path, other: str | msgspec.UnsetType
) -> None:
    """A member of an older version, or one that has just come as well."""
    one = keyring(tmp_path, places=Places("127.0.0.2", (), "127.0.0.2", 1, hosts=("127.0.0.2",)))

    async def scene() -> None:
        async with Background(1.0) as background:
            one.follow(Silent(), background)  # type: ignore[arg-type]  # as much of a mesh as is asked
            assert not one.ring
            one.heard(told("keyed", "abc"))
            assert one.ring
            one.heard(told("other", one.digest if other == "empty" else other))
            assert one.ring, "what the one has is not known here yet"
            one.heard(told("keyed", one.digest))
            assert not one.ring

    play(one, scene)


def test_an_open_mesh_has_no_keys(tmp_path: Path) -> None:
    places = Places("192.168.0.7", (), "127.0.0.1", 1, hosts=("127.0.0.1", "192.168.0.7"))
    one = keyring(tmp_path, places=places, secured=False)

    async def scene() -> None:
        with pytest.raises(Forbidden, match="cannot be kept in an open mesh"):
            await one.create(ApiKey("a", digest_of("x")))
        assert one.digest is not None
        assert not one.digest, "nothing is told to members"

    (told,) = play(one, scene)
    assert told["remedy"] == "keys need a mesh with a secret"


def test_a_model_or_its_alias_may_be_allowed(tmp_path: Path) -> None:
    one = keyring(tmp_path)
    key = ApiKey("a", b"", models=("big", "fast"))
    one.admit(key, "big", None)
    one.admit(key, "small", "fast")
    one.admit(key, "big", "other")
    for model, alias in (("small", None), ("small", "other")):
        with pytest.raises(ModelForbidden, match=f"not for the model {alias or model}"):
            one.admit(key, model, alias)
