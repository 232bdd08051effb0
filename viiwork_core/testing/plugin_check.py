"""What `viiwork plugin check` does: load a distribution, read its options, and try each class with its kit.

A plugin says what its classes are tried with in VIIWORK_KIT = "package.module:function", beside its hooks. The function
takes an empty folder and returns cases. What it has no case for is tried with what is at hand: default options, and the
fake engine in place of an engine's program.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from viiwork_core.contracts.capabilities import RunsOnCpu
from viiwork_core.contracts.engine import Engine, Launch, Spec
from viiwork_core.contracts.options import PluginOptions
from viiwork_core.errors import PluginError, ViiworkError
from viiwork_core.registry.entry_points import load_plugins
from viiwork_core.registry.guard import attempt
from viiwork_core.registry.registry import LoadRecord, Registry
from viiwork_core.testing.cache_kit import CACHE_CLAUSES, CacheCase, examine_cache
from viiwork_core.testing.clauses import Verdict, unchecked
from viiwork_core.testing.discovery_kit import NEED_A_NETWORK, DiscoveryCase, examine_discovery
from viiwork_core.testing.engine_case import prepared_launch
from viiwork_core.testing.engine_kit import NEED_A_LAUNCH, STARTS, EngineCase, examine_engine, live
from viiwork_core.testing.fake_plugin import FakeEngine, FakeOptions
from viiwork_core.testing.listener_kit import ListenerCase, examine_listener
from viiwork_core.testing.policy_kit import PolicyCase, examine_policy
from viiwork_core.testing.servers import NotReady, kit_context

Case = EngineCase | CacheCase | DiscoveryCase | PolicyCase | ListenerCase
Say = Callable[[str], None]

_NOWHERE = "where it may look and announce itself is for --options or VIIWORK_KIT to say"

_KITS = frozenset({"engine", "cache", "discovery", "policy", "listener"})

STAND_IN_LIMIT = 10.0
"""Seconds in which an engine must take the fake engine for ready, to be tried with it."""


@dataclass(frozen=True)
class Wishes:
    """What the operator said."""

    options: Mapping[str, Any] | None = None
    """The block of each class; None: none."""

    path: Path | None = None
    """A model that the engine can load: what `launch` says is started for real."""


def check_plugins(wanted: str | None, wishes: Wishes, environ: Mapping[str, str], say: Say) -> bool:
    """Check the plugins of a distribution, or all but the built-in ones, telling each verdict. Whether all is well.

    `wanted` is a distribution, an entry point, or the name of what a plugin offers. Raises PluginError when there is
    nothing of that name.
    """
    registry = load_plugins(environ)
    chosen = [record for record in registry.records if _means(wanted, record)]
    if not chosen:
        installed = ", ".join(sorted({record.distribution for record in registry.records}))
        raise PluginError(
            f"no plugin {wanted} is installed (installed: {installed})" if wanted else "no plugin is installed",
            remedy="install it into this environment: pip install -e FOLDER",
        )
    well = [_check(record, registry, wishes, say) for record in chosen]
    return all(well)


def _means(wanted: str | None, record: LoadRecord) -> bool:
    if wanted is None:
        return record.entry_point != "builtin" and record.state in {"loaded", "failed"}
    plain = wanted.lower().replace("_", "-").replace(".", "-")
    names = {record.distribution, record.entry_point, *(name for _, name in record.provides)}
    return plain in {name.lower().replace("_", "-") for name in names}


def _check(record: LoadRecord, registry: Registry, wishes: Wishes, say: Say) -> bool:
    say(f"{record.distribution} {record.version}")
    api = f", for plugin API {record.api[0]}.{record.api[1]}" if record.api else ""
    if record.state != "loaded":
        say(f"  load     fail         {record.state}: {record.reason}")
        return False
    say(f"  load     pass         {', '.join(f'{kind} {name}' for kind, name in record.provides) or 'nothing'}{api}")
    with tempfile.TemporaryDirectory(prefix="viiwork-check-") as folder:
        try:
            given = _given_cases(record, Path(folder))
        except ViiworkError as error:
            say(f"  cases    fail         {error.message}")
            return False
        well = [_Trial(kind, name, registry, given, wishes, say).run() for kind, name in record.provides]
    return all(well)


def _given_cases(record: LoadRecord, folder: Path) -> Sequence[Case]:
    """What the plugin says that its classes are tried with. Raises PluginError."""
    place = getattr(_entry_point(record).load(), "VIIWORK_KIT", None)
    if place is None:
        return ()
    module, _, function = str(place).partition(":")
    made = attempt(f"VIIWORK_KIT {place}", lambda: list(getattr(import_module(module), function)(folder)))
    if strange := [one for one in made if not isinstance(one, Case)]:
        raise PluginError(f"VIIWORK_KIT {place} returned {strange[0]!r}, which is no case of a kit")
    return made


def _entry_point(record: LoadRecord) -> EntryPoint:
    found = entry_points(group="viiwork", name=record.entry_point)
    return next(one for one in found if one.dist is not None and one.dist.name == record.distribution)


class _Trial:
    """One class with its kit."""

    def __init__(
        self, kind: str, name: str, registry: Registry, given: Sequence[Case], wishes: Wishes, say: Say
    ) -> None:
        self._kind, self._name, self._registry = kind, name, registry
        self._wishes, self._say = wishes, say
        self._given = [case for case in given if _about(case) == (kind, name)]

    def run(self) -> bool:
        """Tell each clause's verdict. Whether none is broken."""
        self._say(f"  {self._kind} {self._name}")
        if self._kind not in _KITS:
            self._tell("kit", "not checked", "there is none for this kind")
            return True
        if self._given and self._wishes == Wishes():
            self._tell("options", "pass", "as the plugin's own case says")
            well = [self._judged(partial(_examine, case)) for case in self._given]
            return all(well)
        if self._kind == "cache":
            return self._judged(self._bare_cache)
        options = self._options()
        return options is None or self._judged(partial(self._bare, options))

    def _judged(self, examine: Callable[[], Any]) -> bool:
        verdicts: list[Verdict] = asyncio.run(examine())
        told = ""
        for one in verdicts:
            self._tell(str(one.clause), one.outcome, one.rule, one.problem if one.problem != told else "")
            told = one.problem
        counts = [f"{sum(one.outcome == kind for one in verdicts)} {kind}" for kind in ("pass", "fail", "not checked")]
        self._say(f"    {', '.join(counts)}")
        return not any(one.outcome == "fail" for one in verdicts)

    def _tell(self, what: str, outcome: str, rule: str, problem: str = "") -> None:
        self._say(f"    {what:<9}{outcome:<13}{rule}")
        if problem:
            self._say(f"{'':26}{problem}")

    def _class(self) -> Any:
        kinds = {
            "engine": self._registry.engine,
            "policy": self._registry.policy,
            "discovery": self._registry.discovery,
            "cache": self._registry.cache_transfer,
            "listener": self._registry.listener,
        }
        return kinds[self._kind](self._name)

    def _options(self) -> PluginOptions | None:
        """None: there are none to try it with, which has been told."""
        model: type[PluginOptions] = self._class().Options
        block = self._wishes.options or {}
        try:
            options = attempt("reading the options", lambda: model.model_validate(block), passing=(ValidationError,))
        except ValidationError as error:
            problem = "; ".join(f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors())
        except ViiworkError as error:
            problem = error.message
        else:
            self._tell("options", "pass", "as given" if block else "the defaults")
            return options
        self._tell("options", "not checked", "give some with --options, or a case in VIIWORK_KIT", problem)
        return None

    async def _bare(self, options: PluginOptions) -> list[Verdict]:
        """With what is at hand."""
        with tempfile.TemporaryDirectory(prefix="viiwork-check-") as folder:
            context = kit_context(Path(folder))
            if self._kind == "policy":
                return await examine_policy(PolicyCase(self._class(), options))
            if self._kind == "listener":
                return await examine_listener(ListenerCase(self._class(), options, context))
            if self._kind == "discovery":
                # It would speak to this machine's networks, so only when it was told where to look.
                left_out = {} if self._wishes.options is not None else dict.fromkeys(NEED_A_NETWORK, _NOWHERE)
                return await examine_discovery(DiscoveryCase(self._class(), options, context), left_out=left_out)
            return await _examine_bare(EngineCase(self._class(), options, _spec(self._class(), self._wishes), context))

    async def _bare_cache(self) -> list[Verdict]:
        why = "which engine, model and options to try it with is for VIIWORK_KIT to say"
        return [unchecked(clause, why) for clause in CACHE_CLAUSES]


