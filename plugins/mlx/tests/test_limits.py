"""What no request may do to a real server: end it, outgrow its slot, fill the memory, or keep it busy for nobody."""

from __future__ import annotations

import json
import shutil
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pytest
from prometheus_client.parser import text_string_to_metric_families
from safetensors.numpy import save_file

from viiwork_core import EngineRefused, SessionRef
from viiwork_core.testing.tiny_model import write_mlx
from viiwork_mlx.options import MlxOptions

from .conftest import Server, prose, until, user

pytestmark = pytest.mark.slow

HELLO = [user("hello the river")]
CHAT, TEXT = "/v1/chat/completions", "/v1/completions"


@pytest.fixture(scope="module")
def small(start: Callable[..., Server], tiny: Path) -> Server:
    """A server with little room: 256 tokens a slot."""
    server = start(tiny, context=256)
    until(server.ready, "it is ready")
    return server


def figures(server: Server) -> dict[tuple[str, ...], float]:
    families = text_string_to_metric_families(server.get("/metrics").text)
    return {(one.name, *one.labels.values()): one.value for family in families for one in family.samples}


def streamed(connection: socket.socket) -> bytes:
    """All that comes until the server closes."""
    received = b""
    while more := connection.recv(65536):
        received += more
    connection.close()
    return received


TRIPS: list[tuple[str, dict[str, Any]]] = [
    (TEXT, {"prompt": ""}),
    (TEXT, {"prompt": ["a", "b"]}),
    (TEXT, {"prompt": "\ud800"}),
    (CHAT, {"messages": []}),
    (CHAT, {"messages": [{"content": "no role"}]}),
    (CHAT, {"messages": HELLO, "stop": [1]}),
    (CHAT, {"messages": HELLO, "stop": "\ud800"}),
    (CHAT, {"messages": HELLO, "logit_bias": {"999999999": 1}}),
    (CHAT, {"messages": HELLO, "logit_bias": {"-1": 1}}),
    (CHAT, {"messages": HELLO, "xtc_probability": 0.5, "xtc_threshold": 0.9, "temperature": 1}),
    (CHAT, {"messages": HELLO, "presence_penalty": 1, "presence_context_size": 10**30}),
    (CHAT, {"messages": HELLO, "temperature": 10**400}),
    (CHAT, {"messages": HELLO, "tools": 5}),
]


def test_no_request_ends_the_answers_of_others(small: Server) -> None:
    """Each of these ended mlx_lm's generation thread, or was a 404."""
    other = small.leave_unanswered({"messages": HELLO, "max_tokens": 200, "stream": True}, "other")
    until(lambda: small.slots()["busy"] == 1, "the other generates")
    for path, body in TRIPS:
        found = small.post(path, {"max_tokens": 4, **body})
        assert (found.status_code, "error" in found.json()) == (400, True), body
    assert streamed(other).endswith(b"data: [DONE]\n\n")
    assert small.process.poll() is None


def test_refused_settings_leave_the_randomness_of_others_alone(small: Server) -> None:
    wrong = {"xtc_probability": 0.5, "xtc_threshold": 0.9, "temperature": 1}
    assert small.post(CHAT, {"messages": HELLO, **wrong}).status_code == 400
    for more in ({}, {"seed": 7}):
        assert small.chat(HELLO, temperature=1, top_p=0.9, top_k=5, **more)["usage"]["completion_tokens"] > 0


def test_more_than_all_tokens_is_all_of_them(small: Server) -> None:
    assert small.chat(HELLO, temperature=1, top_k=10**30)["usage"]["completion_tokens"] == 12


def test_a_prompt_that_is_kept_as_a_whole_is_answered(small: Server) -> None:
    """Its last token is read again, since an answer needs one to go on from."""
    first = small.post(TEXT, {"prompt": prose(30), "max_tokens": 8}).json()
    text = prose(30) + " " + first["choices"][0]["text"].strip()
    usages = [small.post(TEXT, {"prompt": text, "max_tokens": 1}).json()["usage"] for _ in range(3)]
    for usage in usages[1:]:
        assert usage["prompt_tokens_details"]["cached_tokens"] == usage["prompt_tokens"] - 1


def test_fields_that_are_null_are_as_if_left_out(small: Server) -> None:
    assert small.chat(HELLO, temperature=None, stop=None, stream=None, logit_bias=None)["usage"]["total_tokens"] > 12


def test_an_empty_stream_options_does_not_cut_the_stream(small: Server) -> None:
    body = {"messages": HELLO, "max_tokens": 4, "stream": True, "stream_options": {}}
    assert small.post(CHAT, body).text.endswith("data: [DONE]\n\n")


