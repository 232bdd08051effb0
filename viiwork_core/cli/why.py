"""viiwork why: which places a request could have gone to, what decided, and what became of it.

Exit status: 0, 1 when no node knows the request, 2 when no node answers.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any, Final
from urllib.parse import quote

import click

from viiwork_core.cli.answer import asking, print_json
from viiwork_core.cli.completion import complete_requests
from viiwork_core.cli.operator import Operator
from viiwork_core.cli.table import Screen
from viiwork_core.observe.events import plain

_PLACES: Final = ("", "PLACE", "FREE", "FIRST TOKEN", "PRICE", "HELD", "RTT", "NOTE")


@click.command()
@click.argument("request_id", shell_complete=complete_requests)
@asking
def why(node: Operator, *, request_id: str, as_json: bool) -> None:
    """Show why a request went where it went: REQUEST_ID is its answer's X-Request-Id.

    Any node of the mesh may be asked; each remembers its last 1,000 requests, without their texts.
    """
    told = node.ask("GET", f"/v1/why/{quote(request_id, safe='')}")
    if as_json:
        print_json(told)
        return
    for line in text(told, Screen.here()):
        click.echo(line, color=True)


def text(told: dict[str, Any], screen: Screen) -> Iterator[str]:
    """An account for a terminal."""
    yield from map(plain, _head(told))
    if "held_out" in told:
        yield from _choice("waited although another had room", told["held_out"], screen)
    for choice in told.get("choices", ()):
        yield from _choice(f"chose {choice['chosen']}", choice, screen)
    yield from map(plain, _tail(told))


def _head(told: dict[str, Any]) -> Iterator[str]:
    at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(told["at"]))
    alias = f" (asked for as {told['alias']})" if "alias" in told else ""
    yield f"{told['request_id']}  {at}  at {told['node']}  {told['path']}"
    yield f"model      {told['model']}{alias}, about {told['prompt_tokens_estimated']} tokens"
    session = told["session"]
    if "hash" in session:
        turn = "begins" if session["begins"] else "continues" if session["continues"] else "not known before"
        yield f"session    {session['hash']}, by {session['found']}, {turn}"
    else:
        yield "session    none"
    if "pin" in told:
        yield f"pinned     to {told['pin']}"
    if "prefer" in told:
        yield f"preferred  {', '.join(told['prefer'])}"
    if told.get("forwarded_here"):
        yield "forwarded  by another node, which chose this one"
    yield f"queue      {_ms(told['queued_ms'])}"


def _choice(title: str, choice: dict[str, Any], screen: Screen) -> Iterator[str]:
    policy = f"{choice['policy']}: " if "policy" in choice else ""
    yield ""
    yield plain(f"{_ms(choice['after_ms'])}: {title}")
    yield plain(f"  {policy}{choice['rule']}")
    rows = [_place(one, chosen=one["id"] == choice.get("chosen")) for one in choice["candidates"]]
    rows += [_place(one, chosen=False) for one in choice.get("full", ())]
    yield from (f"  {line}".rstrip() for line in Screen(screen.width - 2, screen.colour).table([_PLACES, *rows]))


def _place(one: dict[str, Any], *, chosen: bool) -> Sequence[str]:
    notes = [] if one["measured"] else ["not measured"]
    if "rank" not in one:
        notes.append("full" if not one["free"] else "left out")
    notes += [f"replica of {one['replica_tokens']}"] if "replica_tokens" in one else []
    notes += [f"{one['waiting']} waiting"] if one.get("waiting") else []
    notes += [f"wait {_ms(one['wait_ms'])}"] if "wait_ms" in one else []
    notes += [f"crowd {_ms(one['crowd_ms'])}"] if "crowd_ms" in one else []
    return (
        "*" if chosen else "",
        one["id"],
        f"{one['free']}/{one['slots']}",
        _ms(one.get("predicted_ms")),
        _ms(one.get("price_ms")),
        str(one.get("held_tokens", "-")),
        _ms(one.get("rtt_ms")),
        ", ".join(notes),
    )


def _tail(told: dict[str, Any]) -> Iterator[str]:
    yield ""
    for one in told["tries"]:
        yield f"tried      {one['place']} for {_ms(one['ms'])}: {one['reason']}"
    place = told.get("backend") or (f"peer {told['peer']}" if "peer" in told else "nowhere")
    yield f"ran        {place}" if told["state"] != "waiting" else "ran        nowhere yet: it waits"
    yield f"first token after {_ms(told.get('first_token_ms'))}"
    tokens = (f"{name} {told.get(f'{name}_tokens', '-')}" for name in ("prompt", "cached", "completion"))
    yield f"tokens     {', '.join(tokens)}"
    if told["state"] == "over":
        reason = f": {told['reason']}" if "reason" in told else ""
        yield f"ended      {told['status']} after {_ms(told['total_ms'])}{reason}"


def _ms(ms: float | None) -> str:
    if ms is None:
        return "-"
    return f"{ms / 1000:.1f} s" if ms >= 1000 else f"{ms:g} ms"
