"""The external engine: which addresses it takes, what it asks servers, and what it makes of their answers."""

from __future__ import annotations

import asyncio
import datetime
import ipaddress
import json
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from pydantic import ValidationError

from viiwork_core import Address, ConfigError, EngineUnreachable, Load, Probe, Spec, UsageSource
from viiwork_core.builtin.external import REPLY_LIMIT, External, ExternalOptions, address_of
from viiwork_core.testing.engine_kit import kit_context

SPEC = Spec(model="m", index=0, backends=1, path=None, context=4096, parallel=3)
KEY = "sk-a-key-of-the-server"


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("http://127.0.0.1:9001", Address("127.0.0.1", 9001)),
        ("http://127.0.0.1:9001/", Address("127.0.0.1", 9001)),
        ("http://127.0.0.1:11434/v1", Address("127.0.0.1", 11434)),
        ("http://127.0.0.1:11434/v1/", Address("127.0.0.1", 11434)),
        ("http://gpu-box", Address("gpu-box", 80)),
        ("HTTPS://API.example.com", Address("api.example.com", 443, tls=True)),
        ("https://api.example.com/openai/v1", Address("api.example.com", 443, tls=True, base="/openai")),
        ("http://my_host:8000/gpu1/", Address("my_host", 8000, base="/gpu1")),
        ("http://[::1]:8000/v1", Address("::1", 8000)),
        ("https://[2001:DB8::0:1]", Address("2001:db8::1", 443, tls=True)),
    ],
)
def test_a_url_is_an_address(url: str, address: Address) -> None:
    assert address_of(url) == address
    assert address_of(address.url) == address


@pytest.mark.parametrize(
    ("url", "what"),
    [
        ("", "must begin with http"),
        ("127.0.0.1:9001", "must begin with http"),
        ("ftp://host", "must begin with http"),
        ("http://", "must name a host"),
        ("http://:80", "must name a host"),
        ("http://a..b", "must name a host"),
        ("http://-a", "must name a host"),
        ("http://h\u00f6st", "must name a host"),
        (f"http://{'a' * 64}", "must name a host"),
        ("http://a b", "must name a host"),
        ("http://[::1", "is no URL"),
        ("http://[fe80::1%25eth0]", "IPv6"),
        ("http://a:99999", "is no URL"),
        ("http://a:x", "is no URL"),
        ("http://a:0", "a port of 1 to 65535"),
        ("http://user:secret@a", "no user and password"),
        ("http://a/?key=secret", "what follows ?"),
        ("http://a/#x", "what follows ?"),
        ("http://a/v1/chat/completions", "leave out /v1/chat/completions"),
        ("http://a/x/v1/models/", "leave out /v1/models"),
        ("http://a/../b", "a plain path"),
        ("http://a//b", "a plain path"),
        ("http://a/%2e", "a plain path"),
    ],
)
def test_what_is_no_address_is_told_without_the_url(url: str, what: str) -> None:
    with pytest.raises(ValueError, match=r"^(must|is)") as caught:
        address_of(url)
    assert what in str(caught.value)
    assert "secret" not in str(caught.value)


def refused(**block: Any) -> str:
    with pytest.raises(ValidationError) as caught:
        ExternalOptions.model_validate({"urls": ["http://a"], **block})
    return str(caught.value)


def test_options_that_cannot_be_meant_are_refused() -> None:
    assert "urls" in refused(urls=[])
    assert "urls.1" in refused(urls=["http://a", "nonsense"])
    assert "names a server twice" in refused(urls=["http://a:80/v1", "http://a"])
    assert "put the key into that variable" in refused(api_key_env="sk-secret!")
    assert "model" in refused(model="a\nb")
    assert "usage" in refused(usage="always")
    assert "path" in refused(path="/models/x")


def make(*urls: str, **block: Any) -> External:
    options = ExternalOptions.model_validate({"urls": urls or ("http://127.0.0.1:1",), **block})
    return External(options, kit_context(Path()))


