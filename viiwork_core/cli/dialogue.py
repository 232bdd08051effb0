"""The dialogue of `viiwork init`: what a person is asked, step by step."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Final

import psutil
from pydantic import TypeAdapter, ValidationError

from viiwork_core.cli.opinion import Opinion
from viiwork_core.cli.prompts import Prompts, as_check, say
from viiwork_core.config.values import HostName, OwnIp, Word
from viiwork_core.contracts.engine import Engine
from viiwork_core.errors import ConfigError
from viiwork_core.registry.registry import Registry
from viiwork_core.security.join_code import decode
from viiwork_core.setup.answers import Answers, MeshAnswer
from viiwork_core.setup.hardware import Hardware
from viiwork_core.setup.layout import Layout, Line, gib, names, propose
from viiwork_core.setup.meeting import SEEDS, Meeting, network_of, usual_address
from viiwork_core.setup.neighbours import Surroundings
from viiwork_core.setup.preflight import Wanted, port_finding, taken
from viiwork_core.setup.scan import Recognised, Scan, scan
from viiwork_core.setup.selection import on_cpu, sharing
from viiwork_core.setup.service import Service

PORT_MAX: Final = 65535
Judge = Callable[[Sequence[Line]], Opinion]


class Dialogue:
    """One conversation with one person. All methods raise Cancelled, and Back."""

    def __init__(self, prompts: Prompts, registry: Registry) -> None:
        self._ask = prompts
        self._registry = registry

    def port(self, busy: Sequence[Wanted]) -> int:
        """Another one for a use, in place of one that cannot be had everywhere it is wanted."""
        first = busy[0]
        free = (port for port in range(first.port + 1, PORT_MAX + 1) if not taken(_at_port(busy, port)))
        question = f"Another port for {first.use}:"
        return int(self._ask.text(question, str(next(free, "")), lambda text: _port_that_is_free(text, busy)))

    def models(self, answers: Answers, engines: dict[str, type[Engine]]) -> Scan | None:
        """The folder of models, and what lies in it."""
        folder = answers.models_dir
        while True:
            if folder is None:
                say("Where are your models? One folder, looked through three levels deep. Empty: none.")
                text = self._ask.text("Models folder:")
                if not text.strip():
                    return None
                folder = Path(text.strip())
            try:
                return scan(folder, engines)
            except ConfigError as error:
                say(f"{error.message}; {error.remedy}")
                folder = None

    def layout(self, scanned: Scan, hardware: Hardware, judge: Judge) -> tuple[Line, ...]:
        """Which models, under which names, where."""
        found = self._served(scanned)
        called = self._called(found)
        layout = propose(found, hardware, on_cpu=on_cpu(self._registry), called=called)
        return self._accepted(layout, hardware, judge)

    def _served(self, scanned: Scan) -> list[Recognised]:
        choices = [(_title(one, scanned), one) for one in scanned.usable]
        return self._ask.tick("Which of them to serve?", choices) if choices else []

    def _called(self, found: Sequence[Recognised]) -> list[str]:
        if found:
            say("Under which names? Use the same one on every machine that serves a model: they share its requests.")
        called = list[str]()
        for one, name in zip(found, names(found), strict=True):
            say(str(one.model.path), indent="  ")
            called.append(self._ask.text("Name:", name, _word_not_in(called)))
        return called

    def _accepted(self, layout: Layout, hardware: Hardware, judge: Judge) -> tuple[Line, ...]:
        """The layout as the person wants it. One with a line that the node would refuse cannot be accepted."""
        lines, left_out = list(layout.lines), dict(layout.left_out)
        while True:
            opinion = judge(lines)
            show_layout(lines, left_out, opinion)
            # What is missing can be installed meanwhile, from another terminal.
            first = ("Look again", "again") if opinion.refusals else ("Accept this layout", "accept")
            choices: list[tuple[str, str]] = [first]
            choices += [(f"Change {line.name}", f"+{line.name}") for line in lines]
            choices += [(f"Drop {line.name}", f"-{line.name}") for line in lines]
            done = self._ask.choose("The layout:", choices)
            if done == "accept":
                return tuple(lines)
            if done == "again":
                continue
            place = next(index for index, line in enumerate(lines) if line.name == done[1:])
            if done.startswith("-"):
                del lines[place]
            else:
                lines[place] = self._changed(
                    lines[place], hardware, [line.name for line in lines if line.name != done[1:]]
                )

    def _changed(self, line: Line, hardware: Hardware, others: Sequence[str]) -> Line:
        name = self._ask.text("Name:", line.name, _word_not_in(others))
        context = int(self._ask.text("Tokens of context per slot:", str(line.context), _whole))
        parallel = int(self._ask.text("Slots of each backend:", str(line.parallel), _whole))
        gpus, each = line.gpus, line.gpus_per_backend
        if hardware.cards:
            text = self._ask.text("GPUs, such as 0,1 (empty: processor):", ",".join(map(str, gpus)), as_check(_indices))
            gpus = _indices(text)
            each = min(each, len(gpus)) or 1
            if len(gpus) > 1:
                each = int(self._ask.text("GPUs of each backend:", str(each), _whole))
        on_card = hardware.has_cards and bool(gpus)
        return replace(
            line, name=name, context=context, parallel=parallel, gpus=gpus, gpus_per_backend=each, on_card=on_card
        )

    def mesh(self, answer: MeshAnswer, seen: Surroundings, earlier: Meeting | None = None) -> MeshAnswer:
        """Which mesh, and by what. `earlier`: that which the machine is in, and may stay in."""
        for one in seen.neighbours:
            say(one.text(), indent="  ")
        for name, why in seen.silent.items():
            say(f"{name} sees nobody: {why}", indent="  ")
        if not seen.neighbours:
            say("No node answers nearby.", indent="  ")
        choices = [
            ("Join a mesh by its join code", "join"),
            ("Start a new mesh with a secret", "secured"),
            ("Start an open mesh, without one", "open"),
            ("No mesh: this machine alone", "alone"),
        ]
        if earlier is not None:
            choices.insert(0, (f"Keep the {earlier.mode} mesh {earlier.name}", "keep"))
        mode = self._ask.choose("The mesh:", choices, 0 if seen.neighbours or earlier is not None else 1)
        if mode == "keep":
            return MeshAnswer(mode="keep")
        given: dict[str, object] = {"mode": mode}
        if mode == "join":
            say("`viiwork join-code` on a machine of the mesh prints the code. It is not shown here.")
            given["code"] = self._ask.secret("Join code:", as_check(decode))
            given["network"] = answer.network or self._network(decode(str(given["code"])).host, seen)
            given["name"] = self._ask.text("Name of the mesh:", answer.name, as_check(_reader(Word)))
        if mode == "open":
            say("Anybody who reaches the port of an open mesh can join it, and read what is sent.")
        return MeshAnswer.model_validate({**answer.model_dump(exclude={"mode", "code"}), **given})

    def _network(self, host: str, seen: Surroundings) -> str | None:
        """That in which the code's member was seen: it finds others too when that one is down. None: it was not."""
        for one in seen.neighbours:
            if one.host == host:
                return network_of(one.source, self._registry)
        return None

    def address(self, meeting: Meeting) -> Meeting:
        """Where others reach this machine, when nothing that is installed can tell."""
        if meeting.kept is not None or meeting.mode == "alone" or meeting.network != SEEDS or meeting.seeds:
            return meeting
        say("No discovery finds other nodes here: they join by code. At which address do they reach this machine?")
        # Without a default route nothing tells which address is meant, but there may be one only.
        default = meeting.advertise or usual_address() or only_routable(_addresses())
        return replace(meeting, advertise=self._ask.text("Address:", default, as_check(_reader(OwnIp))))

    def share(self, lines: Sequence[Line], meeting: Meeting) -> tuple[Line, ...]:
        """Whether caches move between hosts."""
        able = [line for line in lines if line.engine in sharing(self._registry)]
        if meeting.mode != "secured" or not able:
            return tuple(lines)
        say(
            "kv_share: hosts of one group hand each other the caches of conversations, so that a turn on another host "
            "need not be read again. It writes to disk and to the network."
        )
        if not self._ask.agree("Share caches with other hosts?", default=False):
            return tuple(lines)
        group = self._ask.text("Group, the same on all those hosts:", meeting.name, as_check(_reader(Word)))
        return tuple(replace(line, share=group) if line in able else line for line in lines)

    def node(self, name: str) -> str:
        """What this machine is called."""
        return self._ask.text("Name of this node:", name, as_check(_reader(HostName)))

    def service(self, kinds: Sequence[type[Service]]) -> type[Service]:
        """What keeps the node running. Where there is one way only, nobody is asked."""
        if len(kinds) == 1:
            return kinds[0]
        for kind in kinds:
            say(f"{kind.name}: {kind.description}", indent="  ")
        return self._ask.choose("What keeps the node running?", [(kind.name, kind) for kind in kinds])

    def go_on(self) -> bool:
        """In spite of problems."""
        return self._ask.agree("Go on all the same?", default=False)

    def yes(self, *, start: bool) -> bool:
        """The one question after which something is changed."""
        question = "Write these files and start the node?" if start else "Write these files?"
        return self._ask.agree(question, default=False)


