"""The wizard: all of `viiwork init` that comes before the last yes. It looks and asks, and changes nothing."""

from __future__ import annotations

import asyncio
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path

import click

from viiwork_core.cli.dialogue import Dialogue, show_layout
from viiwork_core.cli.opinion import Opinion, opinion
from viiwork_core.cli.prompts import BACK, Back, Cancelled, Prompts, say
from viiwork_core.cli.replay import Replay
from viiwork_core.config.schema import Config, NodeConfig
from viiwork_core.contracts.capabilities import Recognizes
from viiwork_core.contracts.doctor import Finding, Level
from viiwork_core.errors import ConfigError, ViiworkError
from viiwork_core.registry.registry import Registry
from viiwork_core.setup import hardware
from viiwork_core.setup.answers import Answers
from viiwork_core.setup.hardware import Hardware
from viiwork_core.setup.installation import Installation
from viiwork_core.setup.layout import Layout, Line
from viiwork_core.setup.locations import Locations
from viiwork_core.setup.meeting import SEEDS, Meeting, arrange, earlier_meeting
from viiwork_core.setup.neighbours import Addresses, Surroundings, look_around, own_addresses
from viiwork_core.setup.preflight import Wanted, clocks, port_finding, preflight, taken, wanted
from viiwork_core.setup.proposal import Proposal
from viiwork_core.setup.scan import Scan, recognisers, scan
from viiwork_core.setup.selection import selected
from viiwork_core.setup.service import Service, Subject
from viiwork_core.setup.services import available, service
from viiwork_core.setup.written import WrittenFile


@dataclass(frozen=True)
class Wishes:
    """What stands on the command line."""

    answers: Answers
    scripted: bool
    """Nobody is asked."""

    replace: bool
    dry_run: bool


