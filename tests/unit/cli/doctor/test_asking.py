"""What is made of a model's answers, and of a session that should move. A scripted API stands for the nodes."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from viiwork_core.cli.doctor import caches, models
from viiwork_core.cli.doctor.api import Api, Reply
from viiwork_core.cli.doctor.situation import Machine, Running, Situation
from viiwork_core.config.load import parse_config
from viiwork_core.contracts.doctor import Finding, Level
from viiwork_core.errors import ViiworkError
from viiwork_core.registry.entry_points import load_plugins
from viiwork_core.registry.options import resolve

OK, WARNING, PROBLEM = Level.OK, Level.WARNING, Level.PROBLEM
HERE = {"X-Viiwork-Node": "a"}
THERE = {"X-Viiwork-Node": "b", "X-Viiwork-Origin": "a"}


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def answer(status: int = 200, message: Mapping[str, Any] | None = None, usage: Any = None, **headers: str) -> Reply:
    said = {"choices": [{"message": message or {"content": "ready"}}], "usage": usage or {}}
    body = said if status == 200 else {"error": {"message": "no"}}
    return Reply(status, headers or HERE, body, 0.1)


def used(prompt: int, cached: int = 0, **headers: str) -> Reply:
    usage = {"prompt_tokens": prompt, "completion_tokens": 4, "prompt_tokens_details": {"cached_tokens": cached}}
    return answer(usage=usage, **headers)


class Scripted(Api):
    """Gives these answers, in order."""

    def __init__(
        self,
        replies: Sequence[Reply | ViiworkError] = (),
        *,
        reports: Mapping[str, Any] | None = None,
        sent: Sequence[tuple[int, int]] = (),
    ) -> None:
        super().__init__("http://127.0.0.1:1", 1)
        self.replies, self.reports, self.sent = list(replies), dict(reports or {}), list(sent)
        self.asked: list[str] = []

    async def ask(self, body: Mapping[str, Any], **more: Any) -> Reply:
        self.asked.append(str(more.get("host")))
        reply = self.replies.pop(0)
        if isinstance(reply, ViiworkError):
            raise reply
        return reply

    async def get(self, path: str, *, at: str | None = None) -> Any:
        return self.reports[at or path]

    async def text(self, path: str) -> str:
        sent, failed = self.sent.pop(0) if len(self.sent) > 1 else self.sent[0]
        lines = (
            f'viiwork_replicas_total{{node="a",result="{name}"}} {n}.0'
            for name, n in (("sent", sent), ("failed", failed))
        )
        return "\n".join(lines)


def running(api: Api, *others: str) -> Running:
    members = [{"node": one, "node_id": one, "addr": f"10.0.0.{one}:1", "age_ms": 1} for one in ("a", *others)]
    status = {"node": "a", "node_id": "a", "ver": "1", "mesh": "secured", "models": []}
    return Running(api, status, {"members": members})


# Models


async def asked(reply: Reply | ViiworkError, *more: Reply, host: str = "a") -> Finding:
    return await models.asked(running(Scripted([reply, *more])), "m", host)


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("reply", "level", "words"),
    [
        (answer(), OK, "m on a answers, in 0.1 s"),
        (answer(message={"reasoning_content": "hm"}), OK, "answers"),
        (answer(message={"content": ""}), PROBLEM, "answered without a word"),
        (Reply(200, HERE, None, 0.1), PROBLEM, "answered without a word"),
        (answer(429), WARNING, "had no slot free in time: no"),
        (answer(**THERE), PROBLEM, "b says that it answered"),
        (ViiworkError("nothing"), PROBLEM, "gives no answer: nothing"),
    ],
)
async def test_an_answer(reply: Reply | ViiworkError, level: Level, words: str) -> None:
    found = await asked(reply)
    assert (found.level, words in found.what) == (level, True), found


@pytest.mark.anyio
async def test_an_answer_from_elsewhere() -> None:
    assert (await asked(answer(**THERE), host="b")).level is OK
    strayed = await asked(answer(**{"X-Viiwork-Node": "b", "X-Viiwork-Origin": "c"}), host="b")
    assert "it came through c" in strayed.what
    assert strayed.level is PROBLEM


@pytest.mark.anyio
async def test_a_refusal() -> None:
    assert (await asked(answer(500), answer(404))).what == "m on a refuses: no (status 500)"
    assert (await asked(answer(501), answer())).what == "m on a answers with embeddings, and to no chat"


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("reply", "level", "words"),
    [
        (answer(message={"tool_calls": [{"function": {"name": "get_weather"}}]}), OK, "calls tools"),
        (answer(message={"content": "sunny"}), WARNING, "without a call"),
        (answer(500), PROBLEM, "refuses a tool request: no (status 500)"),
        (answer(429), WARNING, "no slot free for a tool request"),
        (ViiworkError("nothing"), PROBLEM, "gives no answer to a tool request"),
    ],
)
async def test_a_tool_request(reply: Reply | ViiworkError, level: Level, words: str) -> None:
    found = await models._called(running(Scripted([reply])), "m", "a")
    assert (found.level, words in found.what) == (level, True), found


@pytest.mark.anyio
async def test_no_model_anywhere() -> None:
    api = Scripted(reports={"/v1/fleet/capacity": {"models": []}})
    (found,) = await models.models(Situation({}, 5, None, running(api)))
    assert (found.level, found.what) == (WARNING, "no model is served in the whole mesh")


@pytest.mark.anyio
async def test_tools_are_asked_for_here_and_once_elsewhere() -> None:
    api = Scripted([answer(), answer(), *[answer(**THERE)] * 2, answer(**{**THERE, "X-Viiwork-Node": "c"})])
    hosts = [{"node": name, "slots": 1} for name in ("b", "a", "c")] + [{"node": "d", "stale": True}]
    found = await models._model(running(api), "m", hosts)
    assert api.asked == ["a", "a", "b", "b", "c"]
    assert [one.level for one in found] == [OK, WARNING, OK, WARNING, OK]


# Sessions that move

OWN = {"group": "g", "fingerprint": "f"}


def report(kv: Mapping[str, str] | None) -> dict[str, Any]:
    return {"models": [{"name": "m", **({} if kv is None else {"kv": kv})}]}


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    text = """
        mesh: {network: seeds, seeds: ["10.0.0.1:7946"]}
        models:
          - {name: m, engine: external, context: 4000, external: {urls: ["http://127.0.0.1:9"]}}
    """
    read, registry = parse_config(text, {}), load_plugins({**os.environ, "VIIWORK_PLUGINS": ""})
    resolved = resolve(read, registry)
    shared = parse_config(text.replace("context: 4000", "context: 4000, kv_share: {group: g, min_tokens: 100}"), {})
    return Machine(shared, registry, resolved)


async def moved(
    machine: Machine,
    *replies: Reply,
    own: Mapping[str, str] | None = OWN,
    others: Mapping[str, Mapping[str, str] | None] | None = None,
    sent: Sequence[tuple[int, int]] = ((0, 0), (1, 0)),
    timeout: float = 5,
) -> Finding:
    others = {"b": OWN} if others is None else others
    reports = {"/v1/capacity": report(own)} | {f"10.0.0.{name}:1": report(kv) for name, kv in others.items()}
    here = running(Scripted(replies, reports=reports, sent=sent), *others)
    (found,) = await caches.caches(Situation({}, timeout, machine, here))
    return found


@pytest.mark.anyio
async def test_a_session_moved(machine: Machine) -> None:
    found = await moved(machine, used(150), used(200, 180, **THERE))
    assert (found.level, found.what) == (OK, "m: a session moved to b, which read 20 of its 200 tokens")


@pytest.mark.anyio
async def test_it_lies_on_the_second_host(machine: Machine) -> None:
    found = await moved(machine, used(150), used(200, 0), used(200, 190), others={"b": OWN, "c": OWN})
    assert found.what == "m: a session moved to c, which read 10 of its 200 tokens"


@pytest.mark.anyio
async def test_a_second_turn_makes_it_long_enough(machine: Machine) -> None:
    assert (await moved(machine, used(60), used(120), used(200, 190))).level is OK


@pytest.mark.anyio
async def test_a_session_read_again(machine: Machine) -> None:
    found = await moved(machine, used(150), used(200, 10))
    assert (found.level, "its cache was not used: b read 190 of 200 tokens" in found.what) == (PROBLEM, True)


@pytest.mark.anyio
async def test_a_session_that_stays_short(machine: Machine) -> None:
    found = await moved(machine, used(10), used(20), used(30), used(40))
    assert (found.level, "a session of 44 tokens is not saved" in found.what) == (WARNING, True)


class Counting(Api):
    """A model with a small context: a word is this many tokens, and a prompt that does not fit is refused."""

    def __init__(self, context: int, each: float) -> None:
        super().__init__("http://127.0.0.1:1", 1)
        self.context, self.each, self.prompts = context, each, list[int]()

    async def ask(self, body: Mapping[str, Any], **more: Any) -> Reply:
        texts = [str(one["content"]) for one in body["messages"]]
        prompt = 20 + sum(12 + int(len(text.split()) * self.each) for text in texts)
        if prompt + body["max_tokens"] > self.context:
            return answer(400)
        self.prompts.append(prompt)
        cached = self.prompts[-2] if len(self.prompts) > 1 else 0
        return used(prompt, cached, **(HERE if more.get("host") == "a" else THERE))

    async def get(self, path: str, **more: Any) -> Mapping[str, Any]:
        return report(OWN)

    async def text(self, path: str) -> str:
        sent = int(len(self.prompts) > 0)
        return f'viiwork_replicas_total{{result="sent"}} {sent}\n'


@pytest.mark.anyio
@pytest.mark.parametrize("each", [0.5, 1.0, 1.4, 3.9])
@pytest.mark.parametrize(("context", "wanted"), [(512, 256), (4096, 2048), (4096, 3900), (32768, 4096)])
async def test_a_session_fits_into_the_context(machine: Machine, context: int, wanted: int, each: float) -> None:
    """Whatever the model's tokenizer makes of a word."""
    (model,) = machine.config.models
    assert model.kv_share is not None
    share = model.kv_share.model_copy(update={"min_tokens": wanted})
    sized = model.model_copy(update={"context": context, "kv_share": share})
    small = replace(machine, config=machine.config.model_copy(update={"models": (sized,)}))
    api = Counting(context, each)
    (found,) = await caches.caches(Situation({}, 5, small, running(api, "b")))
    assert (found.level, "a session moved to b" in found.what) == (OK, True), found
    assert api.prompts[-2] + 8 >= wanted
    assert api.prompts[-1] < 1.5 * wanted + 200


