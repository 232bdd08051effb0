"""viiwork init: from a machine with models to a node that serves them. Nothing is changed before the last yes."""

from __future__ import annotations

import os
import shlex
import signal
import sys
import termios
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from ipaddress import ip_address
from pathlib import Path
from types import FrameType
from typing import Any

import click

from viiwork_core.cli.operator import Operator
from viiwork_core.cli.prompts import Cancelled, has_terminal, say
from viiwork_core.cli.wizard import Wishes, Wizard
from viiwork_core.config.running import dialled
from viiwork_core.config.schema import Config
from viiwork_core.errors import ConfigError, ViiworkError
from viiwork_core.mesh.member import join_address
from viiwork_core.observe.logging import setup_logging
from viiwork_core.registry.entry_points import load_plugins
from viiwork_core.setup import acceptance
from viiwork_core.setup.answers import Answers, read_answers
from viiwork_core.setup.installation import Installation
from viiwork_core.setup.locations import Locations
from viiwork_core.setup.service import Service
from viiwork_core.setup.services import service

_SIGNALS = (signal.SIGTERM, signal.SIGHUP)
_CURSOR = b"\x1b[?25h\r\n"
"""Shows it again: a list of choices hides it."""


@click.command()
@click.option("--answers", "file", type=click.Path(path_type=Path), help="Take the answers from this YAML file.")
@click.option("--models", type=click.Path(path_type=Path), help="The folder with models.")
@click.option("--yes", is_flag=True, help="Ask nothing: take what is proposed, and say yes to it.")
@click.option("--dry-run", is_flag=True, help="Show what would be written, and change nothing.")
@click.option("--replace", is_flag=True, help="Set up a machine again that is set up already.")
@click.option(
    "--root", type=click.Path(path_type=Path), default=Path("/"), help="Write below this folder, in place of /."
)
def init(file: Path | None, models: Path | None, root: Path, *, yes: bool, dry_run: bool, replace: bool) -> None:
    """Set this machine up as a node: find its models, lay them out, bring it into a mesh, and start it.

    Every file is shown before anything is changed. --answers and --yes ask nothing; docs/init.md tells the keys.
    Exits with 0 when the node serves, 1 when it does not, 2 when it does and `viiwork doctor` finds problems.
    """
    answers = read_answers(file) if file is not None else Answers()
    if models is not None:
        answers = answers.model_copy(update={"models_dir": models})
    scripted = yes or file is not None
    if not scripted and not has_terminal():
        remedy = "give --answers FILE (docs/init.md), or --yes to take what is proposed"
        raise ConfigError("there is no terminal to ask questions on", remedy=remedy)
    setup_logging(json=False, level="critical")
    locations = Locations.here(os.environ, base=root.absolute())
    with _ended_by_signals():
        try:
            status = _run(Wishes(answers, scripted, replace, dry_run), locations)
        except Cancelled:
            say("Stopped: nothing was changed.")
            status = 1
    sys.exit(status)


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """A terminal that goes away, or whoever ends this process, ends it at once, with the terminal as it was before.

    Not by an exception: raised in a signal's handler, it can land where Python drops it.
    """
    before = {number: signal.getsignal(number) for number in _SIGNALS}
    with suppress(termios.error, OSError, ValueError):
        restored = partial(_restore, sys.stdin.fileno(), termios.tcgetattr(sys.stdin.fileno()))
        for number in _SIGNALS:
            signal.signal(number, restored)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _restore(terminal: int, attributes: list[Any], number: int, frame: FrameType | None) -> None:
    del frame
    with suppress(termios.error, OSError):
        termios.tcsetattr(terminal, termios.TCSANOW, attributes)
        os.write(terminal, _CURSOR)
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)