@pytest.mark.parametrize("seed", [None, 1])
def test_prompt_and_answer_stay_within_the_context(small: Server, seed: int | None) -> None:
    more = {} if seed is None else {"seed": seed}  # served alone
    answer = small.chat(HELLO, max_tokens=None, **more)
    assert (answer["choices"][0]["finish_reason"], answer["usage"]["total_tokens"]) == ("length", 256)
    refused = small.post(CHAT, {"messages": [user(prose(300))], **more})
    assert refused.status_code == 400
    assert "exceeds the available context size (256)" in refused.json()["error"]


def test_what_was_done_is_counted(small: Server) -> None:
    before = figures(small)
    usage = small.chat(HELLO, "counted", max_tokens=5)["usage"]
    small.post(CHAT, {"model": "another", "messages": HELLO})
    small.post(CHAT, {"messages": HELLO, "stop": 5})
    small.post(TEXT, {"prompt": ""})
    after = figures(small)

    def grown(*name: str) -> float:
        return after[name] - before[name]

    assert grown("viiwork_mlx_requests_total", "finished") == 1
    assert grown("viiwork_mlx_requests_total", "refused") == 3
    assert grown("viiwork_mlx_prompt_tokens_total") == usage["prompt_tokens"]
    assert grown("viiwork_mlx_generated_tokens_total") == 5
    assert grown("viiwork_mlx_cached_tokens_total") == usage["prompt_tokens_details"]["cached_tokens"]
    assert (after["viiwork_mlx_slots",], after["viiwork_mlx_ready",]) == (2, 1)
    assert after["viiwork_mlx_prompt_cache_conversations",] > 0
    assert after["viiwork_mlx_memory_peak_bytes",] >= after["viiwork_mlx_memory_active_bytes",] > 0


def test_the_version_is_told(small: Server) -> None:
    version = small.call(lambda engine, _: engine.version(small.address))
    assert version == small.get("/health").json()["mlx_lm"]
    assert version.count(".") == 2


def held(server: Server) -> dict[str, int]:
    return {each["session"]: each["tokens"] for each in server.get("/kv").json()["sessions"]}


@pytest.fixture(scope="module")
def bounded(start: Callable[..., Server], tiny: Path) -> Server:
    """A server that keeps 400 KB of conversations: 512 bytes a token and layer, 2 layers."""
    server = start(tiny, MlxOptions(prompt_cache_bytes=400_000))
    until(server.ready, "it is ready")
    return server


def test_the_memory_for_conversations_is_bounded(bounded: Server) -> None:
    for number in range(6):
        bounded.chat([user(prose(100, number))], f"s{number}")
        assert figures(bounded)["viiwork_mlx_prompt_cache_bytes",] <= 400_000
    found = held(bounded)
    whole = [session for session, tokens in found.items() if tokens > 50]  # others share their first tokens
    assert whole == [f"s{number}" for number in range(6 - len(whole), 6)]
    assert 1 < len(whole) < 6
    assert figures(bounded)["viiwork_mlx_prompt_cache_limit_bytes",] == 400_000


def test_a_file_larger_than_that_memory_pushes_nothing_out(bounded: Server, start: Callable[..., Server]) -> None:
    other = start(bounded.spec.path)
    until(other.ready, "the other is ready")
    other.chat([user(prose(900))], "large")
    ref = SessionRef("large")
    other.call(lambda _, cache: cache.save(other.spec, other.address, ref, "large"))
    shutil.copy(other.folder / "large", bounded.folder / "large")
    bounded.chat(HELLO, "kept")
    before = held(bounded)
    with pytest.raises(
        EngineRefused, match=r"507: the file has \d+ bytes, the prompt cache 400000; see prompt_cache_b"
    ):
        bounded.call(lambda _, cache: cache.restore(bounded.spec, bounded.address, ref, "large"))
    assert held(bounded) == before
    assert "kept" in before


def test_sessions_that_are_held_are_listed(small: Server) -> None:
    usage = small.chat([user(prose(20, 5))], "listed")["usage"]
    assert held(small)["listed"] == usage["total_tokens"]
    small.chat([user(prose(20, 9))], "later")
    assert list(held(small))[-1] == "later"
    assert small.get("/kv?session=").status_code == 400


