"""kv_share: a session is begun here and continued on another host of its group, which should not read it again."""

from __future__ import annotations

import random
import re
import secrets
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

import anyio

from viiwork_core.cli.doctor.models import question, text_of
from viiwork_core.cli.doctor.situation import Running, Situation, ok, problem, warning
from viiwork_core.config.model import ModelConfig
from viiwork_core.contracts.doctor import Finding
from viiwork_core.errors import ViiworkError

WARM: Final = 0.5
"""Share of the prompt that must not be read again."""

HOSTS_MOST: Final = 3
"""Which host has a session's cache is that node's choice, so some are tried."""

TURNS_MOST: Final = 4
"""Of the session: the first tells how many tokens a word is here, the others bring what is missing."""

_FIRST_WORDS: Final = 64
_ROOM: Final = 128
"""Tokens of the context that stay free: for the replies, the last turn, and what a template adds."""

_WORDS: Final = ("river", "stone", "lamp", "north", "bread", "cloud", "wheel", "garden", "salt", "tower", "paper")
_SENT: Final = re.compile(r'^viiwork_replicas_total\{[^}]*result="(sent|failed)"[^}]*\} (\S+)$', re.MULTILINE)
_POLL_S = 0.25

Kv = Mapping[str, str]


async def caches(situation: Situation) -> Sequence[Finding]:
    """Each model here whose caches are shared."""
    machine, running = situation.machine, situation.running
    if machine is None or running is None or running.status["mesh"] != "secured":
        return []
    found = list[Finding]()
    for model in machine.config.models:
        if model.kv_share is not None:
            found.append(await _shared(running, model, situation.timeout))
    return found


async def _shared(running: Running, model: ModelConfig, timeout: float) -> Finding:
    assert model.kv_share is not None
    mark = next((one.get("kv_share") for one in running.status["models"] if one["name"] == model.name), None) or {}
    if mark.get("state") == "off":
        what = f"{model.name}: kv_share is off: {mark.get('reason', 'no reason is given')}"
        remedy = "change what the reason names, or remove kv_share; a changed model or a start of the node tries again"
        return warning(what, remedy)
    own = _kv(await running.api.get("/v1/capacity"), model.name)
    if own is None:
        return _unshared(running, model.name)
    others = {
        str(one["node"]): _kv(await running.api.get("/v1/capacity", at=str(one["addr"])), model.name)
        for one in running.heard
    }
    group = {node: kv for node, kv in others.items() if kv is not None and kv["group"] == own["group"]}
    if not group:
        what = f"{model.name}: no other node serves it in the group {model.kv_share.group}"
        return warning(what, "start another with the same kv_share.group, or remove kv_share")
    fitting = [node for node, kv in group.items() if kv == own]
    if not fitting:
        what = f"{model.name}: the caches of {', '.join(group)} and this node do not fit each other"
        return problem(what, "give both the same model file, the same engine version and the same options")
    try:
        return await _moved(running, model, fitting[:HOSTS_MOST], timeout)
    except ViiworkError as error:
        return problem(f"{model.name}: no session could be moved: {error.message}", "see the logs of both nodes (kv)")


def _unshared(running: Running, name: str) -> Finding:
    """In the node's own words, which it has in its log and on its dashboard too."""
    entry: Mapping[str, Any] = next((one for one in running.status["models"] if one["name"] == name), {})
    reason = entry.get("kv_share", {}).get("reason")
    what = f"{name}: this node shares no caches of it now{f': {reason}' if reason else ''}"
    return warning(what, "see its log (kv), and change what it names, or remove kv_share from the model")


def _kv(report: Mapping[str, Any], model: str) -> Kv | None:
    found = next((one for one in report["models"] if one["name"] == model), None)
    return found.get("kv") if found else None


