"""API keys on one node: made, shown, limited, revoked; over HTTP, by the command, over a restart and a reload."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import stat
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from http_node import Answer, Node, ask, chat, connected, model, script, soon, started, until
from key_holders import PATH, asked, command, engine, listed, new, outcome, read, revoke, said, shown, status

from viiwork_core.errors import ViiworkError
from viiwork_core.security.keys import digest_of, hash_text, new_token

TOKENS_OF_ONE = 6
"""What the scripted engine says that an answer took."""

REST: dict[str, Any] = {
    "health": {"interval": "0.3s"},
    "routing": {"queue_timeout": "10s", "queue_max": 4},
    "models": [model("m"), model("n")],
}


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with started("box", tmp_path_factory.mktemp("node") / "node", REST) as node:
        yield node


@pytest.fixture
def node(running: Node) -> Node:
    """The node without keys."""
    for name in listed(running):
        revoke(running, name, opens=True)
    return running


def test_without_keys_the_api_is_open_and_the_node_says_so(node: Node) -> None:
    assert outcome(asked(node, None)) == (200, "")
    assert said(node, "ls") == "there are no keys: the API is open\n"
    assert node.heard("the API is open to this machine")["remedy"] == "make a key: viiwork key new NAME"


def test_with_a_key_everybody_must_show_one(node: Node) -> None:
    token = said(node, "new", "alice").rstrip("\n")
    assert re.fullmatch(r"vwk_[A-Za-z0-9_-]{48}", token)
    assert outcome(asked(node, token)) == (200, "")
    refused = [outcome(asked(node, one)) for one in (None, "", token[:-1], token.upper(), new_token(), "sk-other")]
    assert refused == [(401, "invalid_api_key")] * 6
    assert asked(node, None).error["type"] == "invalid_request_error"
    assert "1 of 1 members have it" in said(node, "revoke", "alice", "--open")
    assert outcome(asked(node, None)) == (200, "")


def test_the_node_gets_to_know_no_token(node: Node) -> None:
    token = new(node, "alice")
    asked(node, token)
    state = node.folder / "state"
    kept = state / "keys.json"
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    assert digest_of(token).hex() in kept.read_text()
    read = [path.read_bytes() for path in state.rglob("*") if path.is_file()]
    assert not any(token[4:].encode() in text for text in (*read, node.log().encode()))
    assert "sha256" not in json.dumps(listed(node)), "a list tells no hashes either"


def test_engines_see_no_key(node: Node) -> None:
    token = new(node, "alice")
    for header in (shown(token), ("x-api-key", token)):
        assert asyncio.run(ask(node, chat("n"), headers=[header, ("Cookie", f"a={token}")])).status == 200
    told = [dict(one["headers"]) for one in engine(node, "n", token).seen()]
    assert told
    names = {name.lower() for headers in told for name in headers}
    assert names.isdisjoint({"authorization", "x-api-key", "cookie", "x-viiwork-key"})


def test_the_last_key_is_not_revoked_by_accident(node: Node) -> None:
    new(node, "alice")
    done = command(node, "revoke", "alice")
    assert done.returncode == 1
    assert "alice is the last key: without it the API would be open" in done.stderr
    bob = new(node, "bob")
    revoke(node, "alice")
    assert outcome(asked(node, bob)) == (200, "")
    assert list(listed(node)) == ["bob"]


def test_a_key_is_for_its_models(node: Node) -> None:
    token = new(node, "alice", models=["n"])
    assert outcome(asked(node, token, "n")) == (200, "")
    answer = asked(node, token, "m")
    assert outcome(answer) == (403, "model_not_allowed")
    assert "API key alice is not for the model m" in answer.error["message"]
    listing = read(node, "/v1/models", token)
    assert [one["id"] for one in json.loads(listing.body)["data"]] == ["n"]
    one = read(node, "/v1/models/m", token)
    assert outcome(one) == (404, "not_found")
    assert outcome(asked(node, token, "nobody")) == (403, "model_not_allowed"), "it does not tell what there is"


def test_a_daily_allowance_ends(node: Node) -> None:
    token, rich = new(node, "carol", daily_tokens=TOKENS_OF_ONE + 1), new(node, "bob")
    assert [outcome(asked(node, token))[0] for _ in range(2)] == [200, 200], "one token was left"
    until(lambda: listed(node)["carol"]["used_today"] == 2 * TOKENS_OF_ONE, "both are counted")
    answer = asked(node, token)
    assert outcome(answer) == (429, "insufficient_quota")
    assert answer.error["type"] == "insufficient_quota"
    assert 0 < int(answer.headers["retry-after"]) <= 86400
    assert outcome(asked(node, rich)) == (200, "")


def test_an_answer_that_is_left_counts_as_its_prompt_and_what_came(node: Node) -> None:
    token = new(node, "dora")

    async def scene() -> None:
        async with connected(node) as client:
            steps = script(("stream",), *[("chunk", b"data: {}\n\n")] * 7, ("chunk", b": that is all\n\n"), ("hold",))
            await client.ask(chat("m", steps, stream=True), headers=[shown(token)])
            answer = await client.answer()
            while b"that is all" not in answer.body:
                await client.read(answer, pieces=len(answer.pieces) + 1)
            client.leave()

    asyncio.run(scene())
    until(lambda: listed(node)["dora"]["used_today"] > 0, "it is counted")
    text = read(node, "/metrics", token).body.decode()
    assert 'viiwork_key_tokens_total{key="dora",kind="completion"} 7.0' in text
    (prompt,) = re.findall(r'key="dora",kind="prompt"} (\d+)', text)
    assert int(prompt) > 0


def test_metrics_tell_of_keys_by_name(node: Node) -> None:
    token = new(node, "metered")
    asked(node, token)
    text = read(node, "/metrics", token).body.decode()
    assert 'viiwork_key_requests_total{key="metered"} 1.0' in text
    assert 'viiwork_key_tokens_total{key="metered",kind="prompt"} 5.0' in text
    assert 'viiwork_key_tokens_total{key="metered",kind="completion"} 1.0' in text


def test_a_greedy_key_does_not_fill_the_queue_for_all(node: Node) -> None:
    greedy, other = new(node, "greedy"), new(node, "other")
    wait = script(("gate", "all"), ("json", 200, "{}"))

    async def scene() -> tuple[list[int], int]:
        async with asyncio.timeout(30):
            many = [asyncio.create_task(ask(node, chat("m", wait), headers=[shown(greedy)])) for _ in range(6)]
            end = await asyncio.to_thread(engine, node, "m", other)
            await soon(lambda: status(node, "m", other)["queued"] == 4, "two run and four wait, which is all that may")
            one = asyncio.create_task(ask(node, chat("m", wait), headers=[shown(other)]))
            # One of the greedy key's gives way to it.
            done, _ = await asyncio.wait(many, return_when=asyncio.FIRST_COMPLETED)
            (ousted,) = (task.result() for task in done)
            assert outcome(ousted) == (429, "queue_full")
            await asyncio.to_thread(end.open, "all")
            return sorted([answer.status for answer in await asyncio.gather(*many)]), (await one).status

    assert asyncio.run(scene()) == ([200] * 5 + [429], 200)


def put(node: Node, name: str, body: object, *headers: tuple[str, str]) -> tuple[int, str]:
    sent = [("Content-Type", "application/json"), *headers]

    async def scene() -> Answer:
        raw = json.dumps(body).encode()
        async with asyncio.timeout(30), connected(node) as client:
            lines = [f"PUT {PATH}/{name} HTTP/1.1", *(f"{field}: {value}" for field, value in sent)]
            await client.send(("\r\n".join([*lines, f"Content-Length: {len(raw)}", "", ""])).encode() + raw)
            return await client.read(await client.answer())

    return outcome(asyncio.run(scene()))


def test_only_this_machine_writes_and_reads_keys(node: Node) -> None:
    wanted = {"hash": hash_text(digest_of(new_token()))}
    local = ("Host", "127.0.0.1")
    assert put(node, "eve", wanted, ("Host", "example.org"))[0] == 403
    assert put(node, "eve", wanted, local, ("Origin", "http://example.org"))[0] == 403
    assert listed(node) == {}
    more: tuple[dict[str, Any], ...] = ({"weight": 0}, {"token": "vwk_"}, {"models": [" "]}, {"hash": "sha256:12"})
    for wrong in ({}, *({**wanted, **one} for one in more)):
        assert put(node, "eve", wrong, local) == (400, "invalid_request"), wrong
    assert put(node, "-eve", wanted, local) == (400, "invalid_request")
    assert put(node, "eve", wanted, local) == (200, "")
    assert put(node, "eve", {"hash": hash_text(digest_of(new_token()))}, local)[0] in (401, 403), "with keys, not so"


def test_names_that_are_none_are_refused_here(node: Node) -> None:
    done = command(node, "new", "../x")
    assert done.returncode != 0
    assert "no name for a key" in done.stderr
    with pytest.raises(ViiworkError, match="there is no key 'nobody'"):
        revoke(node, "nobody")
    new(node, "twice")
    with pytest.raises(ViiworkError, match="there is a key twice already"):
        new(node, "twice")


# Over a restart, and in a configuration


@pytest.mark.slow
def test_keys_and_what_they_used_outlive_a_restart(tmp_path: Path) -> None:
    with started("box", tmp_path, REST) as node:
        token = new(node, "alice", daily_tokens=100, weight=3)
        asked(node, token)
        until(lambda: listed(node)["alice"]["used_today"] == TOKENS_OF_ONE, "it is counted")
    with started("box", tmp_path, REST, healthy=False) as node:
        found = listed(node)["alice"]
        assert (found["used_today"], found["weight"], found["daily_tokens"]) == (TOKENS_OF_ONE, 3, 100)
        assert outcome(asked(node, None)) == (401, "invalid_api_key")
        assert node.heard("clients must show an API key", keys=1)
    kept = tmp_path / "state" / "keys.json"
    kept.write_bytes(kept.read_bytes()[:-20])
    with pytest.raises(AssertionError, match="the keys cannot be read"), ExitStack() as stack:
        stack.enter_context(started("box", tmp_path, REST, healthy=False))


def entry(node: Node, name: str, *options: str) -> tuple[str, dict[str, Any]]:
    """A token and its entry, as `viiwork key entry` prints them."""
    done = command(node, "entry", name, *options)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip(), json.loads(done.stderr.partition("- ")[2])


def test_keys_of_the_configuration_are_read_again(tmp_path: Path) -> None:
    with started("box", tmp_path, REST) as node:
        file = tmp_path / "viiwork.yaml"
        (one, first), (two, second) = entry(node, "one"), entry(node, "two", "--models", "n", "--weight", "2")
        assert (first["weight"], second["models"]) == (1, ["n"])
        config = json.loads(file.read_text())

        def reload(*keys: dict[str, Any]) -> None:
            config["api"]["keys"] = list(keys)
            file.write_text(json.dumps(config))
            before = len(node.events("the configuration is reloaded"))
            node.process.send_signal(signal.SIGHUP)
            until(lambda: len(node.events("the configuration is reloaded")) > before, "it is reloaded")

        reload(first, second)
        assert [outcome(asked(node, token, "m"))[0] for token in (one, two, None)] == [200, 403, 401]
        assert {name: found["from"] for name, found in listed(node).items()} == {"one": "config", "two": "config"}
        assert "stands in api.keys" in command(node, "revoke", "one").stderr
        reload(second)
        assert [outcome(asked(node, token, "n"))[0] for token in (one, two)] == [401, 200]
        assert node.events("changed sections need a restart") == []
        reload()
        assert outcome(asked(node, None)) == (200, "")
