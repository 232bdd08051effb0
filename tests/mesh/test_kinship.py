"""What this project relies on in the gossip engine, recorded. Whoever raises its version runs these first."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import kinship
import kinship.blocking
import pytest

KEY = b"k" * 32
PINNED = "0.4.0"
PATIENCE_S = 30.0

CHILD = """
import sys, kinship, kinship.blocking
settings = kinship.Config.lan(
    name="child", bind="127.0.0.42:0", cluster="c", keys=[b"k" * 32], probe_interval=0.5, probe_timeout=0.3,
    suspicion_mult=3,
)
with kinship.blocking.Cluster(settings) as cluster:
    cluster.join([sys.argv[1]])
    sys.stdin.read()
"""


@contextlib.contextmanager
def cluster(name: str, host: str = "127.0.0.41", port: str = "0", **more: Any) -> Iterator[kinship.blocking.Cluster]:
    settings = {"keys": [KEY], "probe_interval": 0.5, "probe_timeout": 0.3, "suspicion_mult": 3, **more}
    with kinship.blocking.Cluster(
        kinship.Config.lan(name=name, bind=f"{host}:{port}", cluster="c", **settings)
    ) as made:
        yield made


def heard(events: kinship.blocking.EventStream, wanted: Callable[[Any], bool]) -> list[Any]:
    """The events up to the first that is wanted. The stream ticks each half second."""
    seen: list[Any] = []
    deadline = time.monotonic() + PATIENCE_S
    for event in events:
        if event is not None:
            seen.append(event)
            if wanted(event):
                return seen
        assert time.monotonic() < deadline, f"not among {seen}"
    raise AssertionError(f"the stream ended: {seen}")


@contextlib.contextmanager
def child(seed: str) -> Iterator[int]:
    """The pid of a member in a process of its own."""

    async def begin() -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(sys.executable, "-c", CHILD, seed, stdin=asyncio.subprocess.PIPE)

    with asyncio.Runner() as runner:
        process = runner.run(begin())
        try:
            yield process.pid
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            runner.run(process.wait())


def named(name: str, kind: type) -> Callable[[Any], bool]:
    return lambda event: isinstance(event, kind) and event.member.name == name


def test_the_version_is_the_one_that_this_was_tried_with() -> None:
    assert version("kinship") == kinship.__version__ == PINNED
    pyproject = (Path(__file__).parents[2] / "pyproject.toml").read_text()
    assert f'"kinship=={PINNED}"' in pyproject


def test_who_is_killed_is_suspected_and_then_dead() -> None:
    with cluster("a") as a:
        events = a.events(timeout=0.5)
        with child(a.local.addr) as pid:
            heard(events, named("child", kinship.MemberJoined))
            os.kill(pid, signal.SIGKILL)
            seen = heard(events, named("child", kinship.MemberDead))
        assert [type(event) for event in seen] == [kinship.MemberSuspect, kinship.MemberDead]
        assert [member.name for member in a.members()] == ["a"]
        assert a.member("child").state is kinship.State.DEAD


def test_who_was_only_slow_refutes_the_suspicion() -> None:
    with cluster("a") as a:
        events = a.events(timeout=0.5)
        with child(a.local.addr) as pid:
            heard(events, named("child", kinship.MemberJoined))
            before = a.member("child").incarnation
            os.kill(pid, signal.SIGSTOP)
            try:
                heard(events, named("child", kinship.MemberSuspect))
            finally:
                os.kill(pid, signal.SIGCONT)
            heard(events, named("child", kinship.MemberRecovered))
            assert a.member("child").incarnation > before


@pytest.mark.slow
def test_who_stands_still_for_ten_seconds_dies_once_and_is_back() -> None:
    with cluster("a") as a:
        events = a.events(timeout=0.5)
        with child(a.local.addr) as pid:
            heard(events, named("child", kinship.MemberJoined))
            os.kill(pid, signal.SIGSTOP)
            try:
                seen = [event for _, event in zip(range(20), events, strict=False) if event is not None]
                seen += [event for _, event in zip(range(20 - len(seen)), events, strict=False) if event is not None]
            finally:
                os.kill(pid, signal.SIGCONT)
            alive = lambda event: isinstance(event, (kinship.MemberJoined, kinship.MemberRecovered))  # noqa: E731
            seen += heard(events, alive)
            # It may still be told of the suspicion that it slept through.
            seen += [event for _, event in zip(range(8), events, strict=False) if event is not None]
            kinds = [type(event) for event in seen]
            assert kinship.MemberSuspect in kinds
            assert kinds.count(kinship.MemberDead) <= 1, kinds
            assert a.member("child").state is kinship.State.ALIVE


def test_a_later_run_of_a_name_has_a_higher_epoch() -> None:
    """On the same address, where it is taken at once; on another one it waits for half a minute."""
    with cluster("a") as a:
        events, epochs, port = a.events(timeout=0.5), [], "0"
        for _ in range(2):
            with cluster("b", "127.0.0.43", port) as b:
                port = b.local.addr.rpartition(":")[2]
                b.join([a.local.addr])
                heard(events, named("b", kinship.MemberJoined))
                epochs.append(a.member("b").epoch)
            heard(events, named("b", kinship.MemberLeft))
        assert 0 < epochs[0] < epochs[1]


def test_of_two_with_one_name_the_first_is_kept_and_others_hear_of_it() -> None:
    with cluster("a") as a, cluster("b", "127.0.0.43") as first:
        events = a.events(timeout=0.5)
        first.join([a.local.addr])
        heard(events, named("b", kinship.MemberJoined))
        while time.time() * 1000 <= first.local.epoch + 1:
            next(events)  # a tick: of two runs that began in one millisecond nobody can say which is the later
        with cluster("b", "127.0.0.44") as second:
            second.join([a.local.addr])
            conflict = heard(events, lambda event: isinstance(event, kinship.NameConflict))[-1]
            assert conflict.other_addr == second.local.addr
            assert a.member("b").addr == first.local.addr
            assert "a" in {member.name for member in second.members()}, "the duplicate is told nothing"


def test_a_slow_listener_is_told_that_events_were_lost() -> None:
    with cluster("a", event_buffer=4) as a, cluster("b", "127.0.0.43") as b:
        watching, slow = a.events(timeout=0.5), a.events(timeout=0.5)
        b.join([a.local.addr])
        heard(watching, named("b", kinship.MemberJoined))
        for number in range(20):
            b.set_meta({"n": str(number)})
            heard(
                watching,
                lambda event, n=str(number): isinstance(event, kinship.MemberUpdated) and event.member.meta["n"] == n,
            )
        lost = heard(slow, lambda event: isinstance(event, kinship.EventsLost))[-1]
        assert lost.count > 0
        assert a.member("b").meta["n"] == "19", "what was lost is read from the members"


def test_keys_are_changed_at_run_time() -> None:
    new = b"n" * 32
    with cluster("a", keys=[KEY, new]) as a, cluster("b", "127.0.0.43", keys=[new]) as b:
        with pytest.raises(kinship.JoinError):
            b.join([a.local.addr])
        a.keyring.use(new)
        assert b.join([a.local.addr]) == 1
        assert len(a.keyring.key_ids()) == 2
