"""viiwork's surface for plugin authors: the hook marker, the contracts, the values and the errors."""

from viiwork_core.contracts.cache import (
    CacheFile,
    CacheLimits,
    CacheTransfer,
    Saved,
    Segment,
    SegmentKind,
    SessionRef,
)
from viiwork_core.contracts.capabilities import Attaches, Prepares, RunsOnCpu, VariesWire, Versioned
from viiwork_core.contracts.context import CommandOutput, Context, Digest, RunCommand
from viiwork_core.contracts.discovery import Card, Discovery, Sighting
from viiwork_core.contracts.engine import (
    Address,
    Engine,
    Launch,
    Load,
    Phase,
    Probe,
    SlotLoad,
    Spec,
    StreamEnd,
    UsageSource,
    Vendor,
    Wire,
)
from viiwork_core.contracts.options import NoOptions, PluginOptions
from viiwork_core.contracts.policy import Candidate, Outcome, Policy, Query, Score
from viiwork_core.contracts.version import API_MAJOR, API_MINOR
from viiwork_core.errors import (
    CacheRefused,
    ConfigError,
    EngineRefused,
    EngineUnreachable,
    NotBuiltYet,
    PluginError,
    ViiworkError,
)
from viiwork_core.hookspecs import hookimpl

__all__ = [
    "API_MAJOR",
    "API_MINOR",
    "Address",
    "Attaches",
    "CacheFile",
    "CacheLimits",
    "CacheRefused",
    "CacheTransfer",
    "Candidate",
    "Card",
    "CommandOutput",
    "ConfigError",
    "Context",
    "Digest",
    "Discovery",
    "Engine",
    "EngineRefused",
    "EngineUnreachable",
    "Launch",
    "Load",
    "NoOptions",
    "NotBuiltYet",
    "Outcome",
    "Phase",
    "PluginError",
    "PluginOptions",
    "Policy",
    "Prepares",
    "Probe",
    "Query",
    "RunCommand",
    "RunsOnCpu",
    "Saved",
    "Score",
    "Segment",
    "SegmentKind",
    "SessionRef",
    "Sighting",
    "SlotLoad",
    "Spec",
    "StreamEnd",
    "UsageSource",
    "VariesWire",
    "Vendor",
    "Versioned",
    "ViiworkError",
    "Wire",
    "hookimpl",
]