def test_one_address_a_url_and_nothing_to_launch() -> None:
    engine = make("http://a:1", "https://b/x/v1")
    assert engine.addresses() == (Address("a", 1), Address("b", 443, tls=True, base="/x"))
    assert engine.launch(SPEC) is None


def test_the_wire_says_what_the_options_say(monkeypatch: pytest.MonkeyPatch) -> None:
    assert make().varied_wire() == External.wire
    monkeypatch.setenv("SERVERS_KEY", f" {KEY}\n")
    wire = make(api_key_env="SERVERS_KEY", model="qwen3:8b", usage="include_usage").varied_wire()
    own: dict[str, Any] = {
        "headers": (("authorization", f"Bearer {KEY}"),),
        "model": "qwen3:8b",
        "usage": UsageSource.INCLUDE_USAGE,
    }
    assert wire == replace(External.wire, **own)
    assert KEY not in repr(wire)


@pytest.mark.parametrize("value", [None, "", "  ", "two words", "line\nbreak", "caf\u00e9"])
def test_a_key_that_is_not_there_or_none_is_an_error_that_names_the_option(
    monkeypatch: pytest.MonkeyPatch, value: str | None
) -> None:
    monkeypatch.delenv("SERVERS_KEY", raising=False)
    if value is not None:
        monkeypatch.setenv("SERVERS_KEY", value)
    with pytest.raises(ConfigError, match=r"external\.api_key_env: the environment variable SERVERS_KEY") as caught:
        make(api_key_env="SERVERS_KEY")
    assert caught.value.remedy
    assert not value or not value.strip() or value not in str(caught.value)


# What servers say


@asynccontextmanager
async def server(
    status: int, body: bytes, *, headers: str = "", context: ssl.SSLContext | None = None
) -> AsyncIterator[tuple[Address, list[str]]]:
    """A server that gives one answer to everything, and the heads of what it was asked."""
    heads: list[str] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append((await reader.readuntil(b"\r\n\r\n")).decode())
        writer.write(f"HTTP/1.1 {status} X\r\n{headers}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0, ssl=context) as listening:
        yield Address("127.0.0.1", listening.sockets[0].getsockname()[1], tls=context is not None), heads


def asked(status: int, body: bytes, engine: External | None = None, *, headers: str = "") -> tuple[Probe, list[str]]:
    async def scene() -> tuple[Probe, list[str]]:
        async with server(status, body, headers=headers) as (address, heads), engine or make() as opened:
            return await opened.probe(address), heads

    return asyncio.run(scene())


@pytest.mark.parametrize("body", [b'{"object": "list", "data": []}', b"[]", b"{}"])
def test_json_from_v1_models_is_ready(body: bytes) -> None:
    probe, heads = asked(200, body)
    assert probe == Probe(ready=True)
    assert heads[0].startswith("GET /v1/models HTTP/1.1\r\n")
    assert "authorization" not in heads[0].lower()


def test_the_key_goes_with_the_question(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SERVERS_KEY", KEY)
    _, heads = asked(200, b"{}", make(api_key_env="SERVERS_KEY"))
    assert f"authorization: Bearer {KEY}\r\n" in heads[0]


@pytest.mark.parametrize(
    ("status", "body", "reason"),
    [
        (200, b"<html>", "other than JSON"),
        (200, b"\xff\xfe\x00", "other than JSON"),
        (200, b"[" * 100_000, "other than JSON"),
        (200, b" " * (REPLY_LIMIT + 1), "more than 4 MiB"),
        (401, b'{"error": "sk-quoted is wrong"}', "set external.api_key_env"),
        (403, b"", "set external.api_key_env"),
        (404, b"", "the path before /v1"),
        (500, b"{}", "answers 500"),
        (503, b'{"error": "loading"}', "answers 503"),
    ],
)
def test_anything_else_is_not_ready_with_the_reason(status: int, body: bytes, reason: str) -> None:
    probe, _ = asked(status, body)
    assert not probe.ready
    assert probe.reason is not None
    assert reason in probe.reason
    assert "quoted" not in probe.reason


def test_a_redirect_is_not_followed() -> None:
    probe, heads = asked(307, b"", headers="Location: /v1/models?again\r\n")
    assert not probe.ready
    assert probe.reason is not None
    assert "a redirect, which is not followed" in probe.reason
    assert len(heads) == 1


def test_a_server_that_is_away_is_unreachable() -> None:
    async def scene() -> None:
        async with make() as engine:
            await engine.probe(Address("127.0.0.1", 1))

    with pytest.raises(EngineUnreachable, match=r"no server answers at http://127\.0\.0\.1:1:"):
        asyncio.run(scene())


def certified(folder: Path) -> tuple[ssl.SSLContext, Path]:
    """A server's context with a certificate for 127.0.0.1, and the file that makes a client trust it."""
    key, name = ec.generate_private_key(ec.SECP256R1()), x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "x")])
    now, day = datetime.datetime.now(datetime.UTC), datetime.timedelta(days=1)
    builder = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number(), now - day, now + day)
    here = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.IPv4Address("127.0.0.1"))])
    made = builder.add_extension(here, critical=False).sign(key, hashes.SHA256())
    pem, bare = serialization.Encoding.PEM, serialization.NoEncryption()
    both, trusted = folder / "server.pem", folder / "trusted.pem"
    trusted.write_bytes(made.public_bytes(pem))
    both.write_bytes(key.private_bytes(pem, serialization.PrivateFormat.PKCS8, bare) + trusted.read_bytes())
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(both)
    return context, trusted


