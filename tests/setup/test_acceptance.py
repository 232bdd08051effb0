"""A node that was set up: started in the background, waited for, looked at, stopped. Real nodes, real llama-servers."""

from __future__ import annotations

import os
from pathlib import Path

import psutil
import pytest
from machine import SetUp

from viiwork_core.config.running import running
from viiwork_core.security.keys import digest_of, hash_text, new_token
from viiwork_core.setup.acceptance import check, wait_until_loaded
from viiwork_core.setup.service import ServiceFailed

PATIENCE_S = 60.0


def test_a_node_is_started_waited_for_checked_and_stopped(set_up: SetUp, gguf: Path) -> None:
    service, told = set_up(gguf), list[str]()
    assert not service.is_active()
    service.start(told.append)
    assert service.is_active()
    wait_until_loaded(service, told.append, deadline_s=PATIENCE_S)
    assert told[0].startswith("$ ")
    assert told[-1] == "tiny/0  healthy"
    # Each state once.
    assert len(set(told)) == len(told)
    verdict = check(service, told.append)
    assert verdict.status < 2, verdict.lines
    assert verdict.well > 5
    state = service.subject.locations.state
    pid = psutil.Process(int(state.joinpath("viiwork.pid").read_bytes().split(b":")[1].split(b",")[0])).pid
    assert os.getsid(pid) == pid
    # A second start changes nothing.
    service.start(told.append)
    assert running(state).url.startswith("http://127.0.0.1:")
    service.stop(told.append)
    assert not service.is_active()
    assert not (state / "node.json").exists()
    assert not (state / "viiwork.pid").exists()


def test_a_node_with_api_keys_is_waited_for_and_checked(set_up: SetUp, gguf: Path) -> None:
    key = {"name": "alice", "hash": hash_text(digest_of(new_token()))}
    service, told = set_up(gguf, api={"port": 0, "keys": [key]}), list[str]()
    service.start(told.append)
    wait_until_loaded(service, told.append, deadline_s=PATIENCE_S)
    verdict = check(service, told.append)
    assert verdict.status < 2, verdict.lines
    assert not any("API key" in line for line in verdict.lines)


def test_a_model_that_does_not_load_is_told_with_its_engines_words(set_up: SetUp, gguf: Path, tmp_path: Path) -> None:
    damaged = tmp_path / "damaged.gguf"
    # The head of the file is well, its weights are cut off.
    damaged.write_bytes(gguf.read_bytes()[: gguf.stat().st_size // 2])
    service = set_up(damaged)
    service.start(list[str]().append)
    with pytest.raises(ServiceFailed, match="tiny/0 was given up: ") as caught:
        wait_until_loaded(service, list[str]().append, deadline_s=PATIENCE_S)
    assert "damaged.gguf" in caught.value.message or "tensor" in caught.value.message
    assert "viiwork.log" in caught.value.remedy


def test_a_node_that_ends_is_told_with_its_last_words(set_up: SetUp) -> None:
    service = set_up(None, api={"prot": 8086})
    service.start(list[str]().append)
    with pytest.raises(ServiceFailed, match=r"(?s)the node has ended: .*prot") as caught:
        wait_until_loaded(service, list[str]().append, deadline_s=PATIENCE_S)
    assert caught.value.remedy.startswith("see its log: tail -f ")
    assert not service.is_active()


def test_the_deadline_ends_the_wait(set_up: SetUp, gguf: Path) -> None:
    service = set_up(gguf)
    service.start(list[str]().append)
    with pytest.raises(ServiceFailed, match="not every model was loaded within 0 s"):
        wait_until_loaded(service, list[str]().append, deadline_s=0)


def test_a_node_without_models_serves_at_once(set_up: SetUp) -> None:
    service = set_up(None)
    service.start(list[str]().append)
    wait_until_loaded(service, list[str]().append, deadline_s=PATIENCE_S)
    assert service.is_active()


def test_a_program_that_is_not_there_is_told(set_up: SetUp) -> None:
    service = set_up(None)
    lost = type(service)(type(service.subject)(service.subject.locations, Path("/opt/nothing/viiwork")))
    with pytest.raises(ServiceFailed, match="cannot be started"):
        lost.start(list[str]().append)


def test_the_pid_of_another_program_is_not_taken_for_the_node(set_up: SetUp) -> None:
    service = set_up(None)
    service.subject.locations.state.mkdir(parents=True, exist_ok=True)
    (service.subject.locations.state / "viiwork.pid").write_text(f'{{"pid":{os.getpid()},"began":1.0}}')
    assert not service.is_active()
    told = list[str]()
    service.stop(told.append)
    assert told == []
