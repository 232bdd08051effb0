"""The YAML reader: values, lines, and what it refuses."""

from __future__ import annotations

import pytest

from viiwork_core.config.document import parse
from viiwork_core.errors import ConfigError


def test_values_and_lines() -> None:
    data, source = parse("a: 1\nb:\n  - x: yes\n  - y: 2024-01-01\n", "t")
    assert data == {"a": 1, "b": [{"x": True}, {"y": "2024-01-01"}]}
    assert source.line(("b", 1, "y")) == 4
    assert source.line(("b", 0, "not", "there")) == 3
    assert source.line(("nowhere",)) is None


@pytest.mark.parametrize("text", ["", "# nothing\n", "---\n", "~"])
def test_an_empty_document_is_an_empty_mapping(text: str) -> None:
    assert parse(text, "t")[0] == {}


def test_all_duplicate_keys_are_named_with_their_lines() -> None:
    with pytest.raises(ConfigError) as caught:
        parse("a: 1\nb: {c: 1, c: 2}\na: 2\n", "t")
    assert caught.value.message.splitlines() == [
        "a (line 1): appears twice, on lines 1 and 3",
        "b.c (line 2): appears twice, on lines 2 and 2",
    ]


def test_aliases_and_merge_keys_work() -> None:
    data, _ = parse("base: &b {x: 1, y: 1}\nm:\n  <<: *b\n  y: 2\nn: *b\no: {<<: [{x: 5}, *b]}\n", "t")
    assert data["m"] == {"x": 1, "y": 2}
    assert data["n"] == {"x": 1, "y": 1}
    assert data["o"] == {"x": 5, "y": 1}


BOMB = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 12)
)
MERGE_BOMB = "a0: &a0 {x: 1}\n" + "".join(
    f"a{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * 9)}]}}\n" for n in range(1, 12)
)


@pytest.mark.parametrize("text", [BOMB, MERGE_BOMB, "a: &a [*a]\n", "a: &a {b: *a}\n"])
def test_aliases_that_stand_for_too_much_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="aliases expand to too much"):
        parse(text, "t")


@pytest.mark.parametrize("text", ["[" * 5000, "a: " + "{a: " * 5000, "- " * 5000])
def test_deep_nesting_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"t \(line 1\): is not YAML: nested over 32 deep"):
        parse(text, "t")


@pytest.mark.parametrize(
    "text",
    ["a: !!python/object/apply:os.system [id]", "a: !x 1", "a: !!binary aGk=", "a: !!set {x}", "a: !!omap [x: 1]"],
)
def test_tags_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="YAML tag that is not allowed"):
        parse(text, "t")


@pytest.mark.parametrize("text", ["a: !!int x", "a: !!bool perhaps", "a: " + "9" * 5000])
def test_scalars_that_cannot_be_converted_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"a \(line 1\): cannot be read"):
        parse(text, "t")


@pytest.mark.parametrize("text", ["1: x", "on: x", "[a]: x", "? {a: b}\n: x"])
def test_keys_are_text(text: str) -> None:
    with pytest.raises(ConfigError, match="not text; put it in quotes"):
        parse("m:\n  " + text.replace("\n", "\n  "), "t")


@pytest.mark.parametrize("text", ["a: [", "a: b: c", "a: *x", "a: 1\n---\nb: 2\n", "\x00", "a: \x07"])
def test_what_is_not_yaml_is_said_with_its_origin(text: str) -> None:
    with pytest.raises(ConfigError, match=r"^t.*is not YAML"):
        parse(text, "t")


@pytest.mark.parametrize("text", ["[a]", "text", "5"])
def test_the_document_is_a_mapping(text: str) -> None:
    with pytest.raises(ConfigError, match="block of keys"):
        parse(text, "t")


def test_a_syntax_error_does_not_quote_the_line() -> None:
    with pytest.raises(ConfigError) as caught:
        parse("secret: [hunter2\n", "t")
    assert "hunter2" not in caught.value.message
