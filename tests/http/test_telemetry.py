"""Traces by OpenTelemetry: one for each request, over both nodes that it passes, at a collector that speaks OTLP."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from collector import Collector, Span, collecting
from http_node import CHAT, Node, ask, chat, connected, model, script, soon, started, streamed, until
from meshes import asked, meeting

TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = "b7ad6b7169203331"
WORD = b'data: {"choices":[{"index":0,"delta":{"content":"hello"}}]}\n\n'
LAST = (
    b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}],'
    b'"usage":{"prompt_tokens":7,"completion_tokens":1,"prompt_tokens_details":{"cached_tokens":3}}}\n\n'
    b"data: [DONE]\n\n"
)
SERVER, CLIENT = 2, 3
QUICK = {"OTEL_BSP_SCHEDULE_DELAY": "50", "COLLECTOR_KEY": "x-key=hush%20hush"}


@dataclass(frozen=True)
class Pair:
    """Two nodes that send to one collector: `front` has "shared" alone, `back` "far" besides."""

    front: Node
    back: Node
    collector: Collector


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    folder = tmp_path_factory.mktemp("traces")
    shared = model("shared", "scripted-shared", kv_share={"group": "g", "min_tokens": 1})
    one, other = {"models": [shared]}, {"models": [shared, model("far", parallel=1)]}
    with collecting() as collector:
        telemetry = {"telemetry": {"endpoint": collector.endpoint, "headers_env": "COLLECTOR_KEY"}}
        hosts = "127.0.0.41", "127.0.0.42"
        with meeting(folder, hosts, {**one, **telemetry}, {**other, **telemetry}, environ=QUICK) as (front, back):
            yield Pair(front, back, collector)


def told(pair: Pair, rid: str, *names: str) -> dict[tuple[str, str], Span]:
    """The spans of a request's trace by node and name, once these have come. It may have waited for a slot besides."""

    def complete() -> list[Span] | None:
        found = [one for one in pair.collector.spans(rid) if one.name != "queue" or "queue" in names]
        return found if sorted(one.name for one in found) == sorted(names) else None

    found = until(complete, f"{names} of {rid} come")
    assert found
    assert len({one.trace for one in found}) == 1
    return {(one.node, one.name): one for one in found}


def sent(node: Node, name: str) -> dict[str, str]:
    """The headers of what the engine was asked last."""
    return {key.lower(): value for key, value in node.engine(name).seen()[-1]["headers"]}


def test_a_forwarded_request_is_one_trace_over_both_nodes(pair: Pair) -> None:
    headers = [("traceparent", f"00-{TRACE}-{PARENT}-01"), ("tracestate", "vendor=1,other=a:b")]
    answer = asked(pair.front, chat("far", streamed(WORD, LAST), stream=True), "over", *headers)
    assert answer.status == 200
    spans = told(pair, "over", "chat far", "choose", "forward", "chat far", "engine")
    entry, forward = spans["front", "chat far"], spans["front", "forward"]
    there, engine, choice = spans["back", "chat far"], spans["back", "engine"], spans["front", "choose"]
    assert {one.trace for one in spans.values()} == {TRACE}
    assert [one.parent for one in (entry, choice, forward, there, engine)] == [
        PARENT,
        entry.id,
        entry.id,
        forward.id,
        there.id,
    ]
    assert [one.kind for one in (entry, forward, there, engine)] == [SERVER, CLIENT, SERVER, CLIENT]
    assert entry.start <= forward.start <= there.start <= engine.start <= engine.end
    assert not any(one.error for one in spans.values())
    # What the engine gets is the same trace, with its caller's span.
    assert sent(pair.back, "far")["traceparent"] == f"00-{TRACE}-{engine.id}-01"
    assert sent(pair.back, "far")["tracestate"] == "vendor=1,other=a:b"
    assert engine.events == forward.events == ("first token",)
    assert choice.attributes["viiwork.chosen"] == "back"
    assert engine.attributes["viiwork.backend"] == "far/0"
    for one in (entry, forward, there, engine):
        assert one.attributes["gen_ai.operation.name"] == "chat"
        assert one.attributes["gen_ai.request.model"] == one.attributes["gen_ai.response.model"] == "far"
        assert one.attributes["gen_ai.response.finish_reasons"] == ["stop"]
        usage = [one.attributes[f"gen_ai.usage.{kind}_tokens"] for kind in ("input", "cache_read.input", "output")]
        assert usage == [7, 3, 1]
        assert (one.service, one.attributes["http.response.status_code"]) == ("viiwork", 200)


def test_without_a_traceparent_a_trace_begins_here(pair: Pair) -> None:
    asked(pair.front, chat("far"), "anew")
    spans = told(pair, "anew", "chat far", "choose", "forward", "chat far", "engine")
    assert spans["front", "chat far"].parent == ""
    assert spans["front", "chat far"].trace not in (TRACE, "")


