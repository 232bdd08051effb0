"""The answers: what `viiwork init` would ask, written down beforehand. YAML, strict, all mistakes told at once.

The texts under the keys are what users read: they become the table in docs/init.md.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self

from pydantic import Field, ValidationError, model_validator

from viiwork_core.config.blocks import Block, misplaced
from viiwork_core.config.document import parse
from viiwork_core.config.problems import as_error, from_validation
from viiwork_core.config.values import AtLeastOne, Count, File, HostName, Ip, OwnIpOrEmpty, Port, Seed, Tuple, Word
from viiwork_core.errors import ConfigError

MAX_BYTES: Final = 1 << 20

Mode = Literal["join", "secured", "open", "alone", "keep"]
ServiceName = Literal["systemd", "systemd-user", "launchd", "docker", "process"]
"""The names of setup.services."""


class NodeAnswer(Block):
    """Who this machine is."""

    name: HostName | None = None
    """What the other nodes and clients call it. Default: the machine's host name."""

    state_dir: File | None = None
    """Folder for what outlives a restart. Default: /var/lib/viiwork for root, else ~/.local/state/viiwork."""


class ApiAnswer(Block):
    """Where clients connect."""

    host: Ip | None = None
    """The one address to listen on. Default: loopback, and the address that the mesh uses."""

    port: Annotated[int, Field(ge=0, le=65535)] = 8086
    """TCP port."""


class MeshAnswer(Block):
    """Which mesh the machine comes into."""

    mode: Mode | None = None
    """join: an existing mesh, by its join code. secured: a mesh with a secret, with --replace the secret that this
    machine has for the mesh of that name, else a new one. open: a mesh without one, where whoever reaches the port may
    join. alone: no mesh. keep: with --replace, the mesh that this machine is in. Default: keep where that can be, else
    alone."""

    code: str | None = Field(default=None, min_length=1, repr=False)
    """The join code, for mode join. It is as secret as the mesh: let nobody read the file, or use one of the next
    two."""

    code_file: File | None = None
    """A file that holds the join code."""

    code_env: Word | None = None
    """The environment variable that holds the join code."""

    name: Word = "default"
    """Nodes of differently named meshes do not meet. A join code does not carry the name."""

    network: Word | None = None
    """Where other nodes are looked for: seeds, lan, tailnet, or the name of an installed discovery. Default: seeds with
    a join code or with seeds, else wherever an installed discovery can look."""

    seeds: Tuple[Seed] = ()
    """Gossip addresses of other nodes, beside that of the join code."""

    advertise: OwnIpOrEmpty = ""
    """The address that others reach this machine at. Default: found by itself."""

    bind_port: Port = 7946
    """Port of the gossip, TCP and UDP."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        given = [key for key in ("code", "code_file", "code_env") if getattr(self, key) is not None]
        if self.mode == "join" and len(given) != 1:
            what = "is missing" if not given else f"stands beside {given[-1]}"
            raise misplaced(("code",), what, "write one of code, code_file and code_env: `viiwork join-code` prints it")
        if self.mode != "join" and given:
            what = f"has no meaning with mode {self.mode}" if self.mode else "has no meaning without mode: join"
            raise misplaced((given[0],), what, "write mode: join, or remove it")
        if self.mode == "keep" and (other := self.model_fields_set - {"mode"}):
            what = "has no meaning with mode keep, which leaves the mesh as it is"
            raise misplaced((min(other),), what, "remove it, or choose another mode")
        return self


class ModelAnswer(Block):
    """One model to serve."""

    path: File
    """The model's file, the first of its parts, or its folder."""

    name: Word | None = None
    """What clients ask for; the same on all machines that serve the model. Default: from the file's name."""

    engine: Word | None = None
    """The plugin that serves it. Default: the one that recognises it."""

    context: AtLeastOne | None = None
    """Tokens per slot. Default: as proposed."""

    parallel: AtLeastOne | None = None
    """Slots of each backend. Default: as proposed."""

    gpus: Tuple[Count] | None = None
    """The host's indices of its cards; an empty list: the CPU. Default: as proposed."""

    gpus_per_backend: AtLeastOne | None = None
    """Cards of each backend. Default: as proposed."""

    kv_share: Word | None = None
    """The group of hosts that hand each other its caches. Default: the kv_share of all."""

    options: Mapping[str, Any] = Field(default_factory=dict)
    """The engine's own block, as in the configuration."""


class Answers(Block):
    """All of them; what is left out is as the wizard proposes it."""

    models_dir: File | None = None
    """The folder with models. Default: none is looked at, unless --models names one."""

    models: Tuple[ModelAnswer] | None = None
    """The models to serve. Default: all that are found and have room. An empty list: none."""

    node: NodeAnswer = Field(default_factory=NodeAnswer)
    api: ApiAnswer = Field(default_factory=ApiAnswer)
    mesh: MeshAnswer = Field(default_factory=MeshAnswer)

    kv_share: Word | None = None
    """The group in which the models of this machine share their caches with other hosts. Needs a mesh with a secret.
    Default: caches stay where they are."""

    service: ServiceName | None = None
    """What keeps the node running: systemd, systemd-user, launchd, docker or process. Default: the first that works
    here."""

    start: bool = True
    """false: write the files and start nothing."""

    wait: Annotated[int, Field(ge=1, le=86_400)] = 3600
    """Seconds in which every model must be loaded."""


def read_answers(file: Path) -> Answers:
    """The answers in a file. Raises ConfigError with a line for each mistake."""
    try:
        # Without blocking, since opening a named pipe would wait for a writer.
        with os.fdopen(os.open(file, os.O_RDONLY | os.O_NONBLOCK), "rb") as opened:
            if not stat.S_ISREG(os.fstat(opened.fileno()).st_mode):
                raise ConfigError(f"{file}: is not a regular file", remedy="name the file with the answers")
            content = opened.read(MAX_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"{file}: cannot be read: {error.strerror}", remedy="name a readable file") from error
    if len(content) > MAX_BYTES:
        raise ConfigError(f"{file}: is over 1 MiB", remedy="name the file with the answers")
    try:
        return parse_answers(content.decode(), origin=str(file))
    except UnicodeDecodeError:
        raise ConfigError(f"{file}: is not UTF-8 text", remedy="save it as UTF-8") from None


def parse_answers(text: str, *, origin: str = "answers") -> Answers:
    """The same of a text; `origin` names it in errors about the whole of it."""
    data, source = parse(text, origin)
    try:
        return Answers.model_validate({key: value for key, value in data.items() if value is not None})
    except ValidationError as error:
        raise as_error(from_validation(error, (), Answers), source) from None
