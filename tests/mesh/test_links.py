"""The client to other members, against real servers: what goes out, what comes back, what is refused."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from aiohttp import web

from viiwork_core.clock import SystemClock
from viiwork_core.errors import BackendFailed, Unauthorized
from viiwork_core.mesh.links import Links
from viiwork_core.mesh.membership import Member
from viiwork_core.mesh.sockets import LOST_S, PROBED_AFTER_S
from viiwork_core.security.signing import STREAMED, Digest, Signer, Verifier, header_text

KEY = b"k" * 32
MIB = 1 << 20

Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]


@asynccontextmanager
async def serving(handler: Handler, host: str = "127.0.0.1") -> AsyncIterator[Member]:
    """A member whose whole API is `handler`."""
    server = web.Server(handler)
    runner = web.ServerRunner(server, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, host, 0)
    await site.start()
    port = runner.addresses[0][1]
    try:
        yield Member(node="peer", node_id="run-1", host=host, api_port=port)
    finally:
        await runner.cleanup()


def links(*, signed: bool = True, source: str | None = None) -> Links:
    signer = Signer(KEY, node="me", clock=SystemClock()) if signed else None
    return Links(node="me", signer=signer, source=source)


def verifier() -> Verifier:
    return Verifier(KEY, node_id="run-1", clock=SystemClock())


def proven(check: Verifier, request: web.BaseRequest, body: bytes | Digest) -> web.Response:
    """What a member makes of a request."""
    try:
        by = check.verify(request.method, request.raw_path, header_text(request.raw_headers), body)
    except Unauthorized as error:
        return web.json_response({"error": {"message": error.message}}, status=401)
    return web.json_response([by.node, by.forwarded])


def test_a_poll_is_signed_and_answered() -> None:
    check = verifier()

    async def answer(request: web.BaseRequest) -> web.Response:
        return proven(check, request, await request.read())

    async def run() -> None:
        async with serving(answer) as member, links() as out:
            for _ in range(2):
                assert await out.get_json_bytes(member, "/v1/capacity?since=%2F1", 5) == b'["me", null]'

    asyncio.run(run())


def test_a_refused_poll_tells_the_reason() -> None:
    check = Verifier(b"x" * 32, node_id="run-1", clock=SystemClock())

    async def answer(request: web.BaseRequest) -> web.Response:
        return proven(check, request, b"")

    async def run() -> None:
        async with serving(answer) as member, links() as out:
            with pytest.raises(BackendFailed, match="peer: GET /x answered 401: secret"):
                await out.get_json_bytes(member, "/x", 5)

    asyncio.run(run())


@pytest.mark.parametrize("size", [0, 10, MIB, 3 * MIB])
@pytest.mark.parametrize("signed", [True, False])
def test_a_forward_arrives_whole_and_nothing_is_added(size: int, signed: bool) -> None:
    body = b"x" * size
    seen: list[web.BaseRequest] = []

    async def answer(request: web.BaseRequest) -> web.Response:
        seen.append(request)
        received = await request.content.read()
        assert received == body
        return proven(check, request, received) if signed else web.Response(text="open")

    async def run() -> None:
        headers = [("Accept", "text/x"), ("X-Viiwork-Session", "s"), ("x-viiwork-forwarded", "someone")]
        async with (
            serving(answer) as member,
            links(signed=signed) as out,
            out.open_post(member, "/v1/x?y=%41", headers=headers, body=body) as response,
        ):
            assert response.status == 200
            assert await response.read() == (b'["me", "me"]' if signed else b"open")

    check = verifier()
    asyncio.run(run())
    (request,) = seen
    assert request.raw_path == "/v1/x?y=%41"
    names = {name.lower() for name in request.headers}
    own = {"x-viiwork-session", "x-viiwork-forwarded", "x-viiwork-to"}
    proof = {f"x-viiwork-{part}" for part in ("node", "ts", "nonce", "auth")} if signed else set()
    assert names == {"host", "accept", "content-length"} | own | proof
    assert request.headers.getall("X-Viiwork-Forwarded") == ["me"]
    assert request.content_length == size


def test_an_answer_streams_through_before_it_ends() -> None:
    more = asyncio.Event()

    async def answer(request: web.BaseRequest) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Encoding": "gzip"})
        await response.prepare(request)
        await response.write(b"one")
        await more.wait()
        await response.write(b"two")
        return response

    async def run() -> None:
        async with (
            serving(answer) as member,
            links() as out,
            out.open_post(member, "/v1/x", headers=[], body=b"{}") as response,
        ):
            assert await response.content.readany() == b"one"  # as it came, not decompressed
            more.set()
            assert await response.content.read() == b"two"

    asyncio.run(run())


def test_leaving_early_ends_the_work_at_the_other_end() -> None:
    ended = asyncio.Event()

    async def answer(request: web.BaseRequest) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        try:
            while True:
                await response.write(b"x" * 1000)
                await asyncio.sleep(0.001)
        finally:
            ended.set()

    async def run() -> None:
        async with serving(answer) as member, links() as out:
            async with out.open_post(member, "/v1/x", headers=[], body=b"{}") as response:
                await response.content.readany()
            await asyncio.wait_for(ended.wait(), 20)

    asyncio.run(run())


async def redirect(request: web.BaseRequest) -> web.Response:
    return web.Response(status=307, headers={"Location": "http://127.0.0.1:1/elsewhere"})


def test_no_redirect_is_followed() -> None:
    async def run() -> None:
        async with serving(redirect) as member, links() as out:
            with pytest.raises(BackendFailed, match="answered 307"):
                await out.get_json_bytes(member, "/x", 5)
            async with out.open_post(member, "/x", headers=[], body=b"{}") as response:
                assert response.status == 307

    asyncio.run(run())


def test_a_body_over_1_mib_is_refused() -> None:
    async def answer(request: web.BaseRequest) -> web.Response:
        return web.Response(body=b"x" * (MIB if request.path == "/fits" else MIB + 1))

    async def run() -> None:
        async with serving(answer) as member, links() as out:
            assert len(await out.get_json_bytes(member, "/fits", 5)) == MIB
            with pytest.raises(BackendFailed, match="more than 1048576 bytes"):
                await out.get_json_bytes(member, "/more", 5)

    asyncio.run(run())


async def hang(request: web.BaseRequest) -> web.StreamResponse:
    response = web.StreamResponse()
    if request.path == "/headers":
        await response.prepare(request)
    await asyncio.Event().wait()
    return response


@pytest.mark.parametrize("path", ["/nothing", "/headers"])
def test_a_poll_has_a_deadline(path: str) -> None:
    async def run() -> None:
        async with serving(hang) as member, links() as out:
            with pytest.raises(BackendFailed, match=path):
                await out.get_json_bytes(member, path, 0.1)

    asyncio.run(run())


def cut(length: str) -> Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]:
    """A server that breaks off: before its answer, or inside."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        if length:
            writer.write(f"HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\nhalf".encode())
        writer.close()

    return handle


