"""The proposal: all that was decided, as a configuration, and what the node's own loader says of it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from viiwork_core.config.document import dump
from viiwork_core.config.load import parse_config
from viiwork_core.config.schema import ApiConfig, Config
from viiwork_core.config.unsound import UnsoundConfig
from viiwork_core.errors import ConfigError
from viiwork_core.registry.options import Resolved, resolve, with_the_rest
from viiwork_core.registry.registry import Registry
from viiwork_core.setup.answers import ApiAnswer
from viiwork_core.setup.layout import Line
from viiwork_core.setup.meeting import Meeting
from viiwork_core.setup.written import WrittenFile

_OF_A_MODEL: Final = re.compile(r"models\[(\d+)\]")

_HEAD: Final = """\
# Written by `viiwork init`. `viiwork config docs FILE` writes down every key. After a change:
#   viiwork config check {path}
# and SIGHUP, which reads the models again, or a restart.
"""


@dataclass(frozen=True, slots=True)
class Proposal:
    """What is to be written."""

    path: Path
    """Of the configuration."""

    node: str
    state_dir: Path
    api: ApiAnswer
    meeting: Meeting
    lines: tuple[Line, ...] = ()

    def document(self) -> dict[str, Any]:
        """The configuration: what differs from its defaults."""
        document: dict[str, Any] = {"node": {"name": self.node, "state_dir": str(self.state_dir)}}
        api = {"host": self.api.host, "port": self.api.port}
        own = {key: value for key, value in api.items() if value != ApiConfig.model_fields[key].default}
        document |= {"api": own} if own else {}
        document |= {"mesh": block} if (block := self.meeting.block()) else {}
        document |= {"models": [line.entry() for line in self.lines]} if self.lines else {}
        return document

    def text(self) -> str:
        """The same, as a file."""
        return _HEAD.format(path=self.path) + dump(self.document())

    def files(self, environment: Path) -> tuple[WrittenFile, ...]:
        """The configuration, and the variables of the node where it needs some."""
        config = WrittenFile(self.path, self.text())
        variables = self.meeting.environment()
        if not variables:
            return (config,)
        text = "".join(f"{name}={value}\n" for name, value in variables.items())
        return config, WrittenFile(environment, text, 0o600, tuple(variables.values()))


@dataclass(frozen=True, slots=True)
class Judgement:
    """What the node would say."""

    config: Config | None = None
    """None: it would not start."""

    resolved: Resolved | None = None
    refusals: Mapping[int, Sequence[str]] = field(default_factory=dict)
    """By the model's place in the list: why the node would not take it."""

    others: tuple[str, ...] = ()
    """The same of everything else."""

    @property
    def well(self) -> bool:
        """Whether a node would start with it."""
        return self.config is not None and not self.refusals and not self.others


def judge(proposal: Proposal, environ: Mapping[str, str], registry: Registry) -> Judgement:
    """Read the proposal as the node will, both passes."""
    try:
        config = parse_config(proposal.text(), environ, origin=str(proposal.path))
        return Judgement(config, resolve(config, registry))
    except UnsoundConfig as error:
        return _refused(with_the_rest(error, registry))
    except ConfigError as error:
        return _refused(error)


def _refused(error: ConfigError) -> Judgement:
    refusals, others = dict[int, list[str]](), list[str]()
    for line in filter(None, error.message.splitlines()):
        of = _OF_A_MODEL.match(line)
        if of is None:
            others.append(line)
        else:
            refusals.setdefault(int(of[1]), []).append(re.sub(r" \(line \d+\)", "", line, count=1))
    return Judgement(refusals=refusals, others=tuple(others))