def _about(case: Case) -> tuple[str, str]:
    match case:
        case EngineCase():
            return "engine", case.engine.name
        case CacheCase():
            return "cache", case.transfer.engine
        case DiscoveryCase():
            return "discovery", case.discovery.name
        case ListenerCase():
            return "listener", case.listener.name
    return "policy", case.policy.name


async def _examine(case: Case) -> list[Verdict]:
    match case:
        case EngineCase():
            return await examine_engine(case)
        case CacheCase():
            return await examine_cache(case)
        case DiscoveryCase():
            return await examine_discovery(case)
        case ListenerCase():
            return await examine_listener(case)
    return await examine_policy(case)


def _spec(engine: type[Engine], wishes: Wishes) -> Spec:
    gpus = () if issubclass(engine, RunsOnCpu) else (0,)
    return Spec("tiny", 0, 1, wishes.path, context=4096, parallel=2, gpus=gpus)


async def _examine_bare(case: EngineCase) -> list[Verdict]:
    """For real when there is a model; else with the fake engine in place of the program, if the plugin takes it."""
    if case.spec.path is not None or case.attaches:
        return await examine_engine(case)
    refusal = await _refusal(case)
    left_out = dict.fromkeys(NEED_A_LAUNCH, refusal) if refusal else {}
    fake = _with_fake(case)
    if strange := await _strangeness(fake):
        left_out[STARTS.number] = f"the fake engine is none of its own ({strange}); name a model with --path"
    return await examine_engine(fake, left_out=left_out)


async def _refusal(case: EngineCase) -> str:
    """Why it launches nothing without a model; empty: it does."""
    try:
        await prepared_launch(case, case.spec)
    except ViiworkError as error:
        return f"{error.message}; name a model with --path"
    return ""


def _with_fake(case: EngineCase) -> EngineCase:
    fake = FakeEngine(FakeOptions(http10=not case.wire.keep_alive), case.context)

    def upstream(spec: Spec) -> Launch:
        launch = fake.launch(spec)
        assert launch is not None
        return launch

    return EngineCase(
        case.engine, case.options, case.spec, case.context, ready_within=STAND_IN_LIMIT, upstream=upstream
    )


async def _strangeness(case: EngineCase) -> str:
    """Why the plugin does not take the fake engine for its own; empty: it does."""
    try:
        async with live(case) as started, started.opened() as engine:
            await engine.load(started.spec, started.live)
    except (NotReady, ViiworkError) as error:
        return str(error)
    return ""
