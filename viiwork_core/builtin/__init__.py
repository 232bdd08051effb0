"""The plugins that come with the core; they see no more of it than a stranger's plugin does."""

from __future__ import annotations

from viiwork_core import API_MAJOR, API_MINOR, Discovery, Engine, Policy, hookimpl
from viiwork_core.builtin.external import External
from viiwork_core.builtin.policies import LeastBusy, RoundRobin
from viiwork_core.builtin.priced import CacheAware, Fastest
from viiwork_core.builtin.seeds import Seeds

VIIWORK_API = (API_MAJOR, API_MINOR)


@hookimpl
def viiwork_register_engine() -> type[Engine]:
    return External


@hookimpl
def viiwork_register_policy() -> list[type[Policy]]:
    return [Fastest, CacheAware, LeastBusy, RoundRobin]


@hookimpl
def viiwork_register_discovery() -> type[Discovery]:
    return Seeds
