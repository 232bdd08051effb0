"""Web pages at the door of a real node: logging in, CORS, foreign origins and strange names."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import AsyncExitStack
from http.cookies import SimpleCookie
from urllib.parse import urlencode

import pytest
from http_node import CHAT, Answer, Node, ask, chat, connected, model, started, until

from viiwork_core.security.keys import digest_of, hash_text, new_token

TOKEN = new_token()
BEARER = ("Authorization", f"Bearer {TOKEN}")
OTHER = new_token()
FORM = ("Content-Type", "application/x-www-form-urlencoded")
Header = tuple[str, str]


@pytest.fixture(scope="module")
def keyed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    keys = [{"name": "alice", "hash": hash_text(digest_of(TOKEN))}]
    api = {"port": 0, "keys": keys, "cors": {"allow_origins": ["https://chat.example.org"]}}
    config = {"api": api, "health": {"interval": "0.3s"}, "models": [model("m")]}
    with started("keyed", tmp_path_factory.mktemp("keyed") / "node", config, healthy=False) as node:
        until(lambda: asked(node, "/v1/status", BEARER).body.count(b'"healthy"'), "its backend is healthy")
        yield node


def asked(node: Node, path: str, *headers: Header, method: str = "GET", body: bytes = b"") -> Answer:
    """A request with these headers and no others of its own."""

    async def scene() -> Answer:
        async with asyncio.timeout(20), connected(node) as client:
            fields = [("Host", f"{node.host}:{node.port}"), *headers, ("Content-Length", str(len(body)))]
            head = f"{method} {path} HTTP/1.1\r\n" + "".join(f"{name}: {value}\r\n" for name, value in fields)
            await client.send(head.encode("latin-1") + b"\r\n" + body)
            return await client.read(await client.answer(method))

    return asyncio.run(scene())


def login(node: Node, key: str, *headers: Header, to: str | None = None) -> Answer:
    query = "" if to is None else f"?{urlencode({'next': to})}"
    body = urlencode({"key": key}).encode()
    headers = headers or (("Origin", f"http://{node.host}:{node.port}"),)
    return asked(node, f"/login{query}", FORM, *headers, method="POST", body=body)


def cookie(answer: Answer) -> Header:
    value = answer.headers["set-cookie"].partition(";")[0]
    return "Cookie", value


# Logging in


@pytest.mark.parametrize("path", ["/", "/mesh", "/chat", "/why", "/why/abc"])
def test_a_person_is_led_to_the_login_and_back(keyed: Node, path: str) -> None:
    answer = asked(keyed, path)
    assert answer.status == 303
    where = answer.headers["location"]
    page = asked(keyed, where)
    assert page.status == 200
    assert b'<input id="key" name="key" type="password"' in page.body
    assert b"<script" not in page.body
    assert page.headers["cache-control"] == "no-store"
    body = urlencode({"key": TOKEN}).encode()
    done = asked(keyed, where, FORM, ("Origin", f"http://{keyed.host}:{keyed.port}"), method="POST", body=body)
    assert (done.status, done.headers["location"]) == (303, path)
    shown = asked(keyed, path, cookie(done))
    assert shown.status == 200
    assert b"Log out" in shown.body


def test_the_cookie_holds_no_key_and_is_no_script_s(keyed: Node) -> None:
    answer = login(keyed, TOKEN)
    (crumb,) = SimpleCookie(answer.headers["set-cookie"]).values()
    assert crumb.key == "viiwork-keyed"
    assert (crumb["httponly"], crumb["samesite"], crumb["path"], crumb["secure"]) == (True, "Strict", "/", "")
    assert int(crumb["max-age"]) == 7 * 24 * 3600
    assert len(crumb.value) == 43
    assert TOKEN not in answer.headers["set-cookie"]
    assert crumb.value != SimpleCookie(login(keyed, TOKEN).headers["set-cookie"])["viiwork-keyed"].value


def test_the_cookie_is_for_https_where_the_browser_speaks_that(keyed: Node) -> None:
    body = urlencode({"key": TOKEN}).encode()
    head = [("Origin", "https://ai.example.org"), FORM, ("Content-Length", str(len(body)))]

    async def scene() -> Answer:
        async with asyncio.timeout(20), connected(keyed) as client:
            lines = "".join(f"{name}: {value}\r\n" for name, value in [("Host", "ai.example.org"), *head])
            await client.send(f"POST /login HTTP/1.1\r\n{lines}\r\n".encode() + body)
            return await client.read(await client.answer())

    answer = asyncio.run(scene())
    assert answer.status == 303
    assert "; Secure" in answer.headers["set-cookie"]


def test_with_the_cookie_a_page_reads_streams_and_asks(keyed: Node) -> None:
    shown = cookie(login(keyed, TOKEN))

    async def scene() -> Answer:
        async with asyncio.timeout(20), connected(keyed) as client:
            await client.ask(b"", path="/v1/status/stream", method="GET", headers=[shown])
            return await client.read(await client.answer("GET"), 1)

    answer = asyncio.run(scene())
    assert (answer.status, answer.headers["content-type"].partition(";")[0]) == (200, "text/event-stream")
    origin = ("Origin", f"http://{keyed.host}:{keyed.port}")
    assert asked(keyed, CHAT, shown, origin, method="POST", body=chat("m")).status == 200
    assert (
        asked(keyed, CHAT, shown, ("Origin", "https://chat.example.org"), method="POST", body=chat("m")).status == 401
    )


def test_logging_out_ends_it(keyed: Node) -> None:
    shown, origin = cookie(login(keyed, TOKEN)), ("Origin", f"http://{keyed.host}:{keyed.port}")
    page = asked(keyed, "/login", shown)
    assert b"<b>alice</b>" in page.body
    assert asked(keyed, "/logout", shown, ("Origin", "https://chat.example.org"), method="POST").status == 403
    assert asked(keyed, "/logout", shown).status == 405
    done = asked(keyed, "/logout", shown, origin, method="POST")
    assert (done.status, done.headers["location"]) == (303, "/login")
    assert "Max-Age=0" in done.headers["set-cookie"]
    assert asked(keyed, "/v1/status", shown).status == 401


@pytest.mark.parametrize(
    "to",
    [
        "https://evil.example/",
        "//evil.example",
        "/\\evil.example",
        "/\t/evil.example",
        "\\\\evil",
        "javascript:alert(1)",
        *("mesh", "", "/login", "/logout", "/a\r\nSet-Cookie: x=y", "/" + "a" * 3000, "/%zz\x00", "/ü"),
    ],
)
def test_a_login_leads_to_no_other_place(keyed: Node, to: str) -> None:
    answer = login(keyed, TOKEN, to=to)
    assert (answer.status, answer.headers["location"]) == (303, "/")


def test_a_wrong_key_is_told_and_not_repeated(keyed: Node) -> None:
    answer = login(keyed, OTHER)
    assert answer.status == 401
    assert b"not a key of this node" in answer.body
    assert OTHER.encode() not in answer.body
    assert "set-cookie" not in answer.headers
    assert keyed.heard("a login was refused", address="127.0.0.1")
    assert OTHER not in keyed.log()


@pytest.mark.parametrize(
    "sent",
    [
        [("Origin", "https://evil.example")],
        [("Origin", "null")],
        [("Origin", "http://localhost:1")],
        [("Sec-Fetch-Site", "cross-site")],
        [("Sec-Fetch-Site", "same-site")],
    ],
)
def test_another_page_s_form_logs_nobody_in(keyed: Node, sent: list[Header]) -> None:
    answer = login(keyed, TOKEN, *sent)
    assert answer.status == 403
    assert "set-cookie" not in answer.headers


@pytest.mark.parametrize("sent", [[("Sec-Fetch-Site", "same-origin")], [("User-Agent", "curl")]])
def test_this_node_s_form_and_a_program_s_do(keyed: Node, sent: list[Header]) -> None:
    assert login(keyed, TOKEN, *sent).status == 303


def test_guessing_is_slowed(tmp_path_factory: pytest.TempPathFactory) -> None:
    api = {"port": 0, "keys": [{"name": "alice", "hash": hash_text(digest_of(TOKEN))}]}
    with started("slow", tmp_path_factory.mktemp("slow") / "node", {"api": api}, healthy=False) as node:
        answers = [login(node, new_token()) for _ in range(11)]
        assert [one.status for one in answers] == [401] * 10 + [429]
        assert 1 <= int(answers[-1].headers["retry-after"]) <= 60
        assert login(node, TOKEN).status == 429
        assert asked(node, "/v1/status", BEARER).status == 200
        assert len(node.events("a login was refused")) == 1


def test_guesses_that_come_at_once_are_counted_one_by_one(tmp_path_factory: pytest.TempPathFactory) -> None:
    api = {"port": 0, "keys": [{"name": "alice", "hash": hash_text(digest_of(TOKEN))}]}
    body, number = urlencode({"key": new_token()}).encode(), 30
    head = f"POST /login HTTP/1.1\r\nHost: node\r\n{FORM[0]}: {FORM[1]}\r\nContent-Length: {len(body)}\r\n\r\n"

    async def scene(node: Node) -> list[int]:
        async with asyncio.timeout(30), AsyncExitStack() as stack:
            clients = [await stack.enter_async_context(connected(node)) for _ in range(number)]
            # All of them are let through to the form before any key is looked at.
            for client in clients:
                await client.send(head.encode() + body[:-1])
            assert (await ask(node, b"", path="/health", method="GET")).status == 200
            for client in clients:
                await client.send(body[-1:])
            return [(await client.answer()).status for client in clients]

    with started("rash", tmp_path_factory.mktemp("rash") / "node", {"api": api}, healthy=False) as node:
        statuses = asyncio.run(scene(node))
    assert sorted(statuses) == [401] * 10 + [429] * (number - 10)


@pytest.mark.parametrize("body", [b"", b"key", b"key=%ff%fe", b"other=x", b"key=" + b"x" * 60_000])
def test_a_form_of_any_kind_is_answered(keyed: Node, body: bytes) -> None:
    answer = asked(keyed, "/login", FORM, method="POST", body=body)
    assert answer.status in (401, 429)


def test_without_keys_there_is_nothing_to_log_in_to(node: Node) -> None:
    for method in ("GET", "POST"):
        answer = asked(node, "/login?next=/mesh", method=method)
        assert (answer.status, answer.headers["location"]) == (303, "/mesh")
    assert b"Log out" not in asked(node, "/").body


# CORS


def test_a_listed_page_uses_the_api_with_a_key(keyed: Node) -> None:
    origin = ("Origin", "https://chat.example.org")
    wanted = [
        ("Access-Control-Request-Method", "POST"),
        ("Access-Control-Request-Headers", "authorization,content-type"),
    ]
    may = asked(keyed, CHAT, origin, *wanted, method="OPTIONS")
    assert (may.status, may.body) == (204, b"")
    assert may.headers["access-control-allow-headers"] == "authorization,content-type"
    for headers, status in (([BEARER], 200), ([], 401)):
        answer = asked(keyed, CHAT, origin, *headers, method="POST", body=chat("m"))
        assert answer.status == status
        assert answer.headers["access-control-allow-origin"] == "https://chat.example.org"
        assert "access-control-allow-credentials" not in answer.headers


@pytest.mark.parametrize("origin", ["https://evil.example", "http://chat.example.org", "http://localhost:3000", "null"])
def test_others_may_not(keyed: Node, origin: str) -> None:
    wanted = ("Access-Control-Request-Method", "POST")
    assert asked(keyed, CHAT, ("Origin", origin), wanted, method="OPTIONS").status == 403
    assert asked(keyed, CHAT, ("Origin", origin), BEARER, method="POST", body=chat("m")).status == 403
    read = asked(keyed, "/v1/models", ("Origin", origin), BEARER)
    assert read.status == 200
    assert "access-control-allow-origin" not in read.headers


def test_a_stream_is_shared_too(keyed: Node) -> None:
    answer = asked(
        keyed, "/v1/models/m", ("Origin", "https://chat.example.org"), ("x-api-key", TOKEN), ("Accept", "*/*")
    )
    assert answer.headers["access-control-allow-origin"] == "https://chat.example.org"
    assert "X-Request-Id" in answer.headers["access-control-expose-headers"]
    assert json.loads(answer.body)["id"] == "m"


def test_this_machine_s_pages_may_when_nothing_is_listed(node: Node) -> None:
    origin = ("Origin", "http://localhost:5173")
    answer = asked(node, CHAT, origin, method="POST", body=chat("scripted"))
    assert answer.status == 200
    assert answer.headers["access-control-allow-origin"] == "http://localhost:5173"
    assert asked(node, CHAT, origin, ("Access-Control-Request-Method", "POST"), method="OPTIONS").status == 204


# Strange names


def test_a_rebound_page_reads_and_writes_nothing(node: Node) -> None:
    def named(path: str, *headers: Header, method: str = "GET", body: bytes = b"") -> int:
        async def scene() -> Answer:
            async with asyncio.timeout(20), connected(node) as client:
                fields = [("Host", "evil.example:8086"), *headers, ("Content-Length", str(len(body)))]
                head = f"{method} {path} HTTP/1.1\r\n" + "".join(f"{name}: {value}\r\n" for name, value in fields)
                await client.send(head.encode() + b"\r\n" + body)
                return await client.read(await client.answer(method))

        return asyncio.run(scene()).status

    for path in ("/", "/mesh", "/v1/status", "/v1/cluster", "/v1/activity", "/v1/aliases", "/static/x/style.css"):
        assert named(path) == 403, path
    assert named(CHAT, ("Origin", "http://evil.example:8086"), method="POST", body=chat("scripted")) == 403
    assert named(CHAT, method="POST", body=chat("scripted")) == 200, "a program's, behind a proxy of this machine"
    assert named("/v1/models") == named("/health") == named("/metrics") == 200
