"""Join codes: what one says comes back, any damage is told, and none of it is shown."""

from __future__ import annotations

import base64
import zlib

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from viiwork_core.errors import ConfigError
from viiwork_core.security.join_code import (
    JoinCode,
    JoinCodeDamaged,
    JoinCodeRefused,
    JoinCodeTruncated,
    JoinCodeVersion,
    NotAJoinCode,
    checked_address,
    decode,
    encode,
)

SECRET = bytes(range(32))
CODE = encode(JoinCode("192.0.2.7:7946", SECRET))
OPEN = encode(JoinCode("[2001:db8::7]:7946", None))

secrets = st.none() | st.binary(min_size=32, max_size=32)
ports = st.integers(1, 65535)
hosts = st.one_of(
    st.ip_addresses(v=4).filter(lambda ip: not (ip.is_unspecified or ip.is_multicast)).map(str),
    st.ip_addresses(v=6).filter(lambda ip: not (ip.is_unspecified or ip.is_multicast)).map("[{}]".format),
    st.sampled_from(["box", "gpu-1.lan", "alpha.tail1234.ts.net", "x" * 63 + ".example"]),
)
codes = st.builds(lambda host, port, secret: JoinCode(f"{host}:{port}", secret), hosts, ports, secrets)
printable = st.characters(min_codepoint=33, max_codepoint=126) | st.sampled_from("ä€😀")


def sealed(content: bytes, prefix: str = "viiwork1-") -> str:
    """Any content with a checksum that fits."""
    return prefix + base64.urlsafe_b64encode(content + zlib.crc32(content).to_bytes(4, "big")).decode().rstrip("=")


def refusal(text: str) -> JoinCodeRefused:
    with pytest.raises(JoinCodeRefused) as caught:
        decode(text)
    return caught.value


@given(codes)
def test_what_a_code_says_comes_back(code: JoinCode) -> None:
    text = encode(code)
    assert text.startswith("viiwork1-")
    assert text.isascii()
    assert decode(text) == code
    assert code.address == (f"[{code.host}]" if ":" in code.host else code.host) + f":{code.port}"


def test_the_form_is_the_one_that_is_written_down() -> None:
    content = bytes((1, 1)) + SECRET + bytes((14,)) + b"192.0.2.7:7946"
    assert sealed(content) == CODE
    assert sealed(bytes((1, 0, 18)) + b"[2001:db8::7]:7946") == OPEN
    assert decode(CODE).secret_text == base64.b64encode(SECRET).decode()
    assert decode(OPEN).secret_text is None


@given(codes, st.data())
def test_white_space_of_copy_and_paste_means_nothing(code: JoinCode, data: st.DataObject) -> None:
    text = encode(code)
    for _ in range(3):
        at = data.draw(st.integers(0, len(text)))
        text = (
            text[:at] + data.draw(st.sampled_from([" ", "\n", "\r\n", "\t", "\u00a0", "\u200b", "\ufeff"])) + text[at:]
        )
    assert decode(text) == code


@given(codes, st.data())
def test_every_single_character_that_changed_is_told(code: JoinCode, data: st.DataObject) -> None:
    text = encode(code)
    at = data.draw(st.integers(0, len(text) - 1))
    other = data.draw(printable)
    assume(other != text[at])
    refusal(text[:at] + other + text[at + 1 :])


@pytest.mark.parametrize("text", [CODE, OPEN], ids=["secured", "open"])
def test_every_place_and_every_character_of_the_alphabet(text: str) -> None:
    alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_="
    for at in range(len(text)):
        for other in alphabet.replace(text[at], ""):
            refusal(text[:at] + other + text[at + 1 :])


@given(codes, st.data())
def test_a_character_lost_doubled_or_swapped_is_told(code: JoinCode, data: st.DataObject) -> None:
    text = encode(code)
    at = data.draw(st.integers(0, len(text) - 2))
    refusal(text[:at] + text[at + 1 :])
    refusal(text[:at] + data.draw(printable) + text[at:])
    assume(text[at] != text[at + 1])
    refusal(text[:at] + text[at + 1] + text[at] + text[at + 2 :])


def test_a_version_has_one_form() -> None:
    refusal(CODE.replace("viiwork1", "viiwork01"))


@pytest.mark.parametrize("text", [CODE, OPEN], ids=["secured", "open"])
def test_a_code_that_lacks_its_end_is_cut_off(text: str) -> None:
    for end in range(len("viiwork1-"), len(text)):
        assert type(refusal(text[:end])) is JoinCodeTruncated, end


