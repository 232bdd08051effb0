"""Models: each is asked once for an answer and once for a tool call, here and through other members."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from viiwork_core.cli.doctor.api import NotLetIn, Reply
from viiwork_core.cli.doctor.situation import Running, Situation, ok, problem, warning
from viiwork_core.contracts.doctor import Finding, Level
from viiwork_core.errors import ViiworkError

ANSWER_TOKENS: Final = 32
CALL_TOKENS: Final = 256
"""Some models think before they call."""

EMBEDDINGS: Final = "/v1/embeddings"
BUSY: Final = 429

_TOOL: Final = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather in a city now.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
_LATER = "ask again when less is going on, or give the model more slots (parallel)"
_LOG = "see the log of that node and its engine"


def question(model: str, text: str = "Reply with one word: ready", **more: Any) -> dict[str, Any]:
    """A request's body, for a short answer."""
    messages = [{"role": "user", "content": text}]
    return {"model": model, "messages": messages, "max_tokens": ANSWER_TOKENS, "temperature": 0, **more}


async def models(situation: Situation) -> Sequence[Finding]:
    """Every model of the mesh on every host that has it; one after the other, so that little is held up."""
    running = situation.running
    if running is None:
        return []
    found = list[Finding]()
    entries = (await running.api.get("/v1/fleet/capacity"))["models"]
    if not entries:
        found.append(warning("no model is served in the whole mesh", "name one in models[], here or on another node"))
    for entry in entries:
        found += await _model(running, str(entry["name"]), entry["hosts"])
    # A node that lets nobody in says so for each model.
    return list(dict.fromkeys([*found, *await _entered_elsewhere(running)]))


async def _model(running: Running, model: str, hosts: Sequence[Mapping[str, Any]]) -> list[Finding]:
    names = [str(one["node"]) for one in hosts if not one.get("stale") and one.get("slots")]
    if not names:
        what = f"{model} has no slot anywhere now"
        return [warning(what, "see `viiwork status --mesh`: its backends start, or failed")]
    own, others = [one for one in names if one == running.node], [one for one in names if one != running.node]
    found = list[Finding]()
    for host in (*own, *others):
        answer = await asked(running, model, host)
        found.append(answer)
        # Once here and once through another: tool calls do not depend on the way, and take time.
        if host in (*own, *others[:1]) and _takes_tools(answer):
            found.append(await _called(running, model, host))
    return found


async def _entered_elsewhere(running: Running) -> list[Finding]:
    """Each model of this node, asked at each other node: those requests come in here from there."""
    healthy = (m for m in running.status["models"] if any(one["status"] == "healthy" for one in m["backends"]))
    found = list[Finding]()
    for model in (str(one["name"]) for one in healthy):
        for number, member in enumerate(running.heard):
            answer = await asked(running, model, running.node, at=member)
            found.append(answer)
            if number == 0 and _takes_tools(answer):
                found.append(await _called(running, model, running.node, at=member))
    return found


def _takes_tools(answer: Finding) -> bool:
    """Whether there is any use in asking for a tool call."""
    return "embeddings" not in answer.what and answer.level is Level.OK


async def asked(running: Running, model: str, host: str, *, at: Mapping[str, Any] | None = None) -> Finding:
    """One request for an answer, to be served by `host`; `at`: the member that it is sent to."""
    where = _where(running, host, at)
    address = str(at["addr"]) if at is not None else None
    try:
        reply = await running.api.ask(question(model), host=host, at=address)
        if reply.status != 200:
            return await _refused(running, model, host, reply, where, address)
    except NotLetIn as error:
        return error.finding
    except ViiworkError as error:
        return problem(f"{model} {where} gives no answer: {error.message}", f"{_LOG}; a slow one needs --timeout")
    if strayed := _strayed(reply, host, str(at["node"]) if at is not None else running.node):
        return problem(f"{model} {where}: {strayed}", "see that each node has a name and an address of its own")
    if not text_of(reply):
        return problem(f"{model} {where} answered without a word", f"{_LOG}: its chat template may not fit")
    return ok(f"{model} {where} answers, in {reply.seconds:.1f} s")


def _where(running: Running, host: str, at: Mapping[str, Any] | None) -> str:
    if at is not None:
        return f"on {host} through {at['node']}"
    return f"on {host}" if host == running.node else f"on {host} through {running.node}"


async def _refused(running: Running, model: str, host: str, reply: Reply, where: str, address: str | None) -> Finding:
    if reply.status == BUSY:
        return warning(f"{model} {where} had no slot free in time: {reply.error}", _LATER)
    vector = await running.api.ask({"model": model, "input": "ready"}, host=host, at=address, path=EMBEDDINGS)
    if vector.status == 200:
        return ok(f"{model} {where} answers with embeddings, and to no chat")
    return problem(f"{model} {where} refuses: {reply.error} (status {reply.status})", _LOG)


def _strayed(reply: Reply, host: str, entry: str) -> str:
    """Whether the answer came by another way than it should have."""
    node, origin = reply.headers.get("X-Viiwork-Node"), reply.headers.get("X-Viiwork-Origin")
    if node != host:
        return f"{node or 'nobody'} says that it answered"
    if host != entry and origin != entry:
        return f"it says that it came through {origin or 'nobody'}"
    return ""


async def _called(running: Running, model: str, host: str, *, at: Mapping[str, Any] | None = None) -> Finding:
    """One request for a tool call, as `asked`."""
    where = _where(running, host, at)
    body = question(model, "What is the weather in Oulu now? Use the tool.", max_tokens=CALL_TOKENS, tools=[_TOOL])
    try:
        reply = await running.api.ask(body, host=host, at=str(at["addr"]) if at is not None else None)
    except NotLetIn as error:
        return error.finding
    except ViiworkError as error:
        return problem(f"{model} {where} gives no answer to a tool request: {error.message}", _LOG)
    if reply.status == BUSY:
        return warning(f"{model} {where} had no slot free for a tool request in time", _LATER)
    if reply.status != 200:
        remedy = f"{_LOG}: engines need a chat template with tools, and some a flag for it"
        return problem(f"{model} {where} refuses a tool request: {reply.error} (status {reply.status})", remedy)
    if _calls(reply):
        return ok(f"{model} {where} calls tools, in {reply.seconds:.1f} s")
    remedy = "agents need a model and a chat template that know tools; for others this does not matter"
    return warning(f"{model} {where} answers a tool request without a call", remedy)


def message_of(reply: Reply) -> Mapping[str, Any]:
    """The message of an answer; empty where there is none."""
    try:
        found = reply.json["choices"][0]["message"]
    except (KeyError, IndexError, TypeError):
        return {}
    return found if isinstance(found, dict) else {}


def text_of(reply: Reply) -> str:
    """What the model wrote or thought."""
    message = message_of(reply)
    return str(message.get("content") or message.get("reasoning_content") or message.get("reasoning") or "")


def _calls(reply: Reply) -> bool:
    calls = message_of(reply).get("tool_calls")
    return isinstance(calls, list) and any(isinstance(one, dict) and "function" in one for one in calls)
