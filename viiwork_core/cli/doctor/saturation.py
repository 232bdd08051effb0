"""Saturation: one request more than a model has slots, all at once. One waits, and none is lost."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence

from viiwork_core.cli.doctor.api import Reply
from viiwork_core.cli.doctor.models import BUSY, question
from viiwork_core.cli.doctor.situation import Running, Situation, ok, problem, warning
from viiwork_core.contracts.doctor import Finding
from viiwork_core.errors import ViiworkError

TOKENS = 64
"""So that those who come first are still there when the last comes."""


async def saturation(situation: Situation) -> Sequence[Finding]:
    """Each model of this node."""
    running = situation.running
    if running is None:
        return []
    models = [one for one in running.status["models"] if one["slots"] and not one.get("parked")]
    return [await _filled(running, str(one["name"]), int(one["slots"])) for one in models]


async def _filled(running: Running, model: str, slots: int) -> Finding:
    replies = await asyncio.gather(*(_one(running, model, number) for number in range(slots + 1)))
    lost = [one for one in replies if not isinstance(one, Reply)]
    statuses = Counter(one.status for one in replies if isinstance(one, Reply))
    waited = sum(isinstance(one, Reply) and int(one.headers.get("X-Viiwork-Queued-Ms") or 0) > 0 for one in replies)
    told = f"{model}: {slots + 1} requests at once for {slots} slots"
    if lost:
        return problem(f"{told}: {len(lost)} got no answer: {lost[0]}", "see the node's log")
    if failed := [one for one in replies if isinstance(one, Reply) and one.status not in {200, BUSY}]:
        return problem(f"{told}: one was answered {failed[0].status}: {failed[0].error}", "see the node's log")
    if statuses[BUSY]:
        remedy = "raise routing.queue_timeout or routing.queue_max, or give the model more slots (parallel)"
        return warning(f"{told}: {statuses[BUSY]} waited in vain (429)", remedy)
    return ok(f"{told}: all answered, {waited or 'none'} waited for a slot")


async def _one(running: Running, model: str, number: int) -> Reply | str:
    body = question(model, f"Count from {number + 1} to one hundred.", max_tokens=TOKENS)
    try:
        return await running.api.ask(body, host=running.node)
    except ViiworkError as error:
        return error.message
