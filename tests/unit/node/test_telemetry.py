"""Whether traces are sent, and what of the configuration and the environment that goes by."""

from __future__ import annotations

from typing import Any

import pytest

from viiwork_core.clock import SystemClock
from viiwork_core.config.load import parse_config
from viiwork_core.config.schema import Config
from viiwork_core.errors import ConfigError
from viiwork_core.node.telemetry import traces_of

HERE = "http://127.0.0.1:9"


def config(text: str) -> Config:
    return parse_config(f"telemetry: {text}", {"HOME": "/nowhere"})


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("{}", False),
        ("{traces: true}", True),
        (f"{{endpoint: '{HERE}'}}", True),
        (f"{{endpoint: '{HERE}', traces: off}}", False),
        ("{service_name: x}", False),
    ],
)
def test_traces_are_off_unless_they_are_wanted(text: str, wanted: bool) -> None:
    assert config(text).telemetry.wanted is wanted
    assert (traces_of(config(text), SystemClock(), {}) is not None) is wanted


def test_opentelemetry_s_own_switch_counts() -> None:
    assert traces_of(config("{traces: true}"), SystemClock(), {"OTEL_SDK_DISABLED": "TRUE"}) is None


@pytest.mark.parametrize("value", [None, "", "hush", "=hush", "na\u00efve=hush", "key=hu\nsh"])
def test_headers_that_are_none_are_refused_and_not_repeated(value: str | None) -> None:
    wanted = config(f"{{endpoint: '{HERE}', headers_env: KEY}}")
    with pytest.raises(ConfigError, match=r"telemetry\.headers_env: KEY is") as raised:
        traces_of(wanted, SystemClock(), {} if value is None else {"KEY": value})
    assert "hush" not in f"{raised.value} {raised.value.remedy}"
    assert raised.value.remedy


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("endpoint", "127.0.0.1:4318"),
        ("endpoint", "http://user:secret@collector:4318"),
        ("endpoint", "http://collector:4318/?key=secret"),
        ("endpoint", "ftp://collector"),
        ("endpoint", "http://:4318"),
        ("sample_ratio", 1.5),
        ("sample_ratio", -0.1),
        ("headers_env", "Authorization=Bearer x"),
    ],
)
def test_what_is_no_such_value_is_refused_by_its_key(key: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=rf"telemetry\.{key} "):
        config(f'{{{key}: "{value}"}}' if isinstance(value, str) else f"{{{key}: {value}}}")
