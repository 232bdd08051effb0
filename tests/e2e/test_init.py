"""`viiwork init` as people and scripts run it, with a real llama-server, below a folder in place of /."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx
import pytest
import yaml
from hosts import Host, Hosts
from terminal import CTRL_C, CTRL_U, DOWN, ENTER, SPACE, UP, Terminal, terminal

VIIWORK = Path(sys.executable).with_name("viiwork")

pytestmark = pytest.mark.skipif(not VIIWORK.is_file(), reason="the viiwork command is not installed")


def environment(home: Path) -> dict[str, str]:
    """A clean account's."""
    path = os.pathsep.join((str(VIIWORK.parent), os.environ.get("PATH", "")))
    return {"HOME": str(home), "PATH": path, "LANG": "C.UTF-8", "VIIWORK_PLUGINS": "llamacpp,mlx"}


@pytest.fixture
def account(tmp_path: Path, gguf: Path, llama_server: None) -> Path:
    """A home, with a models folder in it."""
    models = tmp_path / "models"
    models.mkdir()
    shutil.copy(gguf, models / "Tiny-1B-Q4_0.gguf")
    (models / "Half-00001-of-00002.gguf").write_bytes(b"GGUF")
    os.mkfifo(models / "pipe.gguf")
    return tmp_path


def free_ports(count: int) -> list[int]:
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [int(one.getsockname()[1]) for one in held]
    for one in held:
        one.close()
    return ports


def run(account: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(VIIWORK), *arguments],
        env=environment(account),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=110,
        check=False,
    )


def written(root: Path) -> list[str]:
    """What lies below a root, but the lock, which says nothing of a node."""
    return sorted(str(one.relative_to(root)) for one in root.rglob("*") if one.is_file() and one.name != "lock")


def config_file(root: Path) -> Path:
    return next(root.rglob("viiwork.yaml"))


def answered(account: Path, **more: object) -> Path:
    api, gossip = free_ports(2)
    answers = {
        "models_dir": str(account / "models"),
        "node": {"name": "attic"},
        "api": {"port": api},
        "mesh": {"mode": "secured", "network": "seeds", "advertise": "127.0.0.1", "bind_port": gossip},
        "models": [{"path": str(account / "models" / "Tiny-1B-Q4_0.gguf"), "context": 4096}],
        "kv_share": "house",
        "service": "process",
        "wait": 100,
    }
    file = account / "answers.yaml"
    file.write_text(yaml.safe_dump(answers | more))
    return file


@contextmanager
def uninstalled(account: Path, root: Path) -> Iterator[None]:
    try:
        yield
    finally:
        gone = run(account, "uninstall", "--yes", "--force", "--root", str(root))
    assert gone.returncode == 0, gone.stdout


@pytest.mark.timeout(300)
def test_answers_end_in_a_node_that_serves(account: Path) -> None:
    root = account / "root"
    with uninstalled(account, root):
        done = run(account, "init", "--answers", str(answered(account)), "--root", str(root))
        assert done.returncode == 0, done.stdout
        config = yaml.safe_load(config_file(root).read_text())
        assert config["models"] == [
            {
                "name": "tiny-1b",
                "engine": "llamacpp",
                "path": str(account / "models" / "Tiny-1B-Q4_0.gguf"),
                "context": 4096,
                "parallel": 2,
                "kv_share": {"group": "house", "min_tokens": 2048},
            }
        ]
        secret = (root / config_file(root).parent / "viiwork.env").read_text().partition("=")[2].strip()
        assert secret
        assert secret not in done.stdout
        url = f"http://127.0.0.1:{config['api']['port']}"
        assert f"{url}/v1" in done.stdout
        assert "viiwork join-code" in done.stdout
        body = {"model": "tiny-1b", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4}
        answer = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=60, trust_env=False)
        assert answer.status_code == httpx.codes.OK, answer.text
        again = run(account, "init", "--answers", str(account / "answers.yaml"), "--root", str(root))
        assert (again.returncode, "this machine is set up" in again.stdout) == (1, True)
    assert list(root.rglob("viiwork.yaml")) == []
    assert (account / "models" / "Tiny-1B-Q4_0.gguf").is_file()


