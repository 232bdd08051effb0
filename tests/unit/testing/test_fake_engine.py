"""The fake engine as a process: its cache, and each fault it can be told to have."""

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pluggy
import pytest

from viiwork_core import hookspecs
from viiwork_core.contracts.cache import SessionRef
from viiwork_core.contracts.engine import Address, Spec
from viiwork_core.engines.environment import child_environment
from viiwork_core.engines.listener import free_port
from viiwork_core.engines.process import LineSink, start_group
from viiwork_core.errors import CacheRefused, EngineRefused, EngineUnreachable
from viiwork_core.testing.conversation import follow_up, opening
from viiwork_core.testing.fake_backend import LIMIT, SPEC, FakeBackend, fake_backend, until
from viiwork_core.testing.fake_plugin import FakeCacheTransfer, FakeEngine, FakeOptions, plugin
from viiwork_core.testing.servers import kit_context


@asynccontextmanager
async def opened(folder: Path) -> AsyncIterator[FakeCacheTransfer]:
    async with FakeCacheTransfer(FakeOptions(), kit_context(folder)) as transfer:
        yield transfer


def run(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(test)


def chat(text: str, **more: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}], "max_tokens": 4, **more}


def test_the_text_depends_on_the_whole_context(tmp_path: Path) -> None:
    async def test() -> None:
        async with fake_backend(tmp_path) as one:
            texts = [(await one.talk.ask([*opening(1, seed=seed), *opening(500, seed=9)])).text for seed in (1, 2, 1)]
        assert texts[0] == texts[2] != texts[1]

    run(test())


def test_a_conversation_is_reused_in_the_slot_that_holds_it(tmp_path: Path) -> None:
    async def test() -> None:
        async with fake_backend(tmp_path) as one:
            first = await one.talk.ask(messages := opening(100, seed=1))
            await one.talk.ask(opening(100, seed=2))
            second = await one.talk.ask(follow_up(messages, first, 10, seed=3))
        assert first.usage is not None
        assert second.usage is not None
        assert first.usage.cached == 0
        assert second.usage.cached == first.usage.prompt + first.usage.completion - 1

    run(test())


def test_a_pin_out_of_range_wraps_around(tmp_path: Path) -> None:
    async def test() -> None:
        async with fake_backend(tmp_path) as one:
            await one.post("/v1/chat/completions", chat("hello", id_slot=6))
            tokens = [slot["tokens"] for slot in (await one.state())["slots"]]
        assert tokens[0] > 0 == tokens[1]

    run(test())


def test_a_session_moves_by_file(tmp_path: Path) -> None:
    async def test() -> None:
        (tmp_path / "kv").mkdir()
        spec, ref = replace(SPEC, cache_dir=tmp_path / "kv"), SessionRef("ab", 1)
        async with (
            fake_backend(tmp_path, spec=spec) as a,
            fake_backend(tmp_path, spec=spec) as b,
            opened(tmp_path) as transfer,
        ):
            first = await a.talk.turn(messages := opening(300, seed=1), ref)
            saved = await transfer.save(spec, a.talk.address, ref, "file")
            assert await transfer.restore(spec, b.talk.address, ref, "file") == saved.tokens
            messages = follow_up(messages, first, 10, seed=2)
            moved, stayed = await b.talk.turn(messages, ref), await a.talk.turn(messages, ref)
        assert moved.usage == stayed.usage
        assert moved.text == stayed.text

    run(test())


def test_a_cache_of_another_model_writes_other_text(tmp_path: Path) -> None:
    async def test() -> None:
        for name in ("one", "two"):
            (tmp_path / name).write_text(name)
        ref, spec = SessionRef("ab", 0), replace(SPEC, cache_dir=tmp_path, path=tmp_path / "one")
        async with fake_backend(tmp_path, spec=spec) as a, opened(tmp_path) as transfer:
            first = await a.talk.turn(messages := opening(300, seed=1), ref)
            await transfer.save(spec, a.talk.address, ref, "file")
        async with fake_backend(tmp_path, spec=replace(spec, path=tmp_path / "two")) as b, opened(tmp_path) as transfer:
            await transfer.restore(spec, b.talk.address, ref, "file")
            messages = follow_up(messages, first, 10, seed=2)
            wrong = await b.talk.turn(messages, ref)
            right = await b.talk.turn(messages, replace(ref, slot=1))
        assert wrong.usage is not None
        assert wrong.usage.cached > 300
        assert wrong.text != right.text

    run(test())