@pytest.mark.anyio
async def test_a_context_that_no_saved_session_fits_into(machine: Machine) -> None:
    (model,) = machine.config.models
    small = replace(
        machine, config=machine.config.model_copy(update={"models": (model.model_copy(update={"context": 120}),)})
    )
    (found,) = await caches.caches(Situation({}, 5, small, running(Counting(120, 1.4), "b")))
    assert (found.level, "a session of 0 tokens is not saved" in found.what) == (WARNING, True)


@pytest.mark.anyio
async def test_a_cache_that_is_not_sent(machine: Machine) -> None:
    failed = await moved(machine, used(150), sent=[(0, 0), (0, 1)])
    assert (failed.level, failed.what) == (PROBLEM, "m: the cache of a session could not be sent to b")
    late = await moved(machine, used(150), sent=[(0, 0)], timeout=0.1)
    assert (late.level, "was not sent within 0.1 s" in late.what) == (PROBLEM, True)


@pytest.mark.anyio
async def test_a_turn_that_is_refused(machine: Machine) -> None:
    found = await moved(machine, answer(503))
    assert (found.level, "no session could be moved: one of its turns was answered 503" in found.what) == (
        PROBLEM,
        True,
    )


@pytest.mark.anyio
async def test_nobody_to_share_with(machine: Machine) -> None:
    for others in ({}, {"b": None}, {"b": {"group": "h", "fingerprint": "f"}}):
        found = await moved(machine, others=others)  # type: ignore[arg-type]  # of different values
        assert (found.level, found.what) == (WARNING, "m: no other node serves it in the group g")


@pytest.mark.anyio
async def test_caches_that_do_not_fit(machine: Machine) -> None:
    found = await moved(machine, others={"b": {"group": "g", "fingerprint": "x"}})
    assert (found.level, found.what) == (PROBLEM, "m: the caches of b and this node do not fit each other")


@pytest.mark.anyio
async def test_a_model_whose_caches_cannot_be_moved_is_told_with_the_reason(machine: Machine) -> None:
    here = running(Scripted())
    off = {"models": [{"name": "m", "kv_share": {"state": "off", "reason": "session files are off"}}]}
    (found,) = await caches.caches(Situation({}, 5, machine, replace(here, status={**here.status, **off})))
    assert (found.level, found.what) == (WARNING, "m: kv_share is off: session files are off")


@pytest.mark.anyio
async def test_a_node_that_shares_nothing_now(machine: Machine) -> None:
    found = await moved(machine, own=None)
    assert (found.level, found.what) == (WARNING, "m: this node shares no caches of it now")