@pytest.mark.parametrize("length", ["", "100"])
def test_a_cut_poll_is_a_failure(length: str) -> None:
    async def run() -> None:
        async with await asyncio.start_server(cut(length), "127.0.0.1", 0) as server, links() as out:
            member = Member("peer", "run-1", "127.0.0.1", server.sockets[0].getsockname()[1])
            with pytest.raises(BackendFailed):
                await out.get_json_bytes(member, "/x", 5)

    asyncio.run(run())


def test_a_forward_that_gets_no_answer_is_a_failure() -> None:
    async def run() -> None:
        server = await asyncio.start_server(cut(""), "127.0.0.1", 0)
        member = Member("peer", "run-1", "127.0.0.1", server.sockets[0].getsockname()[1])
        async with links() as out:
            async with server:
                with pytest.raises(BackendFailed):
                    async with out.open_post(member, "/x", headers=[], body=b"{}"):
                        pass
            with pytest.raises(BackendFailed, match="Cannot connect"):
                async with out.open_post(member, "/x", headers=[], body=b"{}"):
                    pass

    asyncio.run(run())


def test_an_error_of_the_caller_is_not_mapped() -> None:
    async def answer(request: web.BaseRequest) -> web.Response:
        return web.Response()

    async def run() -> None:
        async with serving(answer) as member, links() as out:
            with pytest.raises(TimeoutError):
                async with out.open_post(member, "/x", headers=[], body=b"{}"):
                    raise TimeoutError

    asyncio.run(run())


