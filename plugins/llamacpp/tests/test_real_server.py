"""The whole of it against a real llama-server with a tiny model: a session that moves from A to B."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from viiwork_core import Address, Context, EngineRefused, SegmentKind, SessionRef, Spec
from viiwork_llamacpp.cache import LlamaCppCache
from viiwork_llamacpp.options import LlamaCppOptions

CHAT = "/v1/chat/completions"
TOPICS = ["the river", "a stone", "some water", "that house", "our garden", "every night"]
LONG = " ".join(f"{TOPICS[n % 6]} and the old tree near number {n} of it all." for n in range(200))
FIRST = [{"role": "system", "content": "You help with words."}, {"role": "user", "content": LONG}]
ZERO, ONE = SessionRef("aa", 0), SessionRef("aa", 1)


async def post(address: Address, path: str, body: dict[str, Any]) -> dict[str, Any]:
    async with httpx.AsyncClient(trust_env=False, timeout=60) as client:
        reply = await client.post(address.url + path, json=body)
    assert reply.status_code == 200, reply.text
    return dict(reply.json())


def chat(messages: list[dict[str, str]], slot: int, tokens: int = 24) -> dict[str, Any]:
    return {"messages": messages, "max_tokens": tokens, "temperature": 0, "id_slot": slot}


def text_of(answer: dict[str, Any]) -> str:
    return str(answer["choices"][0]["message"]["content"])


def next_turn(answer: dict[str, Any]) -> list[dict[str, str]]:
    reply = {"role": "assistant", "content": text_of(answer)}
    return [*FIRST, reply, {"role": "user", "content": "And what came after that?"}]


@pytest.fixture
def cache(context: Context) -> LlamaCppCache:
    return LlamaCppCache(LlamaCppOptions(threads=1), context)


@asynccontextmanager
async def streaming(address: Address, slot: int) -> AsyncIterator[None]:
    """A request that keeps a slot busy while the block runs."""
    body = {**chat([{"role": "user", "content": "go on"}], slot, 8000), "stream": True, "ignore_eos": True}
    async with (
        httpx.AsyncClient(trust_env=False, timeout=60) as client,
        client.stream("POST", address.url + CHAT, json=body) as reply,
    ):
        parts = reply.aiter_bytes()  # kept: when it is collected, the connection is closed
        assert await anext(parts)
        yield


def test_a_session_moves(backend: Callable, cache: LlamaCppCache) -> None:
    async def run() -> None:
        async with backend("a") as (_, spec_a, a), backend("b") as (engine_b, spec_b, b), cache:
            first = await post(a, CHAT, chat(FIRST, 0))
            assert first["usage"]["prompt_tokens"] >= 3000
            saved = await cache.save(spec_a, a, ZERO, "one.bin")
            assert saved.tokens >= 3000
            assert saved.bytes == (spec_a.cache_dir / "one.bin").stat().st_size
            assert await cache.holds(spec_a, a, ZERO) == saved.tokens

            shutil.copy(spec_a.cache_dir / "one.bin", spec_b.cache_dir / "two.bin")
            assert await cache.restore(spec_b, b, ONE, "two.bin") == saved.tokens
            assert await cache.holds(spec_b, b, ONE) is None
            assert (await engine_b.load(spec_b, b)).busy == 0

            second = next_turn(first)
            warm, moved = await post(a, CHAT, chat(second, 0)), await post(b, CHAT, chat(second, 1))
            usage = moved["usage"]
            assert usage["prompt_tokens_details"]["cached_tokens"] >= 0.9 * usage["prompt_tokens"]
            assert text_of(moved) == text_of(warm)
            assert await cache.holds(spec_b, b, ONE) > saved.tokens

    asyncio.run(run())


def test_two_equal_backends_have_equal_fingerprints(backend: Callable, cache: LlamaCppCache) -> None:
    async def run() -> None:
        async with backend("a") as (engine, spec_a, a), backend("b", context_size=4096) as (_, spec_b, b):
            one = await cache.fingerprint(spec_a, a)
            assert one == await cache.fingerprint(spec_b, b)
            assert one["streams"] == "2"
            assert one["flash_attention"] == "on"
            assert await engine.version(a)

    asyncio.run(run())


def test_what_a_saved_file_says(backend: Callable, cache: LlamaCppCache) -> None:
    async def run() -> None:
        async with backend() as (_, spec, address), cache:
            await post(address, CHAT, chat(FIRST, 0))
            saved = await cache.save(spec, address, ZERO, "one.bin")
            file = cache.read(spec.cache_dir / "one.bin")
            assert file.tokens == saved.tokens == len(file.ids)
            assert not file.sliding
            rows = sum(segment.length for segment in file.segments if segment.kind is SegmentKind.ROWS)
            assert rows > 0.9 * saved.bytes
            assert sum(segment.length for segment in file.segments) == saved.bytes

    asyncio.run(run())


def test_later_turns_keep_the_rows(backend: Callable, cache: LlamaCppCache) -> None:
    async def run() -> None:
        async with backend() as (_, spec, address), cache:
            first = await post(address, CHAT, chat(FIRST, 0))
            old = await rows(cache, spec, address, "one.bin")
            await post(address, CHAT, chat(next_turn(first), 0))
            new = await rows(cache, spec, address, "two.bin")
            assert len(old) == len(new) == 4
            for before, after in zip(old, new, strict=True):
                # The last token of an answer may be read again in the next turn, so its row may change.
                kept = int(0.99 * len(before))
                assert len(after) > len(before)
                assert after[:kept] == before[:kept]

    asyncio.run(run())


async def rows(cache: LlamaCppCache, spec: Spec, address: Address, name: str) -> list[bytes]:
    """Save slot 0, and the bytes of each stretch of rows in the file."""
    await cache.save(spec, address, ZERO, name)
    path = spec.cache_dir / name
    data, segments = path.read_bytes(), cache.read(path).segments
    return [data[part.offset : part.offset + part.length] for part in segments if part.kind is SegmentKind.ROWS]


def test_covers_counts_what_the_engine_will_reuse(backend: Callable, cache: LlamaCppCache) -> None:
    async def covered(spec: Spec, address: Address, path: str, body: dict[str, Any]) -> int | None:
        file = cache.read(spec.cache_dir / "one.bin")
        return await cache.covers(spec, address, file, path, json.dumps(body).encode())

    async def run() -> None:
        async with backend() as (_, spec, address), cache:
            first = await post(address, CHAT, chat(FIRST, 0))
            saved = await cache.save(spec, address, ZERO, "one.bin")
            second = chat(next_turn(first), 0)
            count = await covered(spec, address, CHAT, {**second, "stream": True, "model": "tiny"})
            assert count >= saved.tokens - 2
            reused = (await post(address, CHAT, second))["usage"]["prompt_tokens_details"]["cached_tokens"]
            assert count == reused

            assert await covered(spec, address, CHAT, {**second, "cache_prompt": False}) == 0
            other = chat([{"role": "user", "content": "something else"}], 0)
            assert await covered(spec, address, CHAT, other) < 30
            picture = [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}]
            assert await covered(spec, address, CHAT, chat([{"role": "user", "content": picture}], 0)) is None
            assert await covered(spec, address, CHAT, {"messages": [{"role": 7}]}) is None
            assert await covered(spec, address, "/v1/responses", {"input": "x"}) is None

    asyncio.run(run())


@pytest.mark.parametrize("text", [LONG, "a<|im_end|>\n<|im_start|>user\n" + LONG, "  é\t漢字 \n\n" + LONG])
def test_the_prompts_ids_are_the_engines_own(backend: Callable, cache: LlamaCppCache, text: str) -> None:
    """Special tokens inside a prompt, blanks at its start and letters of many bytes are read as the engine does."""

    async def run() -> None:
        async with backend() as (_, spec, address), cache:
            for path, body in [
                ("/v1/completions", {"prompt": text}),
                (CHAT, {"messages": [{"role": "user", "content": text}]}),
                (CHAT, {"messages": [{"role": "user", "content": [{"type": "text", "text": text}]}]}),
            ]:
                answer = await post(address, path, {**body, "max_tokens": 1, "id_slot": 0})
                await cache.save(spec, address, ZERO, "one.bin")
                file = cache.read(spec.cache_dir / "one.bin")
                count = await cache.covers(spec, address, file, path, json.dumps(body).encode())
                assert count == file.tokens == answer["usage"]["prompt_tokens"]
                as_ids = json.dumps({"prompt": file.ids}).encode()
                assert await cache.covers(spec, address, file, "/v1/completions", as_ids) == count
                several = json.dumps({"prompt": [text, text]}).encode()
                assert await cache.covers(spec, address, file, "/v1/completions", several) is None

    asyncio.run(run())


def test_a_slot_that_is_not_there_is_refused(backend: Callable, cache: LlamaCppCache) -> None:
    async def run() -> None:
        async with backend() as (_, spec, address), cache:
            await post(address, CHAT, chat(FIRST[:1], 0))
            await post(address, CHAT, chat(FIRST[:1], 1))
            await cache.save(spec, address, ONE, "one.bin")
            for session in (SessionRef("aa", 2), SessionRef("aa", 7), SessionRef("aa", -1), SessionRef("aa")):
                with pytest.raises(EngineRefused, match="has no slot"):
                    await cache.save(spec, address, session, "other.bin")
                with pytest.raises(EngineRefused, match="has no slot"):
                    await cache.restore(spec, address, session, "one.bin")
            assert not (spec.cache_dir / "other.bin").exists()

    asyncio.run(run())


def test_a_busy_slot_is_refused(backend: Callable, cache: LlamaCppCache) -> None:
    async def run() -> None:
        async with backend() as (engine, spec, address), cache:
            await post(address, CHAT, chat(FIRST[:1], 1))
            await cache.save(spec, address, ONE, "one.bin")
            async with streaming(address, 0):
                assert [slot.busy for slot in (await engine.load(spec, address)).each] == [True, False]
                with pytest.raises(EngineRefused, match="slot 0 is busy"):
                    await cache.save(spec, address, ZERO, "other.bin")
                with pytest.raises(EngineRefused, match="slot 0 is busy"):
                    await cache.restore(spec, address, ZERO, "one.bin")

    asyncio.run(run())


def test_an_empty_slot_has_nothing_to_save(backend: Callable, cache: LlamaCppCache) -> None:
    async def run() -> None:
        async with backend() as (_, spec, address), cache:
            with pytest.raises(EngineRefused, match="saved nothing"):
                await cache.save(spec, address, ONE, "one.bin")
            assert await cache.holds(spec, address, ONE) is None

    asyncio.run(run())


def test_a_damaged_file_never_reaches_the_engine(backend: Callable, cache: LlamaCppCache) -> None:
    async def run() -> None:
        async with backend() as (engine, spec, address), cache:
            await post(address, CHAT, chat(FIRST, 0))
            await cache.save(spec, address, ZERO, "one.bin")
            data = (spec.cache_dir / "one.bin").read_bytes()
            for name, damaged in damages(data).items():
                (spec.cache_dir / name).write_bytes(damaged)
                with pytest.raises(EngineRefused):
                    await cache.restore(spec, address, ONE, name)
            with pytest.raises(EngineRefused):
                await cache.restore(spec, address, ONE, "absent.bin")
            assert (await engine.probe(address)).ready

    asyncio.run(run())


def damages(data: bytes) -> dict[str, bytes]:
    """A file that lost its last byte ends the engine when it reads it."""
    half = len(data) // 2
    return {
        "last-byte": data[:-1],
        "half": data[:half],
        "empty": b"",
        "tail": data + b"\0",
        "hole": data[:half] + data[half + 64 :],
        "magic": b"xxxx" + data[4:],
    }


def test_a_file_that_does_not_fit_is_refused_by_the_engine(backend: Callable, cache: LlamaCppCache) -> None:
    async def run() -> None:
        async with (
            backend("a") as (_, spec_a, a),
            backend("b", "-ctk", "q8_0") as (_, spec_b, b),
            backend("c", context_size=256) as (engine_c, spec_c, c),
            cache,
        ):
            await post(a, CHAT, chat(FIRST, 0))
            await cache.save(spec_a, a, ZERO, "one.bin")
            for spec, address in [(spec_b, b), (spec_c, c)]:
                shutil.copy(spec_a.cache_dir / "one.bin", spec.cache_dir / "one.bin")
                with pytest.raises(EngineRefused, match="Unable to restore"):
                    await cache.restore(spec, address, ZERO, "one.bin")
            assert (await engine_c.probe(c)).ready

    asyncio.run(run())


def test_every_endpoint_exists(backend: Callable) -> None:
    """Clients may reach only what the server has; an endpoint that this model cannot do still answers by itself."""

    async def run() -> None:
        async with (
            backend() as (engine, _, address),
            httpx.AsyncClient(trust_env=False, timeout=60, base_url=address.url) as client,
        ):
            for path in sorted(engine.wire.endpoints):
                assert (await client.post(path, json={})).status_code not in (404, 405), path
            assert (await client.post("/v1/nothing", json={})).status_code == 404
            models = (await client.get("/v1/models")).json()
            assert models["data"][0]["id"] == "tiny"

    asyncio.run(run())


@pytest.mark.parametrize(
    "args", [(), ("--ubatch-size", "512", "--split-mode", "layer", "--tensor-split", "1,1", "--device", "none")]
)
def test_the_server_takes_what_profiles_set(backend: Callable, args: tuple[str, ...]) -> None:
    """The flags of the CPU's profile, and those that profiles of cards set, as far as a machine without one can."""

    async def run() -> None:
        async with backend("a", *args) as (engine, spec, address):
            argv = engine.launch(spec).argv
            assert argv.count("--device") == argv.count("--cache-ram") == 1
            assert argv[argv.index("--device") + 1] == "none"
            assert int(argv[argv.index("--cache-ram") + 1]) % 256 == 0
            assert (await post(address, CHAT, chat(FIRST[:1], 0)))["choices"]
            assert await engine.advice(spec) == ()

    asyncio.run(run())


def test_the_log_shows_no_prompt(backend: Callable, tmp_path: Path) -> None:
    async def run() -> None:
        async with backend("a") as (_, _, address):
            await post(address, CHAT, chat([{"role": "user", "content": "my secret garden"}], 0))

    asyncio.run(run())
    assert "secret" not in (tmp_path / "a.log").read_text()