def _title(one: Recognised, scanned: Scan) -> str:
    """A model to choose. Where two have one name, where it lies says more than what it is."""
    alike = sum(other.model.name == one.model.name for other in scanned.usable) > 1
    about = one.model.path.relative_to(scanned.folder) if alike else one.model.kind
    return f"{one.model.name} {gib(one.model.bytes)} {about}"


def show_layout(lines: Sequence[Line], left_out: Mapping[str, str], opinion: Opinion) -> None:
    """Each line with what it needs, and what is wrong with it."""
    for line in lines:
        say(line.text(), indent="  ")
        say(f"needs {line.need.text()}", indent="    ")
        for reason in opinion.refusals.get(line.name, ()):
            say(f"refused: {reason}", indent="    ")
        for note in opinion.notes.get(line.name, ()):
            say(f"note: {note}", indent="    ")
    for name, why in left_out.items():
        say(f"left out: {name}: {why}", indent="  ")
    if not lines:
        say("no model", indent="  ")


def _reader(kind: Any) -> Callable[[str], object]:
    adapter: TypeAdapter[Any] = TypeAdapter(kind)

    def read(text: str) -> object:
        try:
            return adapter.validate_python(text)
        except ValidationError as error:
            raise ValueError(error.errors()[0]["msg"].removeprefix("Value error, ")) from None

    return read


