"""Whether what was set up serves: every model loaded, then the checks of `viiwork doctor`."""

from __future__ import annotations

import os
import shlex
import subprocess
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import httpx
import msgspec

from viiwork_core.config.env_file import read_env_file
from viiwork_core.config.running import running
from viiwork_core.errors import ConfigError
from viiwork_core.observe.events import plain
from viiwork_core.security.operator_token import HEADER, read_operator_token
from viiwork_core.setup.service import Service, ServiceFailed, Show

LOOK_S: Final = 0.5
"""Between two looks at the node."""

ASK_S: Final = 10.0
CHECKS_S: Final = 1800.0
"""All checks together: each model is asked several times."""

_STEP: Final = 10
"""Percent between two lines about a model that loads."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the checks came to."""

    status: int
    """As `viiwork doctor` exits: 0 well, 1 warnings, 2 problems."""

    lines: tuple[str, ...]
    """Those findings that are not well, a line each, with their remedies."""

    well: int
    """How many are."""


def wait_until_loaded(service: Service, show: Show, *, deadline_s: float) -> None:
    """Until every model of the node is served; shows a line when something changes.

    Raises ServiceFailed, with the engine's last words or the last lines of the log: a backend was given up, the node
    ended or began anew, or `deadline_s` has passed.
    """
    ends, told, first = time.monotonic() + deadline_s, dict[str, str](), ""
    while True:
        status = _status(service)
        if status is not None:
            first = first or status["node_id"]
            if status["node_id"] != first:
                raise _failed(service, "the node ended and was started again while its models loaded")
            for name, line in _lines(status):
                if told.get(name) != line:
                    show(line)
                told[name] = line
            if _loaded(service, status):
                return
        elif not service.is_active():
            raise _failed(service, "the node has ended")
        if time.monotonic() > ends:
            raise _failed(service, f"not every model was loaded within {deadline_s:g} s")
        time.sleep(LOOK_S)


def _status(service: Service) -> dict[str, Any] | None:
    """What the node says of itself; None: it does not answer yet."""
    try:
        state = service.subject.locations.state
        node, token = running(state), read_operator_token(state)
        headers = {HEADER: token} if token else {}
        answer = httpx.get(f"{node.url}/v1/status", headers=headers, timeout=ASK_S, trust_env=False)
        found = msgspec.json.decode(answer.raise_for_status().content)
    except (ConfigError, httpx.HTTPError, msgspec.DecodeError):
        return None
    # What a run that was killed has left may name a port that another program has now.
    return found if isinstance(found, dict) and found.get("node_id") == node.node_id else None


def _backends(status: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    for model in status["models"]:
        yield from () if model.get("parked") else model["backends"]


def _lines(status: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for backend in _backends(status):
        state = backend["status"]
        words = [backend["id"], state]
        if state == "starting":
            progress = backend.get("progress")
            words += [backend.get("phase") or ""]
            words += [] if progress is None else [f"{int(progress * 100) // _STEP * _STEP} %"]
        if reason := backend.get("reason"):
            words.append(f"({plain(reason)})")
        yield backend["id"], "  ".join(filter(None, words))


def _loaded(service: Service, status: Mapping[str, Any]) -> bool:
    """Whether all backends are healthy. Raises ServiceFailed for one that is given up."""
    backends = list(_backends(status))
    for backend in backends:
        if backend["status"] == "dead":
            what = f"{backend['id']} was given up: {plain(backend.get('reason') or 'it does not say why')}"
            raise ServiceFailed(what, remedy=f"correct it, and see the log: {service.log_hint()}")
    return all(backend["status"] == "healthy" for backend in backends)


def _failed(service: Service, what: str) -> ServiceFailed:
    words = service.last_words()
    return ServiceFailed(f"{what}{f': {words}' if words else ''}", remedy=f"see its log: {service.log_hint()}")


def check(service: Service, show: Show) -> Verdict:
    """Run `viiwork doctor` with the node's configuration and secret. Raises ServiceFailed when it does not end."""
    subject = service.subject
    argv = (str(subject.program), "doctor", "--json", "--config", str(subject.locations.config))
    show(f"$ {shlex.join(argv)}")
    environ = {**os.environ, **read_env_file(subject.locations.environment)}
    try:
        done = subprocess.run(  # noqa: S603 - viiwork's own command
            argv, env=environ, stdin=subprocess.DEVNULL, capture_output=True, timeout=CHECKS_S, check=False
        )
        findings = msgspec.json.decode(done.stdout)
        bad = [one for one in findings if one["level"] != "ok"]
    except (OSError, subprocess.TimeoutExpired, msgspec.DecodeError, KeyError, TypeError) as error:
        raise ServiceFailed(f"`viiwork doctor` gave no findings: {error}", remedy="run it by hand") from error
    return Verdict(done.returncode, tuple(map(_finding, bad)), len(findings) - len(bad))


def _finding(one: Mapping[str, str]) -> str:
    return f"{one['topic']}: {one['level']}: {one['what']}; remedy: {one['remedy']}"