def test_a_restore_disturbs_nobody(pair: tuple[Server, Server]) -> None:
    """While two others generate: they write what they write alone."""
    here, there = pair
    here.chat([user(prose(400, 3))], "guest")
    ref = SessionRef("guest")
    saved = here.call(lambda _, cache: cache.save(here.spec, here.address, ref, "guest"))
    shutil.copy(here.folder / "guest", there.folder / "guest")
    prompts = [[user(prose(20, number))] for number in (1, 11)]
    alone = [there.chat(prompt, max_tokens=400)["choices"][0]["message"]["content"] for prompt in prompts]
    body = {"max_tokens": 400, "stream": True}
    running = [there.leave_unanswered({"messages": prompt, **body}, "host") for prompt in prompts]
    until(lambda: there.slots()["busy"] == 2, "both generate")
    assert there.call(lambda _, cache: cache.restore(there.spec, there.address, ref, "guest")) == saved.tokens
    assert there.slots()["busy"] == 2
    assert held(there)["guest"] == saved.tokens
    assert [written(streamed(connection)) for connection in running] == alone


def written(answer: bytes) -> str:
    events = [line[6:] for line in answer.split(b"\r\n\r\n", 1)[1].split(b"\n") if line.startswith(b"data: {")]
    return "".join(json.loads(event)["choices"][0]["delta"].get("content", "") for event in events)


# Adapter and draft model


def write_adapter(folder: Path) -> Path:
    """A LoRA of rank 2 that turns the first layer's queries."""
    folder.mkdir()
    config = {"fine_tune_type": "lora", "num_layers": 2, "lora_parameters": {"rank": 2, "scale": 20.0, "dropout": 0.0}}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    rng = numpy.random.default_rng(1)
    name = "model.layers.1.self_attn.q_proj"
    a, b = (rng.standard_normal(shape).astype("float32") for shape in ((64, 2), (2, 128)))
    save_file({f"{name}.lora_a": a, f"{name}.lora_b": b}, folder / "adapters.safetensors")
    return folder


def test_an_adapter_changes_what_is_written(
    start: Callable[..., Server], tiny: Path, small: Server, tmp_path: Path
) -> None:
    server = start(tiny, MlxOptions(adapter=write_adapter(tmp_path / "adapter")))
    until(server.ready, "it is ready")
    mine, plain = (each.chat([user(prose(30))])["choices"][0]["message"]["content"] for each in (server, small))
    assert mine != plain


@pytest.fixture(scope="module")
def drafting(start: Callable[..., Server], tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Server:
    draft = write_mlx(tmp_path_factory.mktemp("draft") / "tiny", seed=2)
    server = start(tiny, MlxOptions(draft_model=draft), args=("--prefill-step-size", "32"))
    until(server.ready, "it is ready")
    return server


def test_a_draft_model_changes_nothing_that_is_written(drafting: Server, small: Server) -> None:
    mine, plain = (each.chat([user(prose(30))], "drafted") for each in (drafting, small))
    assert mine["choices"][0]["message"]["content"] == plain["choices"][0]["message"]["content"]
    again = drafting.chat([user(prose(30))], "drafted", num_draft_tokens=10**9)
    assert again["usage"]["prompt_tokens_details"]["cached_tokens"] > 0


def test_with_a_draft_model_sessions_move_too(drafting: Server) -> None:
    usage = drafting.chat([user(prose(40, 2))], "moved")["usage"]
    ref = SessionRef("moved")
    saved = drafting.call(lambda _, cache: cache.save(drafting.spec, drafting.address, ref, "moved"))
    assert 0 < saved.tokens <= usage["total_tokens"]
    assert drafting.call(lambda _, cache: cache.restore(drafting.spec, drafting.address, ref, "moved")) == saved.tokens


def test_a_client_that_leaves_stops_the_reading_of_its_prompt(start: Callable[..., Server], tiny: Path) -> None:
    """mlx_lm reads the prompt of a request that it serves alone to its end, and keeps it, whoever is gone."""
    server = start(tiny, args=("--prefill-step-size", "64"))
    until(server.ready, "it is ready")
    before = figures(server)
    body = {"messages": [user(prose(5000))], "max_tokens": 1, "stream": True, "seed": 1}
    connection = server.leave_unanswered(body, "gone")
    assert connection.recv(12) == b"HTTP/1.0 200"  # it reads
    connection.close()
    left = ("viiwork_mlx_requests_total", "left")
    until(lambda: figures(server)[left] == before[left] + 1, "it is counted")
    until(lambda: server.slots()["busy"] == 0, "it is idle")
    assert figures(server)["viiwork_mlx_prompt_cache_bytes",] == before["viiwork_mlx_prompt_cache_bytes",]
    assert server.chat(HELLO, seed=1)["usage"]["completion_tokens"] == 12
