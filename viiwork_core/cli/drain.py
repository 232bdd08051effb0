"""viiwork drain, viiwork undrain: a node takes no new work and gives its sessions away; it takes requests again.

Exit status of `drain`: 0, 1 when requests or sessions were left, 2 when no node answers.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from typing import Any, Final

import click

from viiwork_core.cli.answer import as_seconds, asking, print_json
from viiwork_core.cli.operator import Operator, Refused
from viiwork_core.errors import ViiworkError
from viiwork_core.observe.events import plain

PATH: Final = "/v1/drain"
LOOK_S: Final = 0.25
"""Between two looks at how far it has come."""

BACK_S: Final = 120.0
"""How long a node that starts again is waited for: what it has loaded until then shows `viiwork status`."""


@click.command()
@click.option(
    "--timeout",
    default="10m",
    callback=as_seconds,
    help="How long requests that run and sessions that move may take; 10m. 0: as long as it takes.",
)
@click.option(
    "--then",
    type=click.Choice(["stop", "restart"]),
    help="End the node afterwards, or start it again, also when the time was up before all was done.",
)
@click.option("--no-wait", is_flag=True, help="Return at once; see later with `viiwork drain`, which goes on waiting.")
@asking
def drain(node: Operator, timeout: float, then: str | None, *, no_wait: bool, as_json: bool) -> None:
    """Take no new work on this node, let what runs finish, and move its sessions to other hosts.

    New requests that come to it are answered by other nodes. It stays so until `viiwork undrain`, `viiwork up` or its
    next start. Progress goes to stderr, the report to stdout. Exits with 1 when something was left by the time limit or
    could not be moved, with 2 when no node answers.
    """
    told = node.ask("POST", PATH, {"timeout_s": timeout, **({"then": then} if then else {})})
    if not no_wait:
        told = _followed(node, told)
    if as_json:
        print_json(told)
    else:
        for line in text(told):
            click.echo(line)
    if told["state"] == "drained" and then is not None:
        _see_off(node, then)
    if told["state"] == "serving" or (told["state"] == "drained" and _left(told)):
        sys.exit(1)


@click.command()
@asking
def undrain(node: Operator, *, as_json: bool) -> None:
    """Take requests on this node again. Sessions that have moved come back as routing finds it worth it."""
    told = node.ask("DELETE", PATH)
    if as_json:
        print_json(told)
    else:
        click.echo(f"{plain(told['node'])} takes requests")


def text(told: dict[str, Any]) -> Iterator[str]:
    """The report for a terminal."""
    name = plain(told["node"])
    if told["state"] == "serving":
        yield f"{name} takes requests: somebody has ended the drain"
        return
    requests, sessions = told["requests"], told["sessions"]
    done = "is drained" if told["state"] == "drained" else "drains"
    yield f"{name} {done}, after {told['seconds']:.1f} s"
    yield f"requests  {requests['ended']} ended, {requests['remaining']} left"
    yield from (
        f"  {plain(one['request_id'])}  {plain(one['model'])}  {plain(one.get('at', ''))}".rstrip()
        for one in requests["left"]
    )
    yield f"sessions  {sessions['moved']} moved, {sessions['there']} there already, {sessions['remaining']} left"
    yield from (f"  {one['session'][:12]}  {plain(one['model'])}  {plain(one['reason'])}" for one in sessions["left"])
    if sessions["short"]:
        yield f"  {sessions['short']} are under kv_share.min_tokens: their prompts are soon read again"
    if sessions["unshared"]:
        yield f"  {sessions['unshared']} are of models without kv_share: their prompts will be read again"


def _left(told: dict[str, Any]) -> bool:
    return bool(told["requests"]["remaining"] or told["sessions"]["remaining"])


def _followed(node: Operator, told: dict[str, Any]) -> dict[str, Any]:
    """Look until it is over, and tell stderr of each change."""
    said = ""
    try:
        while told["state"] == "draining":
            line = _progress(told)
            if line != said:
                click.echo(line, err=True)
                said = line
            time.sleep(LOOK_S)
            told = node.ask("GET", PATH)
    except KeyboardInterrupt:
        click.echo(f"{plain(told['node'])} goes on draining; end that with: viiwork undrain", err=True)
        raise
    return told


def _progress(told: dict[str, Any]) -> str:
    requests, sessions = told["requests"], told["sessions"]
    moving = f"{sessions['moved'] + sessions['there']} sessions are elsewhere, {sessions['remaining']} to go"
    return f"{plain(told['node'])} drains: {requests['remaining']} requests run, {moving}"


def _see_off(node: Operator, then: str) -> None:
    """Until the node has ended, or is back."""
    click.echo(f"the node {'ends' if then == 'stop' else 'starts again'}", err=True)
    deadline = time.monotonic() + BACK_S
    while time.monotonic() < deadline:
        try:
            again = node.renewed()
            again.ask("GET", "/v1/status")
        except Refused:
            pass  # it is there
        except ViiworkError:
            if then == "stop":
                return
        else:
            if again.node_id != node.node_id:
                return
        time.sleep(LOOK_S)
    what = "has not ended" if then == "stop" else "is not back"
    raise ViiworkError(f"the node {what} within {BACK_S:.0f} s", remedy="see its log")
