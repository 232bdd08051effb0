"""viiwork uninstall: stop the node, and remove what `viiwork init` wrote. Models are never touched."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import click

from viiwork_core.errors import ConfigError
from viiwork_core.setup.installation import Installation, Removal
from viiwork_core.setup.locations import Locations
from viiwork_core.setup.manifest import Manifest
from viiwork_core.setup.service import Service, ServiceFailed
from viiwork_core.setup.services import service as service_named


@click.command()
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--dry-run", is_flag=True, help="Only say what would be done.")
@click.option("--force", is_flag=True, help="Also files that were changed since, and though the node does not stop.")
@click.option("--root", type=click.Path(path_type=Path), help="The folder that was given to `viiwork init --root`.")
def uninstall(root: Path | None, *, yes: bool, dry_run: bool, force: bool) -> None:
    """Stop this machine's node and remove the files that `viiwork init` wrote, and nothing else.

    Files that were changed since are kept and named. What the node remembers, backups, models and viiwork itself stay.
    """
    locations = Locations.here(os.environ, base=Path("/") if root is None else root.absolute())
    with Installation.held(locations) as installation:
        if installation.recovered:
            click.echo(installation.recovered)
        manifest, removal = installation.manifest, installation.removal()
        if manifest is None or removal is None:
            raise _nothing(locations)
        service = service_named(manifest.service, manifest.subject(locations))
        for line in _plan(service, removal, force=force):
            click.echo(line)
        if dry_run or not (yes or _confirmed()):
            click.echo("nothing was changed")
            return
        remains = service.remains()
        _stop(service, force=force)
        installation.remove(force=force)
        service.forget(click.echo)
        for line in _left(installation.manifest, removal, manifest.state, remains):
            click.echo(line)


def _nothing(locations: Locations) -> ConfigError:
    what = f"`viiwork init` has installed nothing here: there is no manifest in {locations.records}"
    who = "with sudo, if it was installed so" if not locations.system else "without sudo, if it was installed so"
    return ConfigError(what, remedy=f"run it {who}; remove by hand what you wrote yourself")


def _plan(service: Service, removal: Removal, *, force: bool) -> Iterator[str]:
    yield f"stop     {service.description.partition(':')[0]}{'' if service.is_active() else ' (it does not run)'}"
    for path in removal.remove:
        yield f"remove   {path}"
    for path in removal.changed:
        yield f"remove   {path} (changed since)" if force else f"keep     {path} (changed since; --force removes it)"


def _confirmed() -> bool:
    if not sys.stdin.isatty():
        raise ConfigError("nobody can be asked here", remedy="say --yes, or --dry-run to see only")
    return click.confirm("Do this?", default=False)


def _stop(service: Service, *, force: bool) -> None:
    try:
        service.stop(click.echo)
    except ServiceFailed as error:
        if not force:
            raise ServiceFailed(error.message, remedy=f"{error.remedy}; or go on with --force") from error
        click.echo(f"it could not be stopped: {error.message}")


def _left(kept: Manifest | None, removal: Removal, state: Path, remains: tuple[str, ...]) -> Iterator[str]:
    for entry in kept.files if kept else ():
        yield f"kept     {entry.path} (changed since it was written)"
    for path in removal.backups:
        yield f"kept     {path} (what was there before)"
    if state.exists():
        yield f"kept     {state} (what the node remembers)"
    for words in remains:
        yield f"kept     {words}"
    yield "viiwork is uninstalled from this machine; models and the program itself stay"
