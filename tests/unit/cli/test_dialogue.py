"""What a person is asked, and what comes of the answers, which are prepared here."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import pytest

from viiwork_core import FoundModel, Vendor
from viiwork_core.cli import dialogue
from viiwork_core.cli.dialogue import Dialogue, only_routable
from viiwork_core.cli.opinion import Opinion, opinion
from viiwork_core.cli.prompts import Check, Prompts
from viiwork_core.engines.gpus.gpu import Gpu
from viiwork_core.registry.entry_points import load_plugins
from viiwork_core.registry.registry import Registry
from viiwork_core.security.join_code import JoinCode, encode
from viiwork_core.setup.answers import Answers, ApiAnswer, MeshAnswer
from viiwork_core.setup.hardware import GIB, Hardware
from viiwork_core.setup.layout import Line
from viiwork_core.setup.meeting import Meeting
from viiwork_core.setup.neighbours import Neighbour, Surroundings
from viiwork_core.setup.preflight import Wanted, taken
from viiwork_core.setup.proposal import Proposal
from viiwork_core.setup.scan import Recognised, Scan

T = TypeVar("T")

CARDS = tuple(Gpu(index, Vendor.NVIDIA, memory_total=24 * 1024) for index in range(2))
MACHINE = Hardware(Vendor.NVIDIA, CARDS, 32 * GIB, 4)


class Prepared(Prompts):
    """Answers in their order. One that the check refuses is noted, and the next one is tried, as a person would."""

    def __init__(self, *answers: str | bool) -> None:
        self.answers = list(answers)
        self.refused = list[str]()

    def text(self, question: str, default: str = "", check: Check = lambda _: "") -> str:
        while True:
            answer = str(self.answers.pop(0)) or default
            said = check(answer)
            if not said:
                return answer
            self.refused.append(said)

    def secret(self, question: str, check: Check = lambda _: "") -> str:
        return self.text(question, "", check)

    def choose(self, question: str, choices: Sequence[tuple[str, T]], default: int = 0) -> T:
        wanted = self.answers.pop(0)
        titles = [title for title, _ in choices]
        assert wanted in titles, f"{wanted} is not offered: {titles}"
        return choices[titles.index(str(wanted))][1]

    def tick(self, question: str, choices: Sequence[tuple[str, T]]) -> list[T]:
        wanted = str(self.answers.pop(0)).split()
        return [value for title, value in choices if title.split()[0] in wanted]

    def agree(self, question: str, *, default: bool) -> bool:
        return bool(self.answers.pop(0))


@pytest.fixture(scope="module")
def registry() -> Registry:
    return load_plugins({})


def found(name: str, size: float) -> Recognised:
    return Recognised("llamacpp", FoundModel(name, Path(f"/m/{name}.gguf"), int(size * GIB), "", 131072, 65536))


SCANNED = Scan(Path("/m"), (found("large", 15), found("small", 4)))


def none_refused(lines: Sequence[Line]) -> Opinion:
    return Opinion()


def only_pairs(lines: Sequence[Line]) -> Opinion:
    return Opinion({line.name: ["takes two cards"] for line in lines if len(line.gpus) != 2})


def laid_out(registry: Registry, *answers: str | bool, judge=none_refused) -> tuple[tuple[Line, ...], Prepared]:  # type: ignore[no-untyped-def]  # a test's
    prompts = Prepared(*answers)
    lines = Dialogue(prompts, registry).layout(SCANNED, MACHINE, judge)
    assert prompts.answers == []
    return lines, prompts


def test_what_is_proposed_can_be_accepted(registry: Registry) -> None:
    lines, _ = laid_out(registry, "large small", "", "tiny", "Accept this layout")
    assert [(line.name, line.gpus) for line in lines] == [("large", (0,)), ("tiny", (1,))]


def test_a_name_twice_is_asked_again(registry: Registry) -> None:
    lines, prompts = laid_out(registry, "large small", "a", "a", "b c", "b", "Accept this layout")
    assert [line.name for line in lines] == ["a", "b"]
    assert prompts.refused == ["another model has that name", "must be 1 to 128 characters without white space"]


def test_a_model_can_be_dropped(registry: Registry) -> None:
    lines, _ = laid_out(registry, "large small", "", "", "Drop large", "Accept this layout")
    assert [line.name for line in lines] == ["small"]
    assert laid_out(registry, "small", "", "Drop small", "Accept this layout")[0] == ()


def test_each_figure_of_a_line_can_be_changed(registry: Registry) -> None:
    answers = ("large", "", "Change large", "big", "x", "0", "4096", "", "1,a", "1, 0", "2", "Accept this layout")
    (line,), prompts = laid_out(registry, *answers)
    assert (line.name, line.context, line.parallel, line.gpus, line.gpus_per_backend) == ("big", 4096, 2, (1, 0), 2)
    assert len(prompts.refused) == 3
    assert line.on_card


def test_a_layout_with_a_refused_line_cannot_be_accepted(
    registry: Registry, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(AssertionError, match="Accept this layout is not offered"):
        laid_out(registry, "large", "", "Change large", "", "", "", "0", "Accept this layout", judge=only_pairs)
    change = ("Change small", "", "", "", "0,1", "2")
    answers = ("large small", "", "", "Drop large", *change, "Accept this layout")
    (line,), _ = laid_out(registry, *answers, judge=only_pairs)
    assert line.gpus == (0, 1)
    assert "refused: takes two cards" in capsys.readouterr().out


def test_what_was_refused_is_looked_at_again(registry: Registry) -> None:
    """A program that was missing may have been installed from another terminal."""
    verdicts = [Opinion({"small": ["there is no program"]}), Opinion()]
    lines, _ = laid_out(registry, "small", "", "Look again", "Accept this layout", judge=lambda lines: verdicts.pop(0))
    assert [line.name for line in lines] == ["small"]


def test_another_port_for_one_that_is_not_free(registry: Registry) -> None:
    with socket.create_server(("127.0.0.1", 0)) as held:
        port = held.getsockname()[1]
        busy = taken([Wanted("tcp", "127.0.0.1", port, "the API", "api.port")])
        prompts = Prepared("0", "65536", "x", str(port), "")
        chosen = Dialogue(prompts, registry).port(busy)
        assert chosen > port
        assert taken([replace(busy[0], port=chosen)]) == []
        assert prompts.refused[:3] == ["must be a whole number of 1 to 65535"] * 3
        assert f"tcp {port} on 127.0.0.1 cannot be had for the API" in prompts.refused[3]


def test_the_folder_is_asked_for_until_it_is_one(registry: Registry, tmp_path: Path) -> None:
    prompts = Prepared("/no/such", str(tmp_path))
    scanned = Dialogue(prompts, registry).models(Answers(), {})
    assert scanned is not None
    assert scanned.folder == tmp_path
    assert Dialogue(Prepared(""), registry).models(Answers(), {}) is None


NEAR = Surroundings((Neighbour("cellar", "192.0.2.7:7946", "mdns", "secured", ("m",), 1),), {"tailscale": "no daemon"})


def test_a_mesh_is_joined_by_its_code(registry: Registry, capsys: pytest.CaptureFixture[str]) -> None:
    code = encode(JoinCode("192.0.2.7:7946", bytes(32)))
    prompts = Prepared("Join a mesh by its join code", code[:-3], code, "home")
    answer = Dialogue(prompts, registry).mesh(MeshAnswer(), NEAR)
    assert (answer.mode, answer.code, answer.name, answer.network) == ("join", code, "home", "lan")
    assert len(prompts.refused) == 1
    assert prompts.refused[0].startswith("the join code is cut off: its end is missing; copy the whole line")
    out = capsys.readouterr().out
    assert "cellar (192.0.2.7:7946): secured mesh of 1, 1 model" in out
    assert "tailscale sees nobody: no daemon" in out
    assert code not in out


@pytest.mark.parametrize(
    ("title", "mode"),
    [
        ("Start a new mesh with a secret", "secured"),
        ("Start an open mesh, without one", "open"),
        ("No mesh: this machine alone", "alone"),
    ],
)
def test_the_other_choices(registry: Registry, title: str, mode: str) -> None:
    assert Dialogue(Prepared(title), registry).mesh(MeshAnswer(), Surroundings()).mode == mode


def test_the_mesh_of_before_can_be_kept(registry: Registry) -> None:
    kept = Meeting("secured", bytes(32), name="home", kept={"name": "home"})
    prompts = Prepared("Keep the secured mesh home")
    dialogue = Dialogue(prompts, registry)
    assert dialogue.mesh(MeshAnswer(name="other"), NEAR, kept).mode == "keep"
    assert dialogue.address(kept) is kept
    with pytest.raises(AssertionError, match="is not offered"):
        Dialogue(Prepared("Keep the secured mesh home"), registry).mesh(MeshAnswer(), NEAR)


def test_two_models_of_one_name_are_told_apart(registry: Registry) -> None:
    pair = [Recognised("llamacpp", FoundModel("m", Path(f"/m/{one}/m.gguf"), GIB, "llama")) for one in "ab"]
    offered = list[str]()

    class Reads(Prepared):
        def tick(self, question: str, choices: Sequence[tuple[str, T]]) -> list[T]:
            offered.extend(title for title, _ in choices)
            return []

    Dialogue(Reads("Accept this layout"), registry).layout(
        Scan(Path("/m"), (*pair, found("small", 0.002))), MACHINE, none_refused
    )
    assert offered == ["m 1.0 GiB a/m.gguf", "m 1.0 GiB b/m.gguf", "small 2 MiB "]


def test_caches_are_shared_in_a_secured_mesh_only(registry: Registry) -> None:
    line = Line("m", "llamacpp", found("m", 1).model, 8192)
    dialogue = Dialogue(Prepared(True, "house"), registry)
    assert dialogue.share([line], Meeting("open")) == (line,)
    assert dialogue.share([line], Meeting("secured", bytes(32)))[0].share == "house"
    assert Dialogue(Prepared(False), registry).share([line], Meeting("secured", bytes(32))) == (line,)


def test_the_opinion_is_that_of_loader_and_engine(registry: Registry, tmp_path: Path) -> None:
    def of(*lines: Line) -> Opinion:
        path, meeting = tmp_path / "viiwork.yaml", Meeting("alone")
        return opinion(Proposal(path, "attic", tmp_path, ApiAnswer(), meeting, lines), MACHINE, {}, registry)

    line = Line("m", "llamacpp", found("m", 1).model, 8192)
    twice = of(line, line)
    assert twice.refusals == {"m": ["models[1].name: is the name of models[0] too; rename one"]}
    gone = of(line)
    assert "is not a file" in gone.refusals["m"][0]
    large = of(Line("m", "llamacpp", found("m", 60).model, 8192, gpus=(0,), on_card=True))
    assert large.notes["m"][0].startswith("it may not fit: it needs ")


@pytest.mark.parametrize(
    ("addresses", "only"),
    [
        (["127.0.0.1", "::1", "192.168.1.7", "fe80::1%eth0", "00:11:22:33:44:55"], "192.168.1.7"),
        (["127.0.0.1", "192.168.1.7", "fd00::7"], "192.168.1.7"),
        (["127.0.0.1", "169.254.3.4", "fd00::7"], "fd00::7"),
        (["192.168.1.7", "10.0.0.7"], ""),
        (["127.0.0.1", "::1"], ""),
    ],
)
def test_the_only_address_that_others_reach(addresses: list[str], only: str) -> None:
    assert only_routable(addresses) == only


def test_without_a_default_route_the_only_address_is_proposed(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dialogue, "usual_address", lambda: "")
    monkeypatch.setattr(dialogue, "_addresses", lambda: iter(["127.0.0.1", "192.168.1.7"]))
    meeting = Dialogue(Prepared(""), registry).address(Meeting("secured", network="seeds"))
    assert meeting.advertise == "192.168.1.7"
