"""Conversations that move from one double to another."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace

import pytest

from viiwork_core import CacheUnsupported, EngineRefused, EngineUnreachable
from viiwork_strata.cache import StrataCache
from viiwork_strata.testing.settings import VERSION

from .conftest import SESSION, Running, Start, end

pytestmark = pytest.mark.anyio
FIRST = [
    {"role": "system", "content": "You read code. " * 60},
    {"role": "user", "content": "Where does a request wait for its slot?"},
]


def following(answer: dict[str, object]) -> list[dict[str, str]]:
    return [*FIRST, {"role": "assistant", "content": text(answer)}, {"role": "user", "content": "And after that?"}]


def text(answer: dict[str, object]) -> str:
    choices = answer["choices"]
    assert isinstance(choices, list)
    return str(choices[0]["message"]["content"])


def usage(answer: dict[str, object]) -> tuple[int, int]:
    """Prompt and cached tokens."""
    told = answer["usage"]
    assert isinstance(told, dict)
    return told["prompt_tokens"], told["prompt_tokens_details"]["cached_tokens"]


async def moved(a: Running, b: Running) -> None:
    await a.cache.save(a.spec, a.address, SESSION, "one.sess")
    shutil.copyfile(a.folder / "one.sess", b.folder / "one.sess")


async def test_a_conversation_goes_on_elsewhere_as_if_it_had_stayed(start: Start) -> None:
    a, b = await start("a"), await start("b")
    first = await a.chat(FIRST)
    saved = await a.cache.save(a.spec, a.address, SESSION, "one.sess")
    path = a.folder / "one.sess"
    assert (saved.bytes, path.stat().st_mode & 0o777) == (path.stat().st_size, 0o600)
    assert a.cache.read(path).tokens == saved.tokens
    shutil.copyfile(path, b.folder / "one.sess")
    assert await b.cache.restore(b.spec, b.address, SESSION, "one.sess") == saved.tokens
    assert await b.cache.holds(b.spec, b.address, SESSION) == saved.tokens

    here, there = await a.chat(following(first)), await b.chat(following(first))
    prompt, cached = usage(there)
    assert cached == saved.tokens
    assert cached >= 0.9 * prompt
    assert text(there) == text(here)


async def test_a_cold_turn_gives_the_same_text_as_a_warm_one(start: Start) -> None:
    """Else the test above would prove nothing of the moved cache."""
    a, b = await start("a"), await start("b")
    turn = following(await a.chat(FIRST))
    warm, cold = await a.chat(turn), await b.chat(turn)
    assert (usage(warm)[1] > 0, usage(cold)[1]) == (True, 0)
    assert text(warm) == text(cold)


async def test_a_restore_replaces_the_live_conversation(start: Start) -> None:
    """Strata: "Restore REPLACES the live session and does not park the outgoing one"."""
    a, b = await start("a"), await start("b")
    await a.chat(FIRST)
    await moved(a, b)
    other = [{"role": "user", "content": "Something else, at some length, so that it shows."}]
    await b.chat(other)
    await b.cache.restore(b.spec, b.address, SESSION, "one.sess")
    assert usage(await b.chat(other))[1] == 0
    assert StrataCache.limits.replaces_live
    assert StrataCache.limits.saves_live


async def test_a_flipped_byte_is_refused_and_the_live_conversation_stays(start: Start) -> None:
    """Strata: "400 ... kind "invalid" (... not a session file, corrupt, ...)"; "A refusal leaves engine and live
    session as they were"."""
    a = await start("a")
    first = await a.chat(FIRST)
    saved = await a.cache.save(a.spec, a.address, SESSION, "one.sess")
    path = a.folder / "one.sess"
    data = path.read_bytes()
    for at in (9, 20, 40, 60, 300, 5000, -20, -12, -1):
        path.write_bytes(flipped(data, at))
        with pytest.raises(EngineRefused, match=r"restore with 400 \(invalid\): .*session file"):
            await a.cache.restore(a.spec, a.address, SESSION, "one.sess")
    assert usage(await a.chat(following(first)))[1] == saved.tokens


def flipped(data: bytes, at: int) -> bytes:
    changed = bytearray(data)
    changed[at] ^= 1
    return bytes(changed)


@pytest.mark.parametrize(
    ("other", "words"),
    [({"context": 8192}, "another configuration"), ({"kv": "f16"}, "configuration"), ({"seed": "two"}, "model")],
)
async def test_a_file_of_another_configuration_is_refused(start: Start, other: dict[str, object], words: str) -> None:
    """Strata: "same files + same version + same backend + same those args on both hosts, else 400 invalid"."""
    a, b = await start("a"), await start("b", **other)
    await a.chat(FIRST)
    await moved(a, b)
    with pytest.raises(EngineRefused, match=rf"400 \(invalid\): .*{words}"):
        await b.cache.restore(b.spec, b.address, SESSION, "one.sess")
    assert await a.cache.fingerprint(a.spec, a.address) != await b.cache.fingerprint(b.spec, b.address)