def test_a_certificate_counts_if_the_system_trusts_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    context, trusted = certified(tmp_path)

    async def scene() -> Probe:
        async with server(200, b"{}", context=context) as (address, _), make() as engine:
            return await engine.probe(address)

    with pytest.raises(EngineUnreachable, match="CERTIFICATE_VERIFY_FAILED"):
        asyncio.run(scene())
    monkeypatch.setenv("SSL_CERT_FILE", str(trusted))
    assert asyncio.run(scene()) == Probe(ready=True)


def loaded(listed: object, **block: Any) -> Load:
    async def scene() -> Load:
        async with server(200, json.dumps(listed).encode()) as (address, _), make(**block) as engine:
            assert (await engine.probe(address)).ready
            return await engine.load(SPEC, address)

    return asyncio.run(scene())


def models(*entries: Mapping[str, Any]) -> dict[str, Any]:
    return {"object": "list", "data": list(entries)}


def test_load_has_the_operators_slots_and_no_figure_of_what_is_busy() -> None:
    assert loaded(models()) == Load(slots=3, busy=None)


@pytest.mark.parametrize(
    ("listed", "block", "context"),
    [
        (models({"id": "m", "max_model_len": 8192}), {}, 8192),
        (models({"id": "m", "context_length": 8192}), {}, 8192),
        (models({"id": "m", "meta": {"n_ctx": 8192, "n_ctx_train": 1 << 20}}), {}, 8192),
        (models({"id": "m", "max_model_len": 1, "context_length": 2}), {}, 1),
        ([{"id": "m", "context_length": 8192}], {}, 8192),
        (models({"id": "m", "context_length": 1}, {"id": "x", "context_length": 2}), {"model": "x"}, 2),
        (models({"id": "/models/m.gguf", "max_model_len": 8192}), {}, 8192),
        (models({"id": "a", "max_model_len": 1}, {"id": "b", "max_model_len": 2}), {}, None),
        (models({"id": "m"}), {}, None),
        (models({"id": 5, "max_model_len": 1}), {}, None),
        (models({"id": "m", "max_model_len": "8192"}), {}, None),
        (models({"id": "m", "max_model_len": True}), {}, None),
        (models({"id": "m", "max_model_len": 0}), {}, None),
        (models({"id": "m", "max_model_len": 1 << 41}), {}, None),
        (models({"id": "m", "meta": [1]}), {}, None),
        ({"data": {"id": "m"}}, {}, None),
        ([None, 1], {}, None),
        (7, {}, None),
    ],
)
def test_the_context_is_what_the_server_tells_of_the_model(
    listed: object, block: dict[str, Any], context: int | None
) -> None:
    assert loaded(listed, **block).context == context