async def _moved(running: Running, model: ModelConfig, hosts: Sequence[str], timeout: float) -> Finding:
    assert model.kv_share is not None
    session, wanted = f"doctor-{secrets.token_hex(8)}", model.kv_share.min_tokens
    before = await _sent(running)
    messages, held = await _begun(running, model, session)
    if held < wanted:
        what = f"{model.name}: a session of {held} tokens is not saved, kv_share.min_tokens is {wanted}"
        return warning(what, "lower it: no session of that size fits into the context")
    now = await _changed(running, before, timeout)
    if now["failed"] > before["failed"] and now["sent"] == before["sent"]:
        what = f"{model.name}: the cache of a session could not be sent to {' or '.join(hosts)}"
        return problem(what, "see `kv not sent` in this node's log, which gives the reason")
    if now == before:
        what = f"{model.name}: the cache of a session was not sent within {timeout:g} s"
        return problem(what, "see this node's log (kv save, kv not sent); a slow disk or link needs --timeout")
    return await _continued(running, model.name, session, messages, hosts)


async def _begun(running: Running, model: ModelConfig, session: str) -> tuple[list[dict[str, str]], int]:
    """Its first turns, until it is long enough to be saved or the context is full: the messages so far, and its
    tokens."""
    assert model.kv_share is not None
    wanted, messages, held, each = model.kv_share.min_tokens, list[dict[str, str]](), 0, 0.0
    for _ in range(TURNS_MOST):
        words = _words(wanted - held, model.context - held - _ROOM, each)
        if held >= wanted or not words:
            break
        text = " ".join(random.Random(f"{session} {held}").choices(_WORDS, k=words))  # noqa: S311  # prose, no secret
        messages.append({"role": "user", "content": f"{text}. Reply with one word: ready"})
        reply = await running.api.ask(
            question(model.name, messages=messages, max_tokens=8), host=running.node, session=session
        )
        if reply.status != 200:
            raise ViiworkError(f"one of its turns was answered {reply.status}: {reply.error}")
        prompt, _, written = reply.usage
        # With what the template adds: rather too much for a word than too little.
        each, held = max((prompt - held) / words, 0.25), prompt + written
        messages.append({"role": "assistant", "content": text_of(reply)})
    return messages, held


def _words(missing: int, room: int, each: float) -> int:
    """How many words bring the tokens that are missing, within the room. `each`: tokens of one; 0: not known yet."""
    if not each:
        # A short turn tells; no tokenizer makes more than four of one of these words.
        return min(_FIRST_WORDS, room // 4) if room > 0 else 0
    return max(0, int(min(missing * 1.1 + 32, room) / each))


async def _changed(running: Running, before: Mapping[str, float], within: float) -> Mapping[str, float]:
    """What was sent, as soon as that is more than before, or at the end of the time."""
    now, late = before, time.monotonic() + within
    while now == before and time.monotonic() < late:
        await anyio.sleep(_POLL_S)
        now = await _sent(running)
    return now


async def _sent(running: Running) -> dict[str, float]:
    found = dict(_SENT.findall(await running.api.text("/metrics")))
    return {name: float(found.get(name, 0)) for name in ("sent", "failed")}


async def _continued(
    running: Running, model: str, session: str, messages: Sequence[Mapping[str, str]], hosts: Sequence[str]
) -> Finding:
    last = [*messages, {"role": "user", "content": "And once more?"}]
    told = list[str]()
    for host in hosts:
        body = question(model, messages=last, max_tokens=8)
        reply = await running.api.ask(body, host=host, session=session)
        if reply.status != 200:
            raise ViiworkError(f"its second turn, on {host}, was answered {reply.status}: {reply.error}")
        prompt, cached, _ = reply.usage
        if prompt and cached >= WARM * prompt:
            return ok(f"{model}: a session moved to {host}, which read {prompt - cached} of its {prompt} tokens")
        told.append(f"{host} read {prompt - cached} of {prompt} tokens")
    what = f"{model}: a session was moved, and its cache was not used: {', '.join(told)}"
    return problem(what, "see `kv import` in the log of that node")