async def test_links_are_refused(start: Start) -> None:
    """Strata: "Restore refuses symlinks and files with more than one hard link"."""
    assert StrataCache.limits.refuses_links
    a = await start("a")
    await a.chat(FIRST)
    await a.cache.save(a.spec, a.address, SESSION, "one.sess")
    (a.folder / "soft.sess").symlink_to(a.folder / "one.sess")
    with pytest.raises(EngineRefused, match="400"):
        await a.cache.restore(a.spec, a.address, SESSION, "soft.sess")
    os.link(a.folder / "one.sess", a.folder / "hard.sess")
    with pytest.raises(EngineRefused, match="400"):
        await a.cache.restore(a.spec, a.address, SESSION, "hard.sess")


async def test_refusals_carry_the_servers_status_and_words(start: Start) -> None:
    a = await start("a")
    with pytest.raises(EngineRefused, match=r"save with 400 \(invalid\): there is no complete session"):
        await a.cache.save(a.spec, a.address, SESSION, "one.sess")
    with pytest.raises(EngineRefused, match=r"restore with 404: no session file nowhere"):
        await a.cache.restore(a.spec, a.address, SESSION, "nowhere.sess")
    for name in ("", "../up", ".hidden", "dot.", "a:b", "x" * 201):
        with pytest.raises(EngineRefused, match="save with 400: filename"):
            await a.cache.save(a.spec, a.address, SESSION, name)
    assert list(a.folder.iterdir()) == []


@pytest.mark.parametrize(
    ("setting", "words"),
    [({"sessions": False}, "501: session files are off"), ({"parallel": 2}, "501: .*not supported with parallel")],
)
async def test_a_server_that_moves_no_session_at_all_says_so(
    start: Start, setting: dict[str, object], words: str
) -> None:
    """Strata: "501 feature off / parallel or batch on"."""
    a = await start("a", **setting)
    await a.chat(FIRST)
    with pytest.raises(CacheUnsupported, match=f"save with {words}"):
        await a.cache.save(a.spec, a.address, SESSION, "one.sess")
    with pytest.raises(CacheUnsupported, match=f"restore with {words}"):
        await a.cache.restore(a.spec, a.address, SESSION, "one.sess")


async def test_slot_calls_are_checked_before_the_engine_sees_them(start: Start) -> None:
    """Strata: "Content-Type must be application/json (else 415), no foreign Origin (else 403)"; "400 slot != "0",
    unknown action"."""
    a = await start("a")
    for path, headers, status in (
        ("/slots/0?action=save", {"Content-Type": "text/plain"}, 415),
        ("/slots/0?action=save", {"Origin": "http://elsewhere.example"}, 403),
        ("/slots/1?action=save", {}, 400),
        ("/slots/0?action=erase", {}, 400),
    ):
        assert (await a.post(path, {"filename": "x"}, **headers)).status_code == status


async def test_an_engine_that_is_gone_is_unreachable(start: Start) -> None:
    a = await start("a")
    end(a.process)
    with pytest.raises(EngineUnreachable):
        await a.cache.save(a.spec, a.address, SESSION, "one.sess")
    with pytest.raises(EngineUnreachable):
        await a.cache.holds(a.spec, a.address, SESSION)


async def test_what_is_held_is_unknown_with_several_slots(start: Start) -> None:
    """Strata: "up to v0.1.40.1 always one entry", so the configured number counts too."""
    a = await start("a")
    assert await a.cache.holds(a.spec, a.address, SESSION) == 0
    assert await a.cache.holds(replace(a.spec, parallel=2), a.address, SESSION) is None


async def test_equal_models_in_other_folders_have_equal_fingerprints(start: Start) -> None:
    """Strata: "paths do not matter"."""
    a, b = await start("a"), await start("b")
    one = await a.cache.fingerprint(a.spec, a.address)
    assert one == await b.cache.fingerprint(b.spec, b.address)
    assert set(one) == {"session format", "engine", "backend", "STRATA_KV_ROT", "--model", "--kv", "--max-context"}
    assert one["engine"] == VERSION


async def test_the_inherited_environment_counts(start: Start) -> None:
    """Strata: STRATA_KV_ROT is in its own fingerprint; the JSON's "env" is applied last."""
    a, b = await start("a"), await start("b", env={"STRATA_KV_ROT": "0"})
    rotated = replace(a.spec, env={"STRATA_KV_ROT": "1"})
    assert (await a.cache.fingerprint(a.spec, a.address))["STRATA_KV_ROT"] == ""
    assert (await a.cache.fingerprint(rotated, a.address))["STRATA_KV_ROT"] == "1"
    assert (await b.cache.fingerprint(replace(b.spec, env=rotated.env), b.address))["STRATA_KV_ROT"] == "0"


async def test_a_fingerprint_that_cannot_be_known_is_refused(start: Start) -> None:
    a = await start("a")
    path = a.spec.path
    assert path is not None
    whole = path.read_text()
    path.write_text('{"model_name": "tiny", "args": "--kv int8"}')
    with pytest.raises(EngineRefused, match="not a list of strings"):
        await a.cache.fingerprint(a.spec, a.address)
    path.unlink()
    with pytest.raises(EngineRefused, match=r"path: .* cannot be read"):
        await a.cache.fingerprint(a.spec, a.address)
    path.write_text(whole)
    end(a.process)
    with pytest.raises(EngineUnreachable):
        await a.cache.fingerprint(a.spec, a.address)
