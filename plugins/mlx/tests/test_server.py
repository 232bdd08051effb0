"""The wrapper around a real mlx_lm, on the CPU, with a tiny model."""

from __future__ import annotations

import json
import os
import shutil
import stat
from collections.abc import Callable
from itertools import takewhile
from pathlib import Path
from typing import Any

import httpx
import pytest

from viiwork_core import CacheFile, CacheRefused, EngineRefused, Load, Probe, Saved, SegmentKind, SessionRef

from .conftest import Server, prose, until, user

pytestmark = pytest.mark.slow

LONG = user(prose(2900))


def save(server: Server, key: str, name: str) -> Saved:
    saved: Saved = server.call(lambda _, cache: cache.save(server.spec, server.address, SessionRef(key), name))
    return saved


def restore(server: Server, key: str, name: str) -> int:
    tokens: int = server.call(lambda _, cache: cache.restore(server.spec, server.address, SessionRef(key), name))
    return tokens


def holds(server: Server, key: str) -> int:
    tokens: int = server.call(lambda _, cache: cache.holds(server.spec, server.address, SessionRef(key)))
    return tokens


def read(server: Server, name: str) -> CacheFile:
    file: CacheFile = server.call(lambda _, cache: _read(cache, server.folder / name))
    return file


async def _read(cache: Any, path: Path) -> CacheFile:
    file: CacheFile = cache.read(path)
    return file


def cached(answer: dict[str, Any]) -> int:
    tokens: int = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
    return tokens


def text(answer: dict[str, Any]) -> str:
    content: str = answer["choices"][0]["message"]["content"]
    return content


def test_a_conversation_moves_to_another_server(pair: tuple[Server, Server]) -> None:
    here, there = pair
    first = here.chat([LONG], "move")
    assert cached(first) < 16, "no more than every prompt begins with"
    assert first["usage"]["prompt_tokens"] > 2900

    saved = save(here, "move", "move-1")
    path = here.folder / "move-1"
    assert saved == Saved(tokens=first["usage"]["total_tokens"], bytes=path.stat().st_size)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [file.name for file in here.folder.iterdir() if file.name.startswith(".")] == []

    shutil.copy(path, there.folder / "arrived")
    assert holds(there, "move") == 0
    assert restore(there, "move", "arrived") == saved.tokens
    assert holds(there, "move") == saved.tokens

    turns = [LONG, {"role": "assistant", "content": text(first)}, user("and then what did the birds say")]
    answers = [server.chat(turns, "move") for server in pair]
    assert text(answers[0]) == text(answers[1]) != text(first)
    for answer in answers:
        assert cached(answer) >= 0.9 * answer["usage"]["prompt_tokens"]
    assert holds(there, "move") == answers[1]["usage"]["total_tokens"]


def test_the_next_save_appends_rows(server: Server) -> None:
    first = server.chat([user(prose(60))], "rows")
    save(server, "rows", "rows-1")
    # The continuation of exactly these tokens: a chat would lose the answer's leading space.
    prompt = server.chat([user(prose(60)), {"role": "assistant", "content": text(first)}, user("more")], "rows")
    save(server, "rows", "rows-2")
    base, file = read(server, "rows-1"), read(server, "rows-2")
    assert file.tokens == prompt["usage"]["total_tokens"]
    assert base.ids is not None
    assert file.ids is not None
    pairs = zip(base.ids, file.ids, strict=False)
    kept = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
    assert kept > 60
    check_rows(server, base, file, kept)


def check_rows(server: Server, base: CacheFile, file: CacheFile, kept: int) -> None:
    old, new = ((server.folder / name).read_bytes() for name in ("rows-1", "rows-2"))
    assert [each.kind for each in base.segments] == [each.kind for each in file.segments]
    for segments, content in ((base.segments, old), (file.segments, new)):
        assert [each.offset for each in segments] == [0, *(each.offset + each.length for each in segments[:-1])]
        assert segments[-1].offset + segments[-1].length == len(content)
    rows = [(a, b) for a, b in zip(base.segments, file.segments, strict=True) if a.kind is SegmentKind.ROWS]
    assert len(rows) == 2 * 2 * 2  # layers, keys and values, heads
    for a, b in rows:
        row = 32 * 4
        assert (a.length, b.length) == (row * (base.tokens or 0), row * (file.tokens or 0))
        assert old[a.offset : a.offset + kept * row] == new[b.offset : b.offset + kept * row]


def test_each_session_is_saved_as_itself(server: Server) -> None:
    one, two = server.chat([user(prose(50))], "one"), server.chat([user(prose(50, 5))], "two")
    assert save(server, "one", "one").tokens == one["usage"]["total_tokens"]
    assert save(server, "two", "two").tokens == two["usage"]["total_tokens"]
    assert read(server, "one").ids != read(server, "two").ids