def test_a_slot_that_another_session_took_is_not_saved(tmp_path: Path) -> None:
    async def test() -> None:
        spec = replace(SPEC, cache_dir=tmp_path)
        async with fake_backend(tmp_path, spec=spec) as one, opened(tmp_path) as transfer:
            await one.talk.turn(opening(20, seed=1), SessionRef("first", 0))
            await one.talk.turn(opening(20, seed=2), SessionRef("second", 0))
            with pytest.raises(EngineRefused, match="another session"):
                await transfer.save(spec, one.talk.address, SessionRef("first", 0), "file")
            assert await transfer.holds(spec, one.talk.address, SessionRef("first", 0)) == 0

    run(test())


def test_a_busy_slot_is_not_saved(tmp_path: Path) -> None:
    async def test() -> None:
        spec, ref = replace(SPEC, cache_dir=tmp_path), SessionRef("ab", 0)
        async with fake_backend(tmp_path, spec=spec, token_seconds=0.05) as one, opened(tmp_path) as transfer:
            turn = asyncio.ensure_future(one.talk.ask(opening(20, seed=1), ref, max_tokens=2000))
            await until(lambda: one.busy(0))
            with pytest.raises(EngineRefused, match="processing"):
                await transfer.save(spec, one.talk.address, ref, "file")
            turn.cancel()
            await asyncio.wait({turn})

    run(test())


def test_a_file_of_something_else_is_no_cache_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("hello")
    with pytest.raises(CacheRefused, match="not a cache file"):
        FakeCacheTransfer(FakeOptions(), kit_context(tmp_path)).read(tmp_path / "file")


def test_it_answers_503_while_it_loads(tmp_path: Path) -> None:
    async def test() -> None:
        async with FakeEngine(FakeOptions(load_seconds=3600), kit_context(tmp_path)) as engine:
            spec = replace(SPEC, port=free_port())
            launch = engine.launch(spec)
            assert launch is not None
            child = await start_group(launch.argv, child_environment("test"), LineSink(print))
            try:
                await until(lambda: answers(engine, spec))
                assert not (await engine.probe(Address(spec.host, spec.port))).ready
                async with httpx.AsyncClient(trust_env=False) as http:
                    answer = await http.get(f"http://{spec.host}:{spec.port}/v1/models")
            finally:
                await child.end()
        assert (answer.status_code, answer.json()) == (
            503,
            {"error": {"message": "Loading model", "type": "unavailable_error", "code": 503}},
        )

    run(test())


async def answers(engine: FakeEngine, spec: Spec) -> bool:
    try:
        await engine.probe(Address(spec.host, spec.port))
    except EngineUnreachable:
        return False
    return True


@pytest.mark.parametrize(("flag", "status"), [(["--exit-at-start"], 1), (["--crash-after", "0"], 70)])
def test_it_ends_by_itself(tmp_path: Path, flag: list[str], status: int) -> None:
    async def test() -> None:
        engine = FakeEngine(FakeOptions(), kit_context(tmp_path))
        launch = engine.launch(replace(SPEC, port=free_port()))
        assert launch is not None
        child = await start_group([*launch.argv, *flag], child_environment("test"), LineSink(print))
        try:
            async with asyncio.timeout(LIMIT):
                assert await child.wait() == status
        finally:
            await child.end()

    run(test())


def test_sigterm_ends_it_also_while_it_streams(tmp_path: Path) -> None:
    async def test() -> None:
        async with fake_backend(tmp_path, token_seconds=0.05) as one:
            turn = asyncio.ensure_future(one.talk.ask(opening(20, seed=1), max_tokens=2000, stream=True))
            await until(lambda: one.counted("active", 1))
            os.kill(one.process.child.pid, signal.SIGTERM)
            async with asyncio.timeout(LIMIT):
                assert await one.process.child.wait() == 0
            with pytest.raises(httpx.HTTPError):
                await turn

    run(test())


def test_it_can_ignore_sigterm(tmp_path: Path) -> None:
    async def test() -> None:
        async with fake_backend(tmp_path, ignore_sigterm=True) as one:
            os.kill(one.process.child.pid, signal.SIGTERM)
            assert (await one.talk.ask(opening(20, seed=1))).status == 200
            assert (await one.state())["pid"] == one.process.child.pid
            one.process.child.kill()
            assert await one.process.child.wait() == -signal.SIGKILL

    run(test())


async def read_into(seen: list[str], one: FakeBackend) -> None:
    async with one.http.stream("POST", "/v1/chat/completions", json=chat("hi", stream=True)) as answer:
        async for part in answer.aiter_text():
            seen += [part]