def test_damage_is_told_from_a_cut() -> None:
    middle = len(CODE) // 2
    changed = "A" if CODE[middle] != "A" else "B"
    assert type(refusal(CODE[:middle] + changed + CODE[middle + 1 :])) is JoinCodeDamaged
    assert type(refusal(CODE[:middle] + "!" + CODE[middle + 1 :])) is JoinCodeDamaged
    assert type(refusal(CODE + "AAAA")) is JoinCodeDamaged
    assert type(refusal(CODE + CODE)) is JoinCodeDamaged


@pytest.mark.parametrize("version", [0, 2, 7, 200])
def test_a_code_of_another_version_says_so(version: int) -> None:
    error = refusal(sealed(bytes((version,)) + b"whatever comes then", f"viiwork{version}-"))
    assert type(error) is JoinCodeVersion
    assert f"version {version}" in error.message
    assert "install" in error.remedy


def test_a_flag_that_is_not_known_is_of_a_later_version() -> None:
    assert type(refusal(sealed(bytes((1, 3)) + SECRET + b"\x0e192.0.2.7:7946"))) is JoinCodeVersion


def test_a_prefix_that_does_not_fit_is_damage_and_no_later_version() -> None:
    assert type(refusal(CODE.replace("viiwork1-", "viiwork2-"))) is JoinCodeDamaged


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "hello",
        "viiwork",
        "viiwork-AAAA",
        "Viiwork1-AAAA",
        "192.0.2.7:7946",
        "sk-" + "x" * 40,
        "é" * 9000,
        base64.b64encode(SECRET).decode(),
        "viiwork1-" + "A" * 5000,
        "xviiwork1-AAAA",
        "viiwork²-AAAA",
    ],
)
def test_what_is_no_code_at_all(text: str) -> None:
    assert type(refusal(text)) is NotAJoinCode


@pytest.mark.parametrize(
    "content",
    [
        bytes((1, 1)),
        bytes((1, 1)) + SECRET,
        bytes((1, 1)) + SECRET + b"\x00",
        bytes((1, 0, 30)) + b"192.0.2.7:7946",
        bytes((1, 0, 3)) + b"192.0.2.7:7946",
        bytes((1, 0, 14)) + b"192.0.2.7/7946",
        bytes((1, 0, 4)) + b"\xff\xfe:1",
        bytes((1, 0, 12)) + b"0.0.0.0:7946",
    ],
)
def test_a_checksum_that_fits_makes_no_code_of_nonsense(content: bytes) -> None:
    assert type(refusal(sealed(content))) is JoinCodeDamaged


@given(st.text(max_size=300) | st.text(max_size=100).map("viiwork1-{}".format))
def test_any_text_is_read_or_refused(text: str) -> None:
    refusal(text)


@given(codes, st.integers(0, 400), printable)
def test_nothing_of_the_code_is_shown(code: JoinCode, at: int, other: str) -> None:
    text = encode(code)
    broken = text[: at % len(text)] + other + text[at % len(text) + 1 :]
    assume(broken != text)
    error = refusal(broken)
    shown = f"{error.message} {error.remedy} {error!r} {error.__cause__!r}"
    body = broken[len("viiwork1-") :]
    assert not any(body[place : place + 8] in shown for place in range(max(1, len(body) - 7)))
    assert code.secret is None or repr(code.secret) not in repr(code)


@pytest.mark.parametrize(
    "address",
    [
        "",
        "192.0.2.7",
        "192.0.2.7:0",
        "192.0.2.7:65536",
        "192.0.2.7:",
        ":7946",
        "2001:db8::7:7946",
        "[192.0.2.7]:1",
        "0.0.0.0:1",
        "[::]:1",
        "224.0.0.1:1",
        "[fe80::1%eth0]:1",
        "300.1.1.1:1",
        "-x:1",
        "a..b:1",
        "a b:1",
        "x" * 250 + ":1",
        "[box]:1",
        "box:1 ",
        "box:٣",
        "http://box:1",
        "u@box:1",
    ],
)
def test_an_address_that_nobody_can_dial_is_refused(address: str) -> None:
    with pytest.raises(ConfigError) as caught:
        checked_address(address)
    assert "HOST:PORT" in caught.value.remedy
    with pytest.raises(ConfigError):
        encode(JoinCode(address, None))


def test_an_address_has_one_form() -> None:
    assert checked_address("[2001:DB8:0::7]:7946") == "[2001:db8::7]:7946"
    assert checked_address("Alpha.Example:7946") == "alpha.example:7946"


def test_a_secret_of_another_length_is_a_mistake_of_the_caller() -> None:
    with pytest.raises(ValueError, match="32 bytes"):
        encode(JoinCode("192.0.2.7:7946", b"short"))