def test_a_save_holds_nothing_of_another_session(server: Server) -> None:
    """Another session that repeats this one's tokens and goes on takes its place in the prompt cache."""
    body: dict[str, Any] = {"prompt": prose(40), "max_tokens": 8}
    mine = server.post("/v1/completions", body, "mine").json()["usage"]["total_tokens"]
    text = server.post("/v1/completions", body).json()["choices"][0]["text"]
    server.post("/v1/completions", {"prompt": body["prompt"] + " " + text + " and a secret", "max_tokens": 8}, "theirs")
    saved = save(server, "mine", "mine")
    assert saved.tokens == mine - 1  # as much as mlx_lm takes out of a longer conversation
    # Rows are only told from other data when the tensors have exactly as many as there are tokens.
    assert SegmentKind.ROWS in {each.kind for each in read(server, "mine").segments}
    assert restore(server, "mine", "mine") == saved.tokens


def test_an_unknown_model_is_refused_and_unloads_nothing(server: Server) -> None:
    messages = [user(prose(60, 3))]
    server.chat(messages, "kept")
    refused = server.post("/v1/chat/completions", {"model": "another/model", "messages": messages})
    assert refused.status_code == 404
    assert refused.json() == {"error": "the model 'another/model' is not served here, 'tiny' is"}
    again = server.chat(messages, "kept")
    assert cached(again) >= 0.9 * again["usage"]["prompt_tokens"]


def test_the_name_is_echoed_also_when_the_request_has_none(server: Server) -> None:
    body = {"messages": [user("hello")], "max_tokens": 2}
    assert server.post("/v1/chat/completions", body).json()["model"] == "tiny"
    assert server.chat([user("hello")])["model"] == "tiny"
    assert [model["id"] for model in server.get("/v1/models").json()["data"]] == ["tiny"]


def test_a_stream_ends_with_usage_and_done(server: Server) -> None:
    body = {"messages": [user("hello")], "max_tokens": 3, "stream": True, "stream_options": {"include_usage": True}}
    events = server.post("/v1/chat/completions", body).text.strip().split("\n\n")
    assert events[0].startswith(": keepalive ")
    assert events[-1] == "data: [DONE]"
    usage = json.loads(events[-2].removeprefix("data: "))
    assert (usage["choices"], usage["usage"]["completion_tokens"], usage["model"]) == ([], 3, "tiny")


@pytest.mark.parametrize(
    ("body", "status", "answer"),
    [  # as mlx_lm words them
        (
            b"{not json",
            400,
            "Invalid JSON in request body: Expecting property name enclosed in double quotes: line 1 column 2 (char 1)",
        ),
        ({"messages": [], "max_tokens": -1}, 400, "max_tokens must be at least 1"),
        ({"max_tokens": 1}, 400, "Request did not contain messages"),
        # and as the wrapper does
        ({"messages": [], "adapters": "/tmp"}, 400, "adapters and draft_model cannot be chosen by a request"),
        ({"messages": [], "draft_model": "x"}, 400, "adapters and draft_model cannot be chosen by a request"),
    ],
)
def test_bad_requests_are_answered(server: Server, body: Any, status: int, answer: str) -> None:
    found = server.post("/v1/chat/completions", body)
    assert (found.status_code, found.json()) == (status, {"error": answer})


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_stops_the_generation(server: Server, stream: bool) -> None:
    session = f"left-{stream}"
    body = {"messages": [user("go on for ever")], "max_tokens": 8000, "stream": stream}
    connection = server.leave_unanswered(body, session)
    until(lambda: server.slots()["busy"] == 1, "it generates")
    connection.close()
    until(lambda: server.slots()["busy"] == 0, "it is idle", seconds=5)
    assert holds(server, session) == 0  # a turn that came to its end would be known
    # A request with a seed is served only when no other is left in mlx_lm's batch.
    assert server.chat([user("hello")], seed=1)["usage"]["completion_tokens"] > 0


def test_requests_beyond_the_slots_wait_and_may_leave(server: Server) -> None:
    body = {"messages": [user("go on for ever")], "max_tokens": 8000}
    running = [server.leave_unanswered(body, "wait") for _ in range(2)]
    until(lambda: server.slots()["busy"] == 2, "both generate")
    late = server.leave_unanswered(body, "wait")
    until(lambda: server.slots()["waiting"] == 1, "the third waits")
    assert server.call(lambda engine, _: engine.load(server.spec, server.address)) == Load(2, 2, 1, 8192)
    late.close()
    until(lambda: server.slots()["waiting"] == 0, "it is gone")
    assert server.slots()["busy"] == 2
    for connection in running:
        connection.close()
    until(lambda: server.slots()["busy"] == 0, "all are gone")


def test_damaged_files_are_refused_and_do_no_harm(server: Server) -> None:
    server.chat([user(prose(40, 9))], "damage")
    save(server, "damage", "whole")
    content = (server.folder / "whole").read_bytes()
    (server.folder / "cut").write_bytes(content[:-100])
    (server.folder / "short").write_bytes(without_last_token(content))
    for name, words in (("cut", "it is .* bytes long"), ("short", "cells for"), ("none", "there is no cache file")):
        with pytest.raises(EngineRefused, match=words):
            restore(server, "other", name)
    with pytest.raises(CacheRefused):
        read(server, "cut")
    assert holds(server, "other") == 0
    assert restore(server, "other", "whole") > 40
    assert server.chat([user(prose(40, 9))], "other")["usage"]["completion_tokens"] > 0