class Wizard:
    """One run, for whoever answers."""

    def __init__(self, wishes: Wishes, locations: Locations, registry: Registry, environ: Mapping[str, str]) -> None:
        self._wishes, self._answers = wishes, wishes.answers
        self._locations, self._registry, self._environ = locations, registry, environ
        self._engines = recognisers(registry)
        self._earlier = earlier_meeting(locations.config, environ) if wishes.replace else None
        self._deaf, self._own = frozenset[str](), frozenset[str]()
        self._replay = Replay(Prompts())
        self._dialogue = Dialogue(self._replay, registry)

    def decide(self, installation: Installation) -> tuple[Sequence[WrittenFile], Service, Config]:
        """What is to be written and started, after all of it was shown and a person has agreed to it.

        `installation`: what is here; only read. Raises Cancelled.
        """
        if not self._wishes.scripted:
            say(f"Answer `{BACK}` to return to the question before. Ctrl-C ends this, and changes nothing.")
        while True:
            try:
                return self._decided(installation)
            except Back:
                self._replay.again()
                _title("Back to the question before, with the other answers as they were")

    def _decided(self, installation: Installation) -> tuple[Sequence[WrittenFile], Service, Config]:
        """From the first question to the last."""
        self._answers = self._wishes.answers
        self._preflight(installation)
        machine = self._machine
        _title("This machine")
        for line in machine.lines():
            say(line, indent="  ")
        scanned = self._scan()
        lines = self._lines(scanned, machine)
        meeting = self._meeting(self._seen)
        if not self._wishes.scripted:
            lines = self._dialogue.share(lines, meeting)
        proposal = self._proposal(self._name(), meeting, lines)
        found = self._opinion(proposal, machine)
        found.check()
        assert found.config is not None, "what has no configuration was refused"
        chosen = self._service(found, machine, scanned)
        files = (*proposal.files(self._locations.environment), *chosen.files())
        _show(files, chosen, installation)
        self._agree()
        return files, chosen, found.config

    def _agree(self) -> None:
        """The one question after which something is changed."""
        asks = not self._wishes.scripted and not self._wishes.dry_run
        if asks and not self._dialogue.yes(start=self._answers.start):
            raise Cancelled

    # What is looked for takes seconds, and is looked for once, however often a person goes back.

    @cached_property
    def _machine(self) -> Hardware:
        return asyncio.run(hardware.look())

    def _preflight(self, installation: Installation) -> None:
        answers, mesh = self._answers, self._answers.mesh
        in_mesh = self._in_mesh()
        # Its own node holds the ports, and is stopped before the new one is started.
        ours = self._wishes.replace and installation.manifest is not None
        ports = [] if ours else wanted(answers.api, mesh, in_mesh=in_mesh)
        _title("Before anything else")
        addresses = self._addresses if in_mesh else {}
        self._deaf = frozenset(name for name, told in addresses.items() if isinstance(told, ViiworkError))
        self._own = frozenset(told for told in addresses.values() if isinstance(told, str))
        found = asyncio.run(
            preflight(
                *(self._locations, self._engines, ports),
                in_mesh=in_mesh,
                replace=self._wishes.replace,
                addresses=addresses,
            )
        )
        _tell(found)
        problems = [one for one in found if one.level is Level.PROBLEM]
        if not self._wishes.scripted and (busy := taken(ports)):
            told = [port_finding(one) for one in busy]
            problems = [one for one in problems if one not in told]
            self._other_ports(busy)
        self._stop_at(problems)

    def _other_ports(self, busy: Sequence[Wanted]) -> None:
        """In place of those that others have."""
        for key in sorted({one.key for one in busy}):
            block, _, name = key.partition(".")
            changed = {name: self._dialogue.port([one for one in busy if one.key == key])}
            answer = getattr(self._answers, block).model_copy(update=changed)
            self._answers = self._answers.model_copy(update={block: answer})

    def _in_mesh(self) -> bool:
        """Whether it may be in one: a person has not said yet."""
        mode = self._answers.mesh.mode or ("alone" if self._earlier is None else "keep")
        return mode != "alone" or not self._wishes.scripted

    @cached_property
    def _addresses(self) -> Addresses:
        """What the discoveries say, where it is they who may find the others."""
        mesh = self._answers.mesh
        if self._wishes.scripted and (mesh.network == SEEDS or mesh.seeds or mesh.mode in {"join", "keep"}):
            return {}
        with tempfile.TemporaryDirectory(prefix="viiwork-") as folder:
            return asyncio.run(own_addresses(self._registry, Path(folder)))

    def _stop_at(self, problems: Sequence[Finding]) -> None:
        """A script stops, and a person decides."""
        if not problems:
            return
        if self._wishes.scripted and not self._wishes.dry_run:
            remedies = dict.fromkeys(one.remedy for one in problems)
            raise ConfigError("\n".join(one.what for one in problems), remedy="; ".join(remedies))
        if not self._wishes.scripted and not self._dialogue.go_on():
            raise Cancelled

    def _scan(self) -> Scan | None:
        _title("Models")
        if not self._wishes.scripted:
            scanned = self._dialogue.models(self._answers, self._engines)
        elif self._answers.models_dir is not None:
            scanned = scan(self._answers.models_dir, self._engines)
        else:
            scanned = None
        if scanned is not None:
            _tell_scan(scanned)
        return scanned

    def _lines(self, scanned: Scan | None, machine: Hardware) -> tuple[Line, ...]:
        judge = partial(self._of_lines, machine=machine)
        if not self._wishes.scripted:
            return self._dialogue.layout(scanned, machine, judge) if scanned is not None else ()
        layout: Layout = selected(self._answers, scanned, machine, self._registry, self._engines)
        found = judge(layout.lines)
        show_layout(layout.lines, layout.left_out, found)
        found.check()
        return layout.lines

    def _of_lines(self, lines: Sequence[Line], machine: Hardware) -> Opinion:
        name = self._answers.node.name or "node"
        return self._opinion(self._proposal(name, Meeting("alone"), tuple(lines)), machine)

    def _opinion(self, proposal: Proposal, machine: Hardware) -> Opinion:
        return opinion(proposal, machine, self._environ, self._registry)

    @cached_property
    def _seen(self) -> Surroundings:
        """Whoever is near."""
        if self._wishes.scripted:
            return Surroundings()
        _title("Nodes nearby")
        say("Looking for some seconds...", indent="  ")
        with tempfile.TemporaryDirectory(prefix="viiwork-") as folder:
            seen = asyncio.run(look_around(self._registry, Path(folder), without=self._deaf, own=self._own))
        _tell(clocks(seen.neighbours))
        return seen

    def _meeting(self, seen: Surroundings) -> Meeting:
        answer, earlier = self._answers.mesh, self._earlier
        made = partial(arrange, environ=self._environ, registry=self._registry, deaf=self._deaf)
        if self._wishes.scripted:
            meeting = made(answer, earlier=earlier)
        else:
            answer = self._dialogue.mesh(answer, seen, earlier)
            # Whoever chooses a new secret gets one.
            meeting = self._dialogue.address(made(answer, earlier=earlier if answer.mode == "keep" else None))
        if earlier is not None and (meeting.mode, meeting.secret) != (earlier.mode, earlier.secret):
            say(f"This machine leaves the {earlier.mode} mesh {earlier.name}; mode keep would keep it.", indent="  ")
        return meeting

    def _name(self) -> str:
        name = self._answers.node.name or NodeConfig.model_fields["name"].get_default(call_default_factory=True)
        return str(name) if self._wishes.scripted else self._dialogue.node(str(name))

    def _proposal(self, name: str, meeting: Meeting, lines: tuple[Line, ...]) -> Proposal:
        state = self._answers.node.state_dir or self._locations.state
        return Proposal(self._locations.config, name, state, self._answers.api, meeting, lines)

    def _service(self, found: Opinion, machine: Hardware, scanned: Scan | None) -> Service:
        kinds = available(self._locations)
        config = found.config
        assert config is not None, "what has no configuration was refused"
        wanted: str | None = self._answers.service
        if wanted is None:
            wanted = (kinds[0] if self._wishes.scripted else self._dialogue.service(kinds)).name
        paths = [model.path for model in config.models if model.path is not None]
        subject = Subject(
            replace(self._locations, state=config.node.state_dir),
            _program(),
            vendor=machine.vendor.value,
            models=None if scanned is None else scanned.folder,
            reads=tuple(paths),
            programs=found.programs,
            dockerfile=self._dockerfile(config, machine),
            port=config.api.port,
            grace_s=config.health.respawn_grace,
        )
        chosen = service(wanted, subject)
        if why := chosen.unavailable(self._locations):
            names = ", ".join(kind.name for kind in kinds)
            raise ConfigError(f"service: {wanted} does not work here: {why}", remedy=f"choose one of {names}")
        return chosen

    def _dockerfile(self, config: Config, machine: Hardware) -> str:
        """Of the first engine that brings one for these cards."""
        names = {model.engine for model in config.models}
        engines = (engine for name, engine in self._engines.items() if name in names)
        found = (engine.dockerfile(machine.vendor) for engine in engines if issubclass(engine, Recognizes))
        return next(filter(None, found), "")