def test_a_cut_stream_breaks_off_after_its_events(tmp_path: Path) -> None:
    async def test() -> None:
        async with fake_backend(tmp_path, cut_after=3) as one:
            seen: list[str] = []
            with pytest.raises(httpx.RemoteProtocolError):
                await read_into(seen, one)
            assert "".join(seen).count("data: ") == 3
            assert "[DONE]" not in "".join(seen)
            await until(lambda: one.counted("cut", 1))

    run(test())


@pytest.mark.parametrize(
    ("options", "stream"),
    [({"first_byte_seconds": 3600}, False), ({"token_seconds": 0.05}, True), ({"token_seconds": 0.05}, False)],
)
def test_a_client_that_leaves_frees_its_slot(tmp_path: Path, options: dict[str, Any], stream: bool) -> None:
    async def test() -> None:
        async with fake_backend(tmp_path, **options) as one:
            ref = SessionRef("ab", 0)
            turn = asyncio.ensure_future(one.talk.ask(opening(9, seed=1), ref, stream=stream, max_tokens=2000))
            await until(lambda: one.busy(0))
            turn.cancel()
            await asyncio.wait({turn})
            await until(lambda: one.counted("cancelled", 1))
            state = await one.state()
        assert (state["active"], [slot["busy"] for slot in state["slots"]]) == (0, [False, False])

    run(test())


def test_a_wedged_slot_stays_busy_and_the_others_serve(tmp_path: Path) -> None:
    async def test() -> None:
        async with fake_backend(tmp_path, wedge_slot=0) as one:
            turn = asyncio.ensure_future(one.talk.ask(opening(9, seed=1), SessionRef("ab", 0)))
            await until(lambda: one.busy(0))
            turn.cancel()
            await asyncio.wait({turn})
            await until(lambda: one.counted("cancelled", 1))
            assert await one.busy(0)
            assert (await one.talk.ask(opening(9, seed=1), SessionRef("ab", 1))).status == 200

    run(test())


def test_it_answers_with_the_statuses_it_is_told(tmp_path: Path) -> None:
    async def test() -> None:
        async with fake_backend(tmp_path, answer_status=(503, 429, 200)) as one:
            statuses = [(await one.talk.ask(opening(9, seed=1))).status for _ in range(4)]
            assert statuses == [503, 429, 200, 200]
            assert await one.counted("refused", 2)

    run(test())


def test_only_its_own_name_where_it_is_told_so(tmp_path: Path) -> None:
    async def test() -> None:
        async with fake_backend(tmp_path, only_model=True) as one:
            assert (await one.talk.ask(opening(9, seed=1))).status == 200
            assert (await one.post("/v1/chat/completions", chat("hi", model="other"))).status_code == 404

    run(test())


def test_the_request_log_has_headers_and_bodies(tmp_path: Path) -> None:
    async def test() -> None:
        async with fake_backend(tmp_path) as one:
            await one.http.post("/v1/chat/completions", json=chat("hi"), headers={"Authorization": "Bearer abc"})
            seen = [request for request in await one.requests() if request["method"] == "POST"]
        assert [(one["path"], one["headers"]["authorization"], one["body"]) for one in seen] == [
            ("/v1/chat/completions", "Bearer abc", chat("hi"))
        ]

    run(test())


def test_a_chunked_body_is_read(tmp_path: Path) -> None:
    async def parts() -> AsyncIterator[bytes]:
        content = json.dumps(chat("hi")).encode()
        yield content[:10]
        yield content[10:]

    async def test() -> None:
        async with fake_backend(tmp_path) as one:
            assert (await one.http.post("/v1/chat/completions", content=parts())).status_code == 200

    run(test())


def test_requests_wait_for_a_slot(tmp_path: Path) -> None:
    async def test() -> None:
        async with fake_backend(tmp_path, token_seconds=0.002) as one:
            answers = await asyncio.gather(*(one.talk.ask(opening(9, seed=seed)) for seed in range(5)))
        assert [answer.status for answer in answers] == [200] * 5

    run(test())


def test_over_http_1_0_a_stream_ends_with_the_connection(tmp_path: Path) -> None:
    async def test() -> None:
        async with fake_backend(tmp_path, http10=True) as one:
            answer = await one.talk.ask(opening(9, seed=1), stream=True)
            raw = await one.post("/v1/chat/completions", chat("hi"))
        assert (answer.done, answer.chunked) == (True, False)
        assert raw.http_version == "HTTP/1.0"

    run(test())


def test_the_plugin_registers_both_classes() -> None:
    plugins = pluggy.PluginManager(hookspecs.PROJECT)
    plugins.add_hookspecs(hookspecs)
    plugins.register(plugin)
    plugins.check_pending()
    assert plugins.hook.viiwork_register_engine() == [FakeEngine]
    assert plugins.hook.viiwork_register_cache_transfer() == [FakeCacheTransfer]