def _word_not_in(others: Sequence[str]) -> Callable[[str], str]:
    check = as_check(_reader(Word))
    return lambda text: check(text) or ("another model has that name" if text in others else "")


def _whole(text: str) -> str:
    return (
        "" if text.isascii() and text.isdigit() and 0 < int(text) < 1 << 31 else "must be a whole number of 1 or more"
    )


def _at_port(ports: Sequence[Wanted], port: int) -> list[Wanted]:
    return [replace(one, port=port) for one in ports]


def _port_that_is_free(text: str, busy: Sequence[Wanted]) -> str:
    if _whole(text) or int(text) > PORT_MAX:
        return f"must be a whole number of 1 to {PORT_MAX}"
    why = [port_finding(one).what for one in taken(_at_port(busy, int(text)))]
    return "; ".join(why)


def _indices(text: str) -> tuple[int, ...]:
    words = text.replace(",", " ").split()
    if not all(word.isascii() and word.isdigit() for word in words):
        raise ValueError("write the indices of cards, such as 0,1")
    return tuple(dict.fromkeys(map(int, words)))


def _addresses() -> Iterator[str]:
    """All addresses of this machine's interfaces, those of the network cards themselves among them."""
    return (one.address for family in psutil.net_if_addrs().values() for one in family)


def only_routable(addresses: Iterable[str]) -> str:
    """The one IPv4 address that other machines can reach, else the one IPv6 address; empty: there is none, or several.

    What is no IP address is passed over.
    """
    found: dict[int, set[str]] = {4: set(), 6: set()}
    for text in addresses:
        with suppress(ValueError):
            address = ip_address(text)
            if not (address.is_loopback or address.is_link_local or address.is_unspecified):
                found[address.version].add(text)
    reachable = found[4] or found[6]
    return reachable.pop() if len(reachable) == 1 else ""
