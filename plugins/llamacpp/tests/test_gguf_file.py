"""Reading the header of a GGUF file: what is right is found, and what is wrong is told quickly."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from viiwork_llamacpp import gguf_file
from viiwork_llamacpp.gguf_file import TYPES, DamagedFile, GgufFile, UnknownFormat, read_gguf

TEXT = struct.Struct("<Q").pack


def text(words: str) -> bytes:
    data = words.encode()
    return TEXT(len(data)) + data


def head(tensors: int = 0, values: int = 0, version: int = 3) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, tensors, values)


def word(key: str, value: str) -> bytes:
    return text(key) + struct.pack("<I", 8) + text(value)


def listed(key: str, kind: int, count: int) -> bytes:
    return text(key) + struct.pack("<IIQ", 9, kind, count)


def tensor(name: str, shape: tuple[int, ...], kind: int, offset: int) -> bytes:
    return text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, offset)


def read(path: Path, data: bytes) -> GgufFile:
    path.write_bytes(data)
    return read_gguf(path)


def test_a_real_file_reads_as_the_reference_reader_reads_it(gguf: Path) -> None:
    from gguf import GGUFReader

    theirs = GGUFReader(gguf)
    ours = read_gguf(gguf)
    assert (ours.architecture, ours.number(".context_length")) == ("llama", 32768)
    assert {one.name: (one.type, one.bytes) for one in ours.tensors} == {
        one.name: (one.tensor_type.name, int(one.n_bytes)) for one in theirs.tensors
    }
    scalars = {name: field.contents() for name, field in theirs.fields.items() if len(field.types) == 1}
    assert ours.values == {name: value for name, value in scalars.items() if not name.startswith("GGUF.")}


def test_the_types_are_the_reference_ones() -> None:
    from gguf import GGML_QUANT_SIZES

    theirs = {int(kind): (kind.name, *sizes) for kind, sizes in GGML_QUANT_SIZES.items()}
    assert {kind: TYPES[kind] for kind in TYPES if kind in theirs} == {
        kind: theirs[kind] for kind in TYPES if kind in theirs
    }
    assert len(TYPES.keys() & theirs.keys()) > 25


@pytest.mark.parametrize("share", [0.0, 0.001, 0.1, 0.5, 0.9, 0.999])
def test_a_file_that_was_cut_is_told_wherever_it_ends(gguf: Path, tmp_path: Path, share: float) -> None:
    data = gguf.read_bytes()
    with pytest.raises(DamagedFile, match=r"ends inside its header|cut short"):
        read(tmp_path / "cut.gguf", data[: int(len(data) * share)])
    with pytest.raises(DamagedFile, match=r"bytes of its tensor .* are missing"):
        read(tmp_path / "cut.gguf", data[:-1])


@pytest.mark.parametrize(
    ("data", "error", "words"),
    [
        (b"", DamagedFile, "ends inside its header"),
        (b"GGML" + bytes(40), DamagedFile, "not a GGUF file"),
        (head(version=1) + bytes(40), UnknownFormat, "version 1"),
        (head(version=1 << 24), UnknownFormat, "version"),
        (head(tensors=1 << 60), DamagedFile, "ends inside its header"),
        (head(values=1 << 60), DamagedFile, "ends inside its header"),
        (head(values=1) + TEXT(1 << 63), DamagedFile, "ends inside its header"),
        (head(values=1) + listed("a", 8, 1 << 40), DamagedFile, "ends inside its header"),
        (head(values=1) + listed("a", 10, 1 << 61), DamagedFile, "ends inside its header"),
        (head(values=1) + listed("a", 9, 3) + bytes(40), UnknownFormat, "a list of kind 9"),
        (head(values=1) + text("a") + struct.pack("<I", 77) + bytes(40), UnknownFormat, "a value of kind 77"),
        (head(tensors=1) + text("t") + struct.pack("<I", 4_000_000_000) + bytes(40), DamagedFile, "dimensions"),
        (head(tensors=1) + tensor("t", (1 << 62, 1 << 62), 0, 0) + bytes(64), DamagedFile, "cut short"),
        (head(tensors=1) + tensor("t", (31,), 2, 0) + bytes(64), DamagedFile, "no whole blocks of Q4_0"),
        (head(tensors=1) + tensor("t", (32,), 2, 1 << 63) + bytes(64), DamagedFile, "cut short"),
        (head(tensors=1) + tensor("t", (32,), 200, 1 << 63) + bytes(64), DamagedFile, "cut short"),
    ],
)
def test_what_is_no_good_file_is_told_in_words(tmp_path: Path, data: bytes, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        read(tmp_path / "bad.gguf", data)


def test_a_header_that_never_ends_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gguf_file, "HEADER_LIMIT", 1000)
    with pytest.raises(UnknownFormat, match="over 0 MiB"):
        read(tmp_path / "long.gguf", head(values=1) + listed("a", 0, 5000) + bytes(6000))
    monkeypatch.setattr(gguf_file, "TEXTS_LIMIT", 10)
    with pytest.raises(UnknownFormat, match="list of 11 texts"):
        read(tmp_path / "long.gguf", head(values=1) + listed("a", 8, 11) + bytes(6000))


def test_a_tensor_of_an_unknown_type_takes_the_space_up_to_the_next(tmp_path: Path) -> None:
    places = tensor("a", (7,), 201, 0) + tensor("b", (32,), 2, 32)
    start = -(-len(head() + places) // 32) * 32
    data = (head(tensors=2) + places).ljust(start, b"\0") + bytes(32 + 18)
    assert [(one.type, one.bytes) for one in read(tmp_path / "new.gguf", data).tensors] == [("201", 32), ("Q4_0", 18)]


def test_names_cannot_steer_a_terminal(tmp_path: Path) -> None:
    name = "\x1b[2J\n" + "x" * 500
    with pytest.raises(DamagedFile) as caught:
        read(tmp_path / "m.gguf", head(tensors=1) + tensor(name, (64,), 0, 0))
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 200
    values = word("general.architecture", "a\x07b")
    assert read(tmp_path / "m.gguf", head(values=1) + values).architecture == "a?b"


def test_long_texts_and_lists_are_skipped(tmp_path: Path) -> None:
    values = word("long", "x" * 5000) + listed("list", 5, 3) + bytes(12) + word("general.architecture", "acme")
    assert read(tmp_path / "m.gguf", head(values=3) + values).values == {"general.architecture": "acme"}


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_bytes_that_were_changed_are_read_or_refused(gguf: Path, tmp_path: Path, data: st.DataObject) -> None:
    """Nothing else comes out than a reading or one of the two refusals."""
    content = bytearray(gguf.read_bytes()[:4096])
    for _ in range(data.draw(st.integers(1, 8))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    content += bytes(data.draw(st.sampled_from([0, 100, 1 << 16])))
    try:
        found = read(tmp_path / "fuzzed.gguf", bytes(content))
    except (DamagedFile, UnknownFormat):
        return
    assert all(one.bytes <= len(content) for one in found.tensors)
