"""What the fake engine answers has the fields of what llama-server answered."""

import asyncio
import json
from collections.abc import Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from viiwork_core.testing.fake_backend import SPEC, fake_backend

CAPTURES = Path(__file__).parents[2] / "captures" / "llamacpp"


def run(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(test)


def chat(text: str, **more: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}], "max_tokens": 4, **more}


def fields(value: Any, at: str = "") -> set[str]:
    """The names in a document, as paths; a list counts by its first entry."""
    if isinstance(value, dict):
        return {path for name, inner in value.items() for path in {f"{at}.{name}", *fields(inner, f"{at}.{name}")}}
    return fields(value[0], f"{at}[]") if isinstance(value, list) and value else set()


def events(text: str) -> list[Any]:
    return [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]


def captured(name: str) -> Any:
    return json.loads((CAPTURES / name).read_text())


def check_fields(said: Any, name: str, *, loose: tuple[str, ...] = ()) -> None:
    """`said` has the fields of a capture, no more and no fewer; below the `loose` paths it may have fewer."""
    ours, theirs = fields(said), fields(captured(name))
    assert ours <= theirs
    assert not [path for path in theirs - ours if not path.startswith(loose)]


def test_answers_have_the_fields_of_llama_server(tmp_path: Path) -> None:
    async def test() -> None:
        async with fake_backend(tmp_path, spec=replace(SPEC, cache_dir=tmp_path)) as one:
            check_fields(await one.get("/health"), "health_ready.json")
            check_fields(await one.get("/slots"), "slots_idle_fresh.json")
            check_fields(await one.get("/v1/models"), "v1_models.json", loose=(".models[].", ".data[].meta."))
            check_fields((await one.post("/v1/chat/completions", chat("hi"))).json(), "chat_nonstream.json")
            slots = await one.get("/slots")
            check_fields(slots[::-1], "slots_busy_one.json", loose=("[].params.",))
            check_fields((await one.post("/slots/1?action=save", {"filename": "f"})).json(), "slot_save.json")
            check_fields((await one.post("/slots/0?action=restore", {"filename": "f"})).json(), "slot_restore.json")
            check_fields((await one.post("/slots/0?action=erase", {})).json(), "slot_erase.json")

    run(test())


@pytest.mark.parametrize(
    ("name", "asked"),
    [
        ("chat_stream_default.sse", {}),
        ("chat_stream_include_usage.sse", {"stream_options": {"include_usage": True}}),
    ],
)
def test_streams_have_the_events_of_llama_server(tmp_path: Path, name: str, asked: dict[str, Any]) -> None:
    async def test() -> None:
        async with fake_backend(tmp_path) as one:
            answer = await one.post("/v1/chat/completions", chat("hi", stream=True, **asked) | {"max_tokens": 5})
        theirs = (CAPTURES / name).read_text()
        assert [fields(event) for event in events(answer.text)] == [fields(event) for event in events(theirs)]
        assert answer.text.endswith("data: [DONE]\n\n")
        assert answer.headers["content-type"] == "text/event-stream"

    run(test())


@pytest.mark.parametrize(
    ("path", "content", "name", "status"),
    [
        ("/nope", "{}", "err_404.json", 404),
        ("/v1/chat/completions", "{no", "err_bad_json.json", 500),
        ("/v1/chat/completions", "{}", "err_no_messages.json", 400),
        ("/v1/chat/completions", '{"messages": "x"}', "err_bad_messages.json", 400),
        ("/v1/chat/completions", json.dumps(chat("word " * 5000)), "err_context_exceeded.json", 400),
        ("/slots/0?action=fly", "{}", "err_slot_bad_action.json", 400),
        ("/slots/0?action=save", '{"filename": "../x"}', "err_slot_save_path_traversal.json", 400),
    ],
)
def test_errors_are_llama_servers(tmp_path: Path, path: str, content: str, name: str, status: int) -> None:
    async def test() -> None:
        async with fake_backend(tmp_path, spec=replace(SPEC, cache_dir=tmp_path)) as one:
            answer = await one.http.post(path, content=content)
        check_fields(answer.json(), name)
        error, theirs = answer.json()["error"], captured(name)["error"]
        assert (answer.status_code, error["type"], error["code"]) == (status, theirs["type"], theirs["code"])

    run(test())