@pytest.mark.parametrize(
    "headers",
    [
        [("traceparent", f"00-{TRACE}-{PARENT}-01"), ("traceparent", f"00-{TRACE}-{PARENT}-01")],
        [("traceparent", f"00-{'0' * 32}-{PARENT}-01")],
        [("traceparent", "x" * 5000)],
        [("traceparent", "00-\u00ff-\u00ff-01")],
        [("tracestate", "vendor=1")],
    ],
)
def test_a_bad_traceparent_is_none(pair: Pair, headers: Sequence[tuple[str, str]]) -> None:
    rid = f"bad-{headers[0][0]}-{len(str(headers))}-{len(headers)}"
    assert asked(pair.front, chat("far"), rid, *headers).status == 200
    spans = told(pair, rid, "chat far", "choose", "forward", "chat far", "engine")
    assert spans["front", "chat far"].parent == ""
    assert spans["front", "chat far"].trace != TRACE
    assert "tracestate" not in sent(pair.back, "far")


def test_a_client_that_does_not_sample_is_followed(pair: Pair) -> None:
    asked(pair.front, chat("far"), "unseen", ("traceparent", f"00-{TRACE}-{PARENT}-00"))
    parts = sent(pair.back, "far")["traceparent"].split("-")
    assert (parts[1], parts[3]) == (TRACE, "00")
    asked(pair.front, chat("far"), "seen")
    told(pair, "seen", "chat far", "choose", "forward", "chat far", "engine")
    assert pair.collector.spans("unseen") == []


def test_a_wait_a_save_and_an_error_are_steps_of_the_trace(pair: Pair) -> None:
    pair.front.engine("shared").open("save")
    assert asked(pair.front, chat("shared"), "turn", ("X-Session-Id", "s"), path=f"{CHAT}?host=front").status == 200
    spans = told(pair, "turn", "chat shared", "choose", "engine", "save")
    assert {one.node for one in spans.values()} == {"front"}
    save = spans["front", "save"]
    assert save.parent == spans["front", "chat shared"].id
    assert save.end >= save.start >= spans["front", "engine"].start

    asked(pair.front, chat("nobody-has-it"), "unknown")
    (refused,) = told(pair, "unknown", "chat").values()
    assert (refused.attributes["http.response.status_code"], refused.attributes["error.type"]) == (404, "404")
    asked(pair.front, b"no JSON", "unread")
    (unread,) = told(pair, "unread", "chat").values()
    assert unread.attributes["http.response.status_code"] == 400


def test_an_import_is_a_step_where_the_turn_runs(pair: Pair) -> None:
    for node in (pair.front, pair.back):
        node.engine("shared").open("save")
    sent_before = pair.front.get("/v1/status")["kv_share"]["sent"]
    assert asked(pair.front, chat("shared"), "here", ("X-Session-Id", "m"), path=f"{CHAT}?host=front").status == 200
    until(lambda: pair.front.get("/v1/status")["kv_share"]["sent"] > sent_before, "its cache is sent")
    assert asked(pair.front, chat("shared"), "there", ("X-Session-Id", "m"), path=f"{CHAT}?host=back").status == 200
    names = ("chat shared", "choose", "forward", "chat shared", "import", "engine", "save")
    spans = told(pair, "there", *names)
    imported, engine = spans["back", "import"], spans["back", "engine"]
    assert imported.parent == engine.parent == spans["back", "chat shared"].id
    assert imported.start <= imported.end <= engine.start


def test_a_wait_in_line_is_a_step(pair: Pair) -> None:
    async def scene() -> None:
        async with asyncio.timeout(20), connected(pair.back) as client:
            await client.ask(chat("far", script(("gate", "line"), ("json", 200, "{}"))))
            await soon(lambda: pair.back.model("far")["busy"] == 1, "the slot is taken")
            waiting = asyncio.ensure_future(ask(pair.back, chat("far"), headers=[("X-Request-Id", "waits")]))
            await soon(lambda: pair.back.model("far")["queued"] == 1, "one waits")
            pair.back.engine("far").open("line")
            assert (await waiting).status == 200

    asyncio.run(scene())
    spans = told(pair, "waits", "chat far", "queue", "choose", "engine")
    queue, engine = spans["back", "queue"], spans["back", "engine"]
    assert queue.start < queue.end <= engine.start
    assert queue.parent == spans["back", "chat far"].id


