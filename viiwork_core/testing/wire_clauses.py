"""The engine kit's clauses that need a running engine: the facts that its Wire and its Load state."""

from __future__ import annotations

import http.client
import json

import anyio
import anyio.to_thread
import psutil

from viiwork_core.contracts.cache import SessionRef
from viiwork_core.contracts.engine import Load, StreamEnd, UsageSource
from viiwork_core.testing.clauses import Clause, require
from viiwork_core.testing.conversation import ANSWER_LIMIT, CHAT, Answer, Talk, opening
from viiwork_core.testing.engine_case import EngineCase, check_load, check_probe

KEY = "f00d" * 8


def talk(case: EngineCase) -> Talk:
    return Talk(case.spec, case.wire, case.live)


def _ok(answer: Answer) -> Answer:
    require(answer.status == 200, f"answered with {answer.status}: {answer.raw[:300]}")
    require(answer.text, f"the answer has no text: {answer.raw[:300]}")
    return answer


async def stays_ready(case: EngineCase) -> None:
    async with case.opened() as engine:
        probe = await engine.probe(case.live)
    check_probe(probe, "the running engine")
    require(probe.ready, f"it was ready and is not any more: {probe.reason}")


async def answers_to_its_mesh_name(case: EngineCase) -> None:
    """Twice: an engine that loads models by name may answer once and then unload what it has."""
    for seed in (1, 2):
        _ok(await talk(case).ask(opening(20, seed=seed)))


async def listens_where_it_is_told(case: EngineCase) -> None:
    if case.attaches:
        return
    assert case.pid is not None
    found = await anyio.to_thread.run_sync(_listening, case.pid)
    require((case.spec.host, case.spec.port) in found, f"listens on {sorted(found)}, not on the given address and port")
    elsewhere = {address for address in found if address[0] != case.spec.host}
    require(not elsewhere, f"listens on {sorted(elsewhere)} too")


def _listening(pid: int) -> set[tuple[str, int]]:
    leader = psutil.Process(pid)
    sockets = [one for process in (leader, *leader.children(recursive=True)) for one in process.net_connections("tcp")]
    return {(one.laddr.ip, one.laddr.port) for one in sockets if one.status == psutil.CONN_LISTEN}


async def load_is_possible(case: EngineCase) -> None:
    load = await _load(case)
    check_load(load, "the running engine")
    require(load.slots >= 1, "no slots")
    require(load.busy is None or load.busy <= load.slots, f"more busy than slots: {load}")


async def load_names_slots_within_range(case: EngineCase) -> None:
    load = await _load(case)
    if load.each:
        ids = sorted(slot.id for slot in load.each)
        require(ids == list(range(load.slots)), f"{load.slots} slots and their ids are {ids}")
        require(load.busy == sum(slot.busy for slot in load.each), f"busy is not the sum of the slots: {load}")


async def _load(case: EngineCase) -> Load:
    async with case.opened() as engine:
        return await engine.load(case.spec, case.live)


async def answers_plainly(case: EngineCase) -> None:
    answer = _ok(await talk(case).ask(opening(30, seed=3)))
    stated = case.wire.usage
    told = answer.usage is not None
    require(told == (stated is not UsageSource.ABSENT), f"usage is {stated}, and the body: {answer.raw[:300]}")


async def streams(case: EngineCase) -> None:
    answer = _ok(await talk(case).ask(opening(30, seed=4), stream=True))
    require(len(answer.documents) > 1, f"a stream of one event: {answer.raw[:300]}")


async def usage_is_where_it_is_stated(case: EngineCase) -> None:
    usage = case.wire.usage
    unasked = _ok(await talk(case).ask(opening(30, seed=5), stream=True))
    asked = _ok(await talk(case).ask(opening(30, seed=5), stream=True, stream_options={"include_usage": True}))
    require(
        (unasked.usage is not None) == (usage is UsageSource.UNASKED), f"{usage}, and unasked: {unasked.raw[-600:]}"
    )
    require((asked.usage is not None) == (usage is not UsageSource.ABSENT), f"{usage}, and asked: {asked.raw[-600:]}")
    if asked.usage is not None:
        prompt, cached, completion = asked.usage
        require(0 <= cached <= prompt and prompt > 0 < completion, f"impossible figures: {asked.usage}")