async def blocks(count: int) -> AsyncIterator[bytes]:
    for _ in range(count):
        yield b"x" * 65536
        await asyncio.sleep(0)


@pytest.mark.parametrize("base", ["", "http://"])
def test_an_upload_is_streamed_and_signed_as_a_stream(base: str) -> None:
    check = verifier()
    sizes: list[int] = []

    async def answer(request: web.BaseRequest) -> web.Response:
        assert request.headers["Transfer-Encoding"] == "chunked"
        sizes.append(len(await request.content.read()))
        return proven(check, request, STREAMED)

    async def run() -> None:
        async with serving(answer) as member, links() as out:
            address = f"{base}127.0.0.1:{member.api_port}"
            upload = out.open_put(address, "/r/1", headers=[("X-Viiwork-Key", "k")], body=blocks(80), to="run-1")
            async with upload as response:
                assert (response.status, await response.json()) == (200, ["me", None])

    asyncio.run(run())
    assert sizes == [80 * 65536]


def test_an_upload_for_another_run_is_refused() -> None:
    check = verifier()

    async def answer(request: web.BaseRequest) -> web.Response:
        await request.content.read()
        return proven(check, request, STREAMED)

    async def run() -> None:
        async with serving(answer) as member, links() as out:
            address = f"127.0.0.1:{member.api_port}"
            async with out.open_put(address, "/r/1", headers=[], body=blocks(1), to="run-0") as response:
                assert response.status == 401

    asyncio.run(run())


def test_an_upload_that_is_refused_early_ends_early() -> None:
    closed = asyncio.Event()

    async def endless() -> AsyncIterator[bytes]:
        try:
            while True:
                yield b"x" * 1000
                await asyncio.sleep(0.001)
        finally:
            closed.set()

    async def answer(request: web.BaseRequest) -> web.Response:
        return web.Response(status=409)

    async def run() -> None:
        async with serving(answer) as member, links() as out:
            put = out.open_put(f"127.0.0.1:{member.api_port}", "/r/1", headers=[], body=endless())
            async with asyncio.timeout(20), put as response:
                assert response.status == 409
            await asyncio.wait_for(closed.wait(), 20)

    asyncio.run(run())


def test_connections_come_from_the_mesh_address() -> None:
    async def answer(request: web.BaseRequest) -> web.Response:
        return web.Response(text=request.remote)

    async def run() -> None:
        async with serving(answer) as member, links(signed=False, source="127.0.0.7") as out:
            assert await out.get_json_bytes(member, "/x", 5) == b"127.0.0.7"

    asyncio.run(run())


def test_links_that_are_not_open_say_so() -> None:
    async def run() -> None:
        with pytest.raises(RuntimeError, match="async with"):
            await links().get_json_bytes(Member("a", "1", "127.0.0.1", 1), "/x", 1)

    asyncio.run(run())


@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="the option has this name on Linux")
@pytest.mark.parametrize("source", [None, "127.0.0.1"])
def test_a_connection_breaks_when_nothing_arrives_any_more(source: str | None) -> None:
    async def answer(request: web.BaseRequest) -> web.Response:
        return web.Response(body=bytes(MIB))  # so that it is not over at once

    async def scene() -> None:
        async with (
            serving(answer) as member,
            links(source=source) as opened,
            opened.open_post(member, "/v1/x", headers=[], body=b"x") as response,
        ):
            assert response.connection is not None
            assert response.connection.transport is not None
            used = response.connection.transport.get_extra_info("socket")
            assert used.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == LOST_S * 1000
            assert used.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
            assert used.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == PROBED_AFTER_S

    asyncio.run(scene())
