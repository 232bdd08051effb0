"""Which files of a folder are models for llama-server, and what they say of themselves."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

from viiwork_core import ConfigError, FolderListing, FoundModel
from viiwork_llamacpp.launch import SHARD
from viiwork_llamacpp.model import Model, NotAModel, read_model

_SUFFIX = ".gguf"

_QUANTISATION = re.compile(
    r"([-._](ud|imat|i1))?[-._](i?q\d\w*|tq\d\w*|bf16|fp?16|fp?32|mxfp4\w*|nvfp4\w*)$", re.IGNORECASE
)
"""What names of such files end with: Q4_K_M, UD-IQ2_XXS, bf16."""

_REST = "fetch it again, whole"


def recognize(folder: FolderListing) -> Iterator[FoundModel]:
    """Each model once, parts under their first. Projectors for pictures are left out: they are no models."""
    stems = dict[tuple[str, int], list[int]]()
    for name in sorted(folder.files):
        part = SHARD.fullmatch(name)
        if part is not None:
            stems.setdefault((part["stem"], int(part["count"])), []).append(int(part["index"]))
        elif name.lower().endswith(_SUFFIX):
            yield from _model(folder, name[: -len(_SUFFIX)], (name,))
    for (stem, count), found in stems.items():
        yield from _in_parts(folder, stem, count, found)


def _in_parts(folder: FolderListing, stem: str, count: int, found: list[int]) -> Iterator[FoundModel]:
    # Counted against what is there: a name can speak of 99,999 parts.
    if len(found) == count and set(found) == set(range(1, count + 1)):
        yield from _model(folder, stem, tuple(_part(stem, number, count) for number in range(1, count + 1)))
        return
    missing = [number for number in range(1, min(count, len(found) + 1) + 1) if number not in found]
    first = f"part {missing[0]} of {count} is missing" if missing else f"it has parts beyond {count}"
    more = f", and {count - len(found) - 1} more" if missing and count > len(found) + 1 else ""
    size = sum(folder.files[_part(stem, number, count)] for number in found)
    path = folder.path / _part(stem, 1, count)
    yield FoundModel(called(stem), path, size, problem=f"{first}{more}; fetch all parts of it")


def _part(stem: str, number: int, count: int) -> str:
    return f"{stem}-{number:05}-of-{count:05}{_SUFFIX}"


def _model(folder: FolderListing, stem: str, names: tuple[str, ...]) -> Iterator[FoundModel]:
    paths, size = [folder.path / name for name in names], sum(folder.files[name] for name in names)
    try:
        model = read_model(paths, stem)
    except NotAModel:
        return
    except ConfigError as error:
        what = error.message.partition("].path: ")[2] or error.message
        yield FoundModel(called(stem), paths[0], size, problem=f"{what}; {error.remedy or _REST}")
        return
    yield FoundModel(called(stem), paths[0], size, _kind(model), model.trained_context, model.token_bytes)


def _kind(model: Model) -> str:
    sizes = Counter[str]()
    for tensor in model.tensors:
        sizes[tensor.type] += tensor.bytes
    return " ".join(filter(None, (model.architecture, *(kind for kind, _ in sizes.most_common(1)))))


def called(stem: str) -> str:
    """A name for clients, of a file's name without its ending."""
    plain = _QUANTISATION.sub("", stem) or stem
    return re.sub(r"[^a-z0-9._-]+", "-", plain.lower()).strip("-") or "model"