def test_a_retry_is_a_call_of_its_own(pair: Pair) -> None:
    pair.back.engine("far").refuse(503)
    assert asked(pair.front, chat("far"), "again").status == 200
    names = ("chat far", "choose", "forward", "chat far", "engine", "choose", "forward", "chat far", "engine")
    told(pair, "again", *names)
    spans = pair.collector.spans("again")
    failed, good = (one for one in spans if one.name == "forward")
    assert (failed.error, failed.attributes["error.type"]) == (True, "no_free_slot")
    assert not good.error
    assert {one.parent for one in spans if one.kind == SERVER} - {""} == {failed.id, good.id}


def test_an_answer_that_breaks_off_is_an_error(pair: Pair) -> None:
    asked(pair.front, chat("far", streamed(WORD, end=False), stream=True), "cut")
    spans = told(pair, "cut", "chat far", "choose", "forward", "chat far", "engine")
    assert spans["front", "chat far"].error
    assert spans["front", "chat far"].attributes["error.type"] == "answer_cut"


def test_the_collectors_key_comes_from_the_variable_and_is_told_nowhere(pair: Pair) -> None:
    asked(pair.front, chat("far"), "keyed")
    told(pair, "keyed", "chat far", "choose", "forward", "chat far", "engine")
    assert {one["x-key"] for one in pair.collector.headers} == {"hush hush"}
    assert "hush" not in pair.front.log()
    assert pair.collector.endpoint in pair.front.heard("traces are sent")["endpoint"]


def test_no_word_of_a_request_or_an_answer_is_in_a_trace(pair: Pair) -> None:
    body = chat("far", streamed(WORD.replace(b"hello", b"marker-answer"), LAST), stream=True)
    asked(pair.front, body.replace(b'"hello"', b'"marker-prompt"'), "private", ("X-Session-Id", "marker-session"))
    told(pair, "private", "chat far", "choose", "forward", "chat far", "engine")
    assert b"marker" not in pair.collector.raw


def test_a_dead_collector_costs_dropped_spans_and_one_warning(tmp_path: Path) -> None:
    with socket.socket() as taken:
        # Bound and not listening: whoever connects is refused, and nobody else gets the port.
        taken.bind(("127.0.0.1", 0))
        telemetry = {"endpoint": f"http://127.0.0.1:{taken.getsockname()[1]}"}
        quick = {"OTEL_BSP_SCHEDULE_DELAY": "20", "OTEL_EXPORTER_OTLP_TIMEOUT": "1", "OTEL_BSP_MAX_QUEUE_SIZE": "8"}
        small = {"OTEL_BSP_MAX_EXPORT_BATCH_SIZE": "4"}
        config = {"models": [model("m")], "telemetry": telemetry}
        with started("alone", tmp_path / "alone", config, environ={**quick, **small}) as node:
            for number in range(20):
                assert asked(node, chat("m"), f"r-{number}").status == 200
            node.heard("traces cannot be sent, and are dropped")
            for number in range(20):
                assert asked(node, chat("m"), f"s-{number}").status == 200
        assert len(node.events("traces cannot be sent, and are dropped")) == 1
        assert {one["level"] for one in node.events("request")} == {"info"}
        assert "opentelemetry" not in node.log()
        assert node.process.returncode == 0


def test_off_by_default_a_traceparent_passes_as_it_came(tmp_path: Path) -> None:
    with started("alone", tmp_path / "alone", {"models": [model("m")]}) as node:
        line = f"00-{TRACE}-{PARENT}-01"
        asked(node, chat("m"), "plain", ("traceparent", line), ("tracestate", "a=b"))
        assert sent(node, "m")["traceparent"] == line
        assert sent(node, "m")["tracestate"] == "a=b"
        assert node.events("traces are sent") == []


def test_without_the_extra_a_node_does_not_start_and_says_how_to_get_it(tmp_path: Path) -> None:
    config = tmp_path / "viiwork.yaml"
    state = tmp_path / "state"
    config.write_text(
        f"{{node: {{state_dir: {state}}}, api: {{port: 0}}, mesh: {{network: none}}, telemetry: {{traces: true}}}}"
    )
    without = (
        "import sys; sys.modules['opentelemetry'] = None; from viiwork_core.cli.main import main; sys.exit(main())"
    )
    command = [sys.executable, "-c", without, "serve", "--config", str(config)]
    environ = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "VIIWORK_PLUGINS": ""}
    ended = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 1
    assert "telemetry: traces are wanted, and OpenTelemetry is not installed" in ended.stderr
    assert "pip install 'viiwork[otel]'" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_what_serves_requests_imports_no_opentelemetry() -> None:
    look = (
        "import sys, viiwork_core.cli.serve, viiwork_core.node.opening; "
        "print([name for name in sys.modules if name.startswith('opentelemetry')])"
    )
    ended = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, timeout=60, check=True)
    assert ended.stdout == "[]\n"