def _program() -> Path:
    """The command that runs now: beside this Python, else on PATH."""
    beside = Path(sys.executable).with_name("viiwork")
    found = str(beside) if beside.is_file() else shutil.which("viiwork")
    if found is None:
        raise ConfigError("the viiwork command is not found", remedy="install viiwork with pip, into one environment")
    return Path(found).absolute()


def _title(text: str) -> None:
    say()
    say(text)


def _tell(findings: Sequence[Finding]) -> None:
    for one in findings:
        say(one.what if one.level is Level.OK else f"{one.level}: {one.what}; {one.remedy}", indent="  ")


def _tell_scan(scanned: Scan) -> None:
    usable = len(scanned.usable)
    say(f"{usable} {'model' if usable == 1 else 'models'} in {scanned.folder}", indent="  ")
    for one in scanned.broken:
        say(f"cannot be served: {one.model.path}: {one.model.problem}", indent="  ")
    for line in scanned.passed_over:
        say(f"passed over: {line}", indent="  ")


def _show(files: Sequence[WrittenFile], chosen: Service, installation: Installation) -> None:
    """Every file whole, its secrets masked. Not wrapped: it is what will stand there."""
    _title("What will be written")
    kept = set(installation.in_the_way(files))
    for file in files:
        note = "; the file that is there now is kept beside it" if file.path in kept else ""
        click.echo(f"\n--- {file.path} (mode {file.mode:04o}{note})")
        click.echo(file.shown().rstrip("\n"))
    click.echo()
    for note in chosen.notes():
        say(note)