def without_last_token(content: bytes) -> bytes:
    length = int.from_bytes(content[:8], "little")
    document = json.loads(content[8 : 8 + length])
    ids = json.loads(document["__metadata__"]["0.tokens"])
    document["__metadata__"]["0.tokens"] = json.dumps(ids[:-1])
    header = json.dumps(document).encode()
    return len(header).to_bytes(8, "little") + header + content[8 + length :]


@pytest.mark.parametrize("change", [{"1.0": "mx"}, {"1.0": "RotatingKVCache"}])
def test_layers_of_another_class_are_refused(server: Server, change: dict[str, str]) -> None:
    server.chat([user("hello")], "class")
    save(server, "class", "class")
    content = (server.folder / "class").read_bytes()
    length = int.from_bytes(content[:8], "little")
    document = json.loads(content[8 : 8 + length])
    document["__metadata__"] |= change
    header = json.dumps(document).encode()
    (server.folder / "class").write_bytes(len(header).to_bytes(8, "little") + header + content[8 + length :])
    with pytest.raises(EngineRefused, match="422: the cache file is of a model with other layers"):
        restore(server, "class", "class")


@pytest.mark.parametrize("name", ["", ".hidden", "../up", "a/b", "-flag", "a\n", "x" * 201])
def test_file_names_are_checked(server: Server, name: str) -> None:
    for action in ("save", "restore"):
        found = server.post(f"/kv/{action}", {"session": "names", "filename": name})
        assert found.status_code == 400
        assert "filename must be" in found.json()["error"]


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"no json", "not JSON"),
        ([], "the body must be"),
        ({"session": 1, "filename": "a"}, "the body must be"),
        ({"session": "a b", "filename": "a"}, "session must be"),
        ({"filename": "a"}, "session must be"),
        (b'"' + bytes(70_000) + b'"', "Content-Length"),
    ],
)
def test_control_bodies_are_checked(server: Server, body: Any, words: str) -> None:
    found = server.post("/kv/save", body)
    assert found.status_code == 400
    assert words in found.json()["error"]


def test_an_unknown_session_cannot_be_saved(server: Server) -> None:
    with pytest.raises(EngineRefused, match="404: nothing of this session is in the prompt cache"):
        save(server, "stranger", "stranger")
    assert not (server.folder / "stranger").exists()


def test_a_session_header_that_is_no_key_is_refused(server: Server) -> None:
    found = server.post("/v1/chat/completions", {"messages": [user("hello")]}, "two words")
    assert (found.status_code, "X-Viiwork-Session" in found.text) == (400, True)


def probe(server: Server) -> Probe:
    found: Probe = server.call(lambda engine, _: engine.probe(server.address))
    return found


def answers_loading(server: Server) -> bool:
    try:
        return bool(server.get("/health").json()["status"] == "loading")
    except httpx.TransportError:
        return False


def held_up(tiny: Path, folder: Path) -> Path:
    """A model whose loading stops at a file until somebody writes it."""
    shutil.copytree(tiny, folder)
    (folder / "generation_config.json").unlink()
    os.mkfifo(folder / "generation_config.json")
    return folder


def let_go(pipe: Path) -> None:
    with pipe.open("w") as writer:
        pipe.unlink()
        pipe.write_text("{}")  # for later readers
        writer.write("{}")


def test_health_is_ok_only_after_the_first_token(start: Callable[..., Server], tiny: Path, tmp_path: Path) -> None:
    folder = held_up(tiny, tmp_path / "model")
    server = start(folder)
    until(lambda: answers_loading(server), "it says that it loads")
    assert (probe(server).ready, server.get("/health").status_code) == (False, 503)
    assert server.post("/kv/save", {"session": "a", "filename": "a"}).json() == {"error": "the model is loading"}
    let_go(folder / "generation_config.json")
    until(server.ready, "it is ready")
    assert probe(server).ready


def test_a_model_that_cannot_be_loaded_ends_the_process(
    start: Callable[..., Server], tiny: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "model"
    shutil.copytree(tiny, folder)
    (folder / "model.safetensors").write_bytes((tiny / "model.safetensors").read_bytes()[:1000])
    server = start(folder)
    assert until(server.process.poll, "it ended") == 1
    last = server.log.read_text().strip().splitlines()[-1]
    assert last.startswith(f"viiwork_mlx.server: cannot load the model {folder}: RuntimeError: ")


def test_leftovers_of_a_killed_save_are_removed(start: Callable[..., Server], tiny: Path) -> None:
    server = start(tiny)
    until(server.ready, "it is ready")
    server.chat([user("hello")], "left")
    save(server, "left", "kept")
    server.stop()
    (server.folder / ".kept.12345678.part.safetensors").write_bytes(b"half")
    again = Server(server.spec, server.context)
    try:
        until(again.ready, "it is ready again")
        assert [file.name for file in again.folder.iterdir()] == ["kept"]
        assert restore(again, "left", "kept") > 0
    finally:
        again.stop()