def on(host: Host, account: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    with host.inside():
        return run(account, *arguments)


@pytest.mark.timeout(300)
def test_a_second_machine_joins_by_code(account: Path, pair: Hosts) -> None:
    """Both are set up by answers alone; what travels between them is the line that `viiwork join-code` prints."""
    first, second = account / "first", account / "second"
    gossip, port = pair.first.free_port(), pair.second.free_port()
    found = {"mode": "secured", "network": "seeds", "advertise": pair.first.address, "bind_port": gossip}
    joining: dict[str, object] = {"mode": "join", "code_file": str(account / "code")}
    joining["bind_port"] = pair.second.free_port()
    if pair.second.namespace is None:
        # By its route this one machine would find the address of the first.
        joining["advertise"] = pair.second.address
    machines = ((pair.first, first, "attic", found), (pair.second, second, "cellar", joining))
    with ExitStack() as stack:
        for host, root, name, mesh in machines:
            api = {"host": host.address, "port": port}
            answers = answered(account, node={"name": name}, mesh=mesh, api=api, kv_share=None)
            stack.enter_context(uninstalled(account, root))
            done = on(host, account, "init", "--answers", str(answers), "--root", str(root))
            assert done.returncode == 0, done.stdout
            if root == first:
                code = on(host, account, "join-code", "--json", "--config", str(config_file(root)))
                (account / "code").write_text(json.loads(code.stdout[code.stdout.index("{") :])["code"])
        assert (account / "code").read_text() not in done.stdout
        with pair.second.inside():
            told = httpx.get(f"http://{pair.second.address}:{port}/v1/cluster", trust_env=False).json()
        assert (told["mesh"], {one["node"] for one in told["members"]}) == ("secured", {"attic", "cellar"})


def test_a_dry_run_shows_everything_and_changes_nothing(account: Path) -> None:
    root = account / "root"
    done = run(account, "init", "--answers", str(answered(account)), "--dry-run", "--root", str(root))
    assert done.returncode == 0, done.stdout
    assert "VIIWORK_MESH_SECRET=***" in done.stdout
    assert "group: house" in done.stdout
    assert "part 2 of 2 is missing" in " ".join(done.stdout.split())
    assert "pipe.gguf is a pipe" in " ".join(done.stdout.split())
    assert not root.exists()


def test_what_the_node_would_refuse_is_told_and_nothing_is_written(account: Path) -> None:
    root = account / "root"
    path = str(account / "models" / "Tiny-1B-Q4_0.gguf")
    models = [{"path": path, "name": "a", "options": {"binary": "/no/such"}}, {"path": path, "name": "a"}]
    done = run(account, "init", "--answers", str(answered(account, models=models)), "--root", str(root))
    assert done.returncode == 1
    assert "models[1].name: is the name of models[0] too; rename one" in " ".join(done.stdout.split())
    models[1]["name"] = "b"
    done = run(account, "init", "--answers", str(answered(account, models=models)), "--root", str(root))
    assert done.returncode == 1
    assert "is not an executable file" in " ".join(done.stdout.split())
    assert written(root) == []


def test_without_a_terminal_and_without_answers_it_says_what_to_give(account: Path) -> None:
    done = run(account, "init", "--root", str(account / "root"))
    assert done.returncode == 1
    assert "there is no terminal to ask questions on" in done.stdout
    assert "--answers FILE" in done.stdout


def test_a_code_that_is_none_is_told_and_not_shown(account: Path) -> None:
    mesh = {"mode": "join", "code": "viiwork1-hidden"}
    done = run(account, "init", "--answers", str(answered(account, mesh=mesh)), "--root", str(account / "root"))
    assert done.returncode == 1
    assert "the join code is" in done.stdout
    assert "hidden" not in done.stdout
    assert written(account / "root") == []


@contextmanager
def asked(account: Path, *arguments: str) -> Iterator[Terminal]:
    argv = [str(VIIWORK), "init", "--root", str(account / "root"), *arguments]
    with terminal(argv, environment(account), columns=40) as shown:
        yield shown


def past_the_preflight(shown: Terminal) -> None:
    """Somebody else on this machine may have the ports: then others are offered."""
    while shown.expect("Models folder:", "Another port for") != "Models folder:":
        shown.press(ENTER)


def to_the_layout(shown: Terminal, account: Path) -> None:
    past_the_preflight(shown)
    shown.press(f"{account / 'nowhere'}{ENTER}")
    shown.expect("does not exist")
    shown.expect("Models folder:")
    shown.press(f"{account / 'models'}{ENTER}")
    shown.expect("part 2 of 2 is missing")
    shown.expect("Which of them to serve?")
    shown.press(ENTER)
    shown.expect("Name:")
    shown.press(f"{CTRL_U}tiny{ENTER}")


def test_a_conversation_in_forty_columns(account: Path) -> None:
    with asked(account, "--dry-run") as shown:
        to_the_layout(shown, account)
        shown.expect("tiny (llamacpp): processor, 2 slots of 32768 tokens")
        shown.expect("The layout:")
        shown.press(DOWN + ENTER)
        shown.expect("Name:")
        shown.press(ENTER)
        shown.expect("Tokens of context per slot:")
        shown.press(f"{CTRL_U}none{ENTER}")
        shown.expect("must be a whole number")
        shown.expect("Tokens of context per slot:")
        shown.press(f"{CTRL_U}2048{ENTER}")
        shown.expect("Slots of each backend:")
        shown.press(f"{CTRL_U}3{ENTER}")
        shown.expect("tiny (llamacpp): processor, 3 slots of 2048 tokens")
        shown.expect("The layout:")
        shown.press(ENTER)
        shown.expect("No node answers nearby.")
        shown.expect("The mesh:")
        shown.press(ENTER)
        shown.expect("At which address")
        shown.expect("Address:")
        shown.press(f"{CTRL_U}127.0.0.1{ENTER}")
        shown.expect("Share caches with other hosts? (y/N)")
        shown.press(f"perhaps{ENTER}")
        shown.expect("write yes, no or back")
        shown.expect("Share caches with other hosts? (y/N)")
        shown.press(f"y{ENTER}")
        shown.expect("Group, the same on all those hosts:")
        shown.press(f"{CTRL_U}house{ENTER}")
        shown.expect("Name of this node:")
        shown.press(f"{CTRL_U}attic{ENTER}")
        if shown.expect("What keeps the node running?", "What will be written") != "What will be written":
            shown.press(ENTER)
            shown.expect("What will be written")
        shown.expect("name: attic")
        shown.expect("group: house")
        shown.expect("VIIWORK_MESH_SECRET=***")
        shown.expect("A dry run: nothing was changed.")
        assert shown.ended() == 0
    assert not (account / "root").exists()


def test_each_kind_of_question_leads_back_to_the_one_before(account: Path) -> None:
    with asked(account, "--dry-run") as shown:
        to_the_layout(shown, account)
        shown.expect("The layout:")
        shown.press(UP + ENTER)  # round the list's end: the last of a list
        shown.expect("Back to the question before")
        shown.expect("Models folder:")
        shown.expect("Which of them to serve?")
        shown.expect("Name:")
        shown.press(f"back{ENTER}")  # behind the name that is proposed
        shown.expect("Back to the question before")
        shown.expect("Which of them to serve?")
        shown.press(UP + SPACE + ENTER)
        shown.expect("Back to the question before")
        shown.expect("does not exist")
        shown.expect("Models folder:")
        shown.press(f"{account / 'models'}{ENTER}")
        shown.expect("Which of them to serve?")
        shown.press(ENTER)
        shown.expect("Name:")
        shown.press(ENTER)
        shown.expect("The layout:")
        shown.press(ENTER)
        shown.expect("The mesh:")
        shown.press(ENTER)
        shown.expect("Address:")
        shown.press(f"{CTRL_U}127.0.0.1{ENTER}")
        shown.expect("Share caches with other hosts? (y/N)")
        shown.press(f"back{ENTER}")
        shown.expect("Back to the question before")
        shown.expect("The mesh: Start a new mesh with a secret")
        shown.expect("Address:")
        shown.press(CTRL_C)
        assert shown.ended() == 1
    assert not (account / "root").exists()


def test_a_name_that_is_none_is_asked_again(account: Path, gguf: Path) -> None:
    shutil.copy(gguf, account / "models" / "Other.gguf")
    with asked(account, "--dry-run", "--models", str(account / "models")) as shown:
        while shown.expect("Which of them to serve?", "Another port for") != "Which of them to serve?":
            shown.press(ENTER)
        shown.press(SPACE + ENTER)  # not the first
        shown.expect("Name:")
        shown.press(f"{CTRL_U}a b{ENTER}")
        shown.expect("must be 1 to 128 characters")
        shown.press(CTRL_C)
        assert shown.ended() == 1
        shown.expect("Stopped: nothing was changed.")


def test_a_script_stops_at_a_port_that_is_not_free(account: Path) -> None:
    held = socket.create_server(("127.0.0.1", 0))
    taken = held.getsockname()[1]
    answers = account / "ports.yaml"
    answers.write_text(yaml.safe_dump({"api": {"host": "127.0.0.1", "port": taken}}))
    with held:
        done = run(account, "init", "--answers", str(answers), "--root", str(account / "root"))
        assert (done.returncode, f"tcp {taken} on 127.0.0.1 cannot be had" in done.stdout) == (1, True)
    assert written(account / "root") == []


@pytest.mark.parametrize("end", ["key", "term", "gone"])
def test_who_leaves_has_changed_nothing(account: Path, end: str) -> None:
    with asked(account) as shown:
        to_the_layout(shown, account)
        shown.expect("The layout:")
        if end == "key":
            shown.press(CTRL_C)
        elif end == "term":
            shown.process.send_signal(signal.SIGTERM)
        else:
            shown.hang_up()
        assert shown.ended() in {"key": {1}, "term": {-signal.SIGTERM}, "gone": {1, -signal.SIGHUP}}[end]
    assert written(account / "root") == []


def test_the_second_of_two_wizards_says_so(account: Path) -> None:
    with asked(account) as shown:
        past_the_preflight(shown)
        second = run(account, "init", "--answers", str(answered(account)), "--root", str(account / "root"))
        assert second.returncode == 1
        assert "another" in second.stdout
        shown.press(CTRL_C)
        assert shown.ended() == 1
    assert written(account / "root") == []


def test_a_machine_that_is_set_up_anew_stays_in_its_mesh(account: Path) -> None:
    """Its secret may be known to nobody else yet."""
    root = account / "root"

    def again(**answers: object) -> str:
        file = answered(account, models=[], start=False, kv_share=None, **answers)
        done = run(account, "init", "--answers", str(file), "--root", str(root), *replace)
        assert done.returncode == 0, done.stdout
        return done.stdout

    replace: tuple[str, ...] = ()
    again()
    config, secret = config_file(root), config_file(root).with_name("viiwork.env").read_text()
    mesh = yaml.safe_load(config.read_text())["mesh"]
    replace = ("--replace",)
    for unchanged in ({}, {"mode": "keep"}):
        assert "leaves" not in again(mesh=unchanged, node={"name": "cellar"})
        assert yaml.safe_load(config.read_text())["mesh"] == mesh
        assert yaml.safe_load(config.read_text())["node"]["name"] == "cellar"
        assert config.with_name("viiwork.env").read_text() == secret
    again(mesh={"mode": "secured", "network": "seeds", "advertise": "127.0.0.1"})
    assert config.with_name("viiwork.env").read_text() == secret
    assert "leaves the secured mesh default" in again(mesh={"mode": "alone"})
    with uninstalled(account, root):
        pass


def set_up_files(root: Path) -> dict[str, bytes]:
    """What the wizard has there, without what the node writes."""
    found = (one for one in written(root) if "viiwork-setup" in one or "/lib/" not in f"/{one}")
    return {one: (root / one).read_bytes() for one in found}


@pytest.mark.timeout(120)
def test_a_full_disk_leaves_the_node_of_before_running(account: Path) -> None:
    root = account / "root"
    answers = answered(account, models=[], mesh={"mode": "alone"}, kv_share=None)
    with uninstalled(account, root):
        done = run(account, "init", "--answers", str(answers), "--root", str(root))
        assert done.returncode == 0, done.stdout
        assert "1 file is written." in done.stdout
        assert f"viiwork init --replace --models DIR --root {root}" in done.stdout
        before = set_up_files(root)
        # Its own node has the ports; that is no problem for what takes its place.
        dry = run(account, "init", "--replace", "--answers", str(answers), "--root", str(root), "--dry-run")
        assert (dry.returncode, "problem" in dry.stdout) == (0, False), dry.stdout
        argv = ["sh", "-c", 'ulimit -f 0; exec "$@"', "sh", str(VIIWORK), "init", "--replace"]
        argv += ["--answers", str(answers), "--root", str(root)]
        full = subprocess.run(argv, env=environment(account), capture_output=True, text=True, timeout=60, check=False)
        assert (full.returncode, "nothing was written" in full.stderr) == (1, True), full.stdout + full.stderr
        assert set_up_files(root) == before
        url = f"http://127.0.0.1:{yaml.safe_load(config_file(root).read_text())['api']['port']}"
        assert httpx.get(f"{url}/health", trust_env=False).status_code == httpx.codes.OK


ASKS = """
from viiwork_core.cli.prompts import Prompts, as_check
from viiwork_core.security.join_code import decode
Prompts().secret("Join code:", as_check(decode))
"""


def test_what_is_wrong_with_an_answer_is_told_whole_in_a_narrow_terminal(tmp_path: Path) -> None:
    with terminal([sys.executable, "-c", ASKS], environment(tmp_path), columns=30) as shown:
        shown.expect("Join code:")
        shown.press(f"viiwork1-hidden{ENTER}")
        shown.expect("its end is missing; copy the whole line that `viiwork join-code` prints")
        shown.expect("Join code:")
        shown.press(CTRL_C)
        shown.ended()
        assert "hidden" not in shown.text
