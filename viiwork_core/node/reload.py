"""The reload: the configuration is read again, and its models are followed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import structlog

from viiwork_core.config.schema import Config
from viiwork_core.engines.bell import Bell
from viiwork_core.errors import ViiworkError
from viiwork_core.node.models import Changes
from viiwork_core.registry.options import Resolved, ResolvedModel

_log = structlog.get_logger("viiwork.node")

Read = Callable[[], tuple[Config, Resolved]]
"""Reads the configuration again. Called in a thread. Raises ConfigError."""

Apply = Callable[[Sequence[ResolvedModel]], Awaitable[Changes]]
"""Takes over the models, all or none. Raises ViiworkError."""

FOREVER_S = 3600.0


class Reload:
    """Reads the configuration again whenever `bell` rings, one time after another; rings that meet are one.

    The bell may ring before `run` begins, and is heard then.
    """

    def __init__(self, bell: Bell, read: Read) -> None:
        self._bell = bell
        self._read = read

    async def run(self, running: Config, apply: Apply, follow: Callable[[Config], None] = lambda _: None) -> None:
        """Until cancelled. `running`: what the node was started with; only its models can change, and what `follow`
        takes from the new one.
        """
        while True:
            if await self._bell.wait(FOREVER_S):
                try:
                    await self._once(running, apply, follow)
                except Exception:  # noqa: BLE001  # a mistake of ours, or of a plugin: the next ring is to be heard
                    _log.exception("the configuration is not reloaded")

    async def _once(self, running: Config, apply: Apply, follow: Callable[[Config], None]) -> None:
        try:
            config, resolved = await asyncio.to_thread(self._read)
            changes = await apply(resolved.models)
        except ViiworkError as error:
            for line in error.message.splitlines():
                _log.error("the configuration is not reloaded", reason=line, remedy=error.remedy or None)
            return
        follow(config)
        for warning in config.warnings:
            _log.warning("configuration", reason=warning)
        if sections := _other_sections(running, config):
            _log.warning("changed sections need a restart", sections=sections)
        _log.info(
            "the configuration is reloaded",
            added=changes.added,
            removed=changes.removed,
            changed=changes.changed,
            kept=changes.kept,
        )


def _other_sections(running: Config, config: Config) -> list[str]:
    """The sections beside `models` that say something else than those the node runs with; keys are followed."""
    running, config = _without_keys(running), _without_keys(config)
    sections = [section for section in type(config).model_fields if section != "models"]
    return [section for section in sections if getattr(config, section) != getattr(running, section)]


def _without_keys(config: Config) -> Config:
    return config.model_copy(update={"api": config.api.model_copy(update={"keys": ()})})