def _run(wishes: Wishes, locations: Locations) -> int:
    with ExitStack() as stack:
        # A dry run changes nothing, not even the lock's file.
        held = None if wishes.dry_run else stack.enter_context(Installation.held(locations))
        if held is not None and held.recovered:
            say(held.recovered)
        try:
            wizard = Wizard(wishes, locations, load_plugins(os.environ), os.environ)
            files, chosen, config = wizard.decide(held or Installation(locations))
        except KeyboardInterrupt as error:  # between two questions
            raise Cancelled from error
        if held is None:
            say("A dry run: nothing was changed.")
            return 0
        earlier = _earlier(held)
        held.write(files, chosen)
        say("1 file is written." if len(files) == 1 else f"{len(files)} files are written.")
        if earlier is not None:
            earlier.stop(_show)
        if not wishes.answers.start:
            say("Nothing is started. To run the node:")
            click.echo(f"  {_command(locations, 'serve')}")
            return 0
        return _start(chosen, config, wishes.answers.wait)


def _earlier(held: Installation) -> Service | None:
    """What keeps the node of an earlier run, which holds the ports. It is stopped once the new files are written: a
    full disk must not leave a machine without a node."""
    found = held.manifest
    return None if found is None else service(found.service, found.subject(held.locations))


def _start(chosen: Service, config: Config, within: int) -> int:
    try:
        chosen.start(_show)
        acceptance.wait_until_loaded(chosen, _show, deadline_s=float(within))
        say("Asking each model, here and through other nodes; this can take some minutes.")
        verdict = acceptance.check(chosen, _show)
    except KeyboardInterrupt:
        say("Stopped waiting. The files are written, and what was started goes on; `viiwork uninstall` ends both.")
        return 1
    except ViiworkError as error:
        hint = "the files stay: correct what is wrong and start it again, or take them away with `viiwork uninstall`"
        remedy = error.remedy or f"see its log: {chosen.log_hint()}"
        raise ViiworkError(error.message, remedy=f"{remedy}; {hint}") from error
    for line in verdict.lines:
        say(line)
    say()
    for what, command in _next_steps(chosen, config):
        say(what)
        # Not wrapped, so that it can be copied.
        click.echo(f"  {command}")
    return 2 if verdict.status == 2 else 0


def _show(line: str) -> None:
    """What a service tells; commands are not wrapped."""
    if line.startswith("$ "):
        click.echo(line)
    else:
        say(line)


def _next_steps(chosen: Service, config: Config) -> Iterator[tuple[str, str]]:
    """What a person does with a node that serves."""
    url, locations = _url(config), chosen.subject.locations
    yield "This node serves. Its endpoint, and its dashboard:", f"{url}/v1  {url}/"
    if (elsewhere := _url_elsewhere(config)) is not None and elsewhere != url:
        yield "On other machines:", f"{elsewhere}/v1  {elsewhere}/"
    if config.models:
        body = f'{{"model": "{config.models[0].name}", "messages": [{{"role": "user", "content": "Hello"}}]}}'
        kind = shlex.quote("Content-Type: application/json")
        yield "Ask it:", f"curl {url}/v1/chat/completions -H {kind} -d {shlex.quote(body)}"
    else:
        below = "" if locations.base == Path("/") else f" --root {shlex.quote(str(locations.base))}"
        yield "It has no model of its own yet. To give it some:", f"viiwork init --replace --models DIR{below}"
    if config.mesh.network != "none":
        yield "The next machine joins with the code that this prints:", _command(locations, "join-code")
    yield "Is all well?", _command(locations, "doctor")
    yield "Its log:", chosen.log_hint()


def _url(config: Config) -> str:
    """As the node tells; a person who may not read that gets what is configured."""
    with suppress(ViiworkError):
        return dialled(Operator.here(config).api)
    return dialled(f"http://{config.api.host or '127.0.0.1'}:{config.api.port}")


def _url_elsewhere(config: Config) -> str | None:
    """The API at the address that other machines use, as the node tells. None: there is none, or it cannot be asked."""
    own = config.api.host
    if config.mesh.network == "none" or (own and not ip_address(own).is_unspecified):
        return None
    with suppress(ViiworkError):
        status = Operator.here(config).ask("GET", "/v1/status")
        if status["addr"]:
            return f"http://{join_address(status['addr'], status['api_port'])}"
    return None


def _command(locations: Locations, name: str) -> str:
    """With the configuration, where it is not in its usual place."""
    usual = locations.base == Path("/")
    return f"viiwork {name}" + ("" if usual else f" --config {shlex.quote(str(locations.config))}")