async def stream_end_is_proven_as_stated(case: EngineCase) -> None:
    answer = _ok(await talk(case).ask(opening(30, seed=6), stream=True))
    if case.wire.stream_end is StreamEnd.TRANSPORT:
        require(answer.chunked, "the stream ends with the connection, so a cut looks like an end")
    else:
        require(answer.done, f"the stream does not end with [DONE]: {answer.raw[-300:]}")


async def keep_alive_is_as_stated(case: EngineCase) -> None:
    kept = await anyio.to_thread.run_sync(_kept, case)
    stated = case.wire.keep_alive
    require(
        kept == stated, f"keep_alive is {stated}, and a second request on one connection {'worked' * kept or 'failed'}"
    )


def _kept(case: EngineCase) -> bool:
    """Whether one connection carries two chats."""
    model = case.wire.model or case.spec.model
    body = json.dumps({"model": model, "messages": opening(10, seed=7), "max_tokens": 2})
    headers = {"Content-Type": "application/json", **dict(case.wire.headers)}
    made = http.client.HTTPSConnection if case.live.tls else http.client.HTTPConnection
    connection = made(case.live.host, case.live.port, timeout=ANSWER_LIMIT)
    try:
        ports = [_chat(connection, case.live.base + CHAT, body, headers) for _ in range(2)]
    finally:
        connection.close()
    return None not in ports and ports[0] == ports[1]


def _chat(connection: http.client.HTTPConnection, path: str, body: str, headers: dict[str, str]) -> int | None:
    """Our port of the connection that stays open after the answer; None: it does not."""
    connection.request("POST", path, body, headers)
    sock = connection.sock
    port = int(sock.getsockname()[1])
    answer = connection.getresponse()
    answer.read()
    return None if answer.will_close else port


async def slot_field_pins(case: EngineCase) -> None:
    """Long to the first slot, then two short ones to the last: an engine that chooses itself spreads them."""
    if case.wire.slot_field is None or case.spec.parallel < 2:
        return
    last = case.spec.parallel - 1
    turns = [(0, opening(200, seed=8)), (last, opening(20, seed=9)), (last, opening(40, seed=10))]
    sizes: dict[int, range] = {}
    for slot, messages in turns:
        usage = (await talk(case).turn(messages, SessionRef(KEY, slot))).usage
        require(usage is not None, "no usage, so pinning cannot be seen")
        assert usage is not None
        sizes[slot] = range(usage.prompt - 1, usage.prompt + usage.completion + 1)
    with anyio.move_on_after(case.settle_within):
        while not _as_pinned(load := await _load(case), sizes):  # noqa: ASYNC110  # another process's state
            await anyio.sleep(0.02)
        return
    raise AssertionError(f"slots should hold {sizes} tokens, and hold {load.each}")


def _as_pinned(load: Load, sizes: dict[int, range]) -> bool:
    held = {slot.id: slot.tokens for slot in load.each}
    return all(held.get(slot) in size for slot, size in sizes.items())


async def session_header_is_accepted(case: EngineCase) -> None:
    if case.wire.session_header is not None:
        await talk(case).turn(opening(20, seed=11), SessionRef(KEY, 0))


WIRE_CLAUSES: tuple[Clause[EngineCase], ...] = (
    Clause(10, "it stays ready", stays_ready),
    Clause(11, "it answers to the mesh-wide model name", answers_to_its_mesh_name),
    Clause(12, "what was started listens on the given address and port, and nowhere else", listens_where_it_is_told),
    Clause(13, "load has slots, and possible figures", load_is_possible),
    Clause(14, "load names each slot once, from 0", load_names_slots_within_range),
    Clause(15, "a plain chat works, with usage as stated", answers_plainly),
    Clause(16, "a streamed chat works", streams),
    Clause(17, "a stream's usage is where it is stated", usage_is_where_it_is_stated),
    Clause(18, "a stream's end is proven as stated", stream_end_is_proven_as_stated),
    Clause(19, "keep_alive is as stated", keep_alive_is_as_stated),
    Clause(20, "slot_field pins a request to its slot", slot_field_pins),
    Clause(21, "session_header is accepted", session_header_is_accepted),
)
