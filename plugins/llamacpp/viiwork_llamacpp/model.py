"""A model as its GGUF files describe it, all parts together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from viiwork_core import ConfigError
from viiwork_llamacpp.gguf_file import DamagedFile, GgufFile, Tensor, UnknownFormat, read_gguf

K_QUANTS = frozenset({"Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K"})

_ON_THE_HOST = ("token_embd.weight", "per_layer_token_embd.weight")
"""Look-up tables that llama.cpp leaves in RAM, the first one only where the output has a matrix of its own."""

_RECURRENT = (".ssm.", ".wkv.", ".shortconv.", ".kda.")
"""Settings that only architectures with recurrent layers have."""

_NO_TEXT = frozenset({"clip", "mmproj"})
"""What is loaded beside a model and never as one."""


class NotAModel(ConfigError):
    """A good file that is loaded beside a model and never as one."""


@dataclass(frozen=True, slots=True)
class Model:
    """What matters before a load. None: the files do not say."""

    architecture: str = ""
    trained_context: int | None = None
    window: int | None = None
    """Tokens that a layer with a sliding window sees."""

    recurrent: bool = False
    """Some layers keep a state that cannot be taken back by some tokens: recurrent and hybrid models."""

    token_bytes: int | None = None
    """What one token takes in the KV cache at most, in 16 bits. None also for recurrent models, most of whose layers
    have none."""

    tensors: tuple[Tensor, ...] = ()
    unread: str = ""
    """Why nothing is known: the file may be good, and is of a kind that could not be read."""

    @property
    def on_cards(self) -> tuple[Tensor, ...]:
        """The tensors that go to cards when all layers do."""
        own_output = any(tensor.name == "output.weight" for tensor in self.tensors)
        left = _ON_THE_HOST if own_output else _ON_THE_HOST[1:]
        return tuple(tensor for tensor in self.tensors if tensor.name not in left)

    def share_of(self, types: frozenset[str]) -> float:
        """How much of the weights, in bytes, is of these types: 0 to 1."""
        sizes = Counter[bool]()
        for tensor in self.tensors:
            sizes[tensor.type in types] += tensor.bytes
        return sizes[True] / max(1, sizes.total())


def read_model(files: Sequence[Path], model: str) -> Model:
    """Read the headers of all parts. Blocking.

    Raises ConfigError for what no engine could load: a file that is damaged or no model, or parts that are not one
    model's.
    """
    parts = list[GgufFile]()
    for file in files:
        try:
            parts.append(read_gguf(file))
        except DamagedFile as error:
            raise _refused(model, f"{file.name} cannot be loaded: {error}", "fetch it again, whole") from error
        except OSError as error:
            what = f"{file.name} cannot be read: {error.strerror or error}"
            raise _refused(model, what, "let the node's user read it") from error
        except UnknownFormat as error:
            return Model(unread=f"{file.name} was not understood: {error}")
    _check_parts(parts, files, model)
    return _described(parts, files[0], model)


def _check_parts(parts: Sequence[GgufFile], files: Sequence[Path], model: str) -> None:
    first = parts[0]
    count = first.number("split.count") or 1
    if count != len(parts):
        what = f"{files[0].name} is one of {count} parts, and is named as one of {len(parts)}"
        raise _refused(model, what, f"give the parts back their names: MODEL-00001-of-{count:05}.gguf and so on")
    for index, part in enumerate(parts if count > 1 else ()):
        if part.number("split.no") != index or part.number("split.count") != count:
            what = f"{files[index].name} is another part than its name says"
            raise _refused(model, what, "fetch the parts again, under their own names")
    wanted, found = first.number("split.tensors.count"), sum(len(part.tensors) for part in parts)
    if count > 1 and wanted is not None and wanted != found:
        what = f"its {count} parts have {found} tensors together, and the first one says {wanted}"
        raise _refused(model, what, "fetch all parts of the same model")


def _described(parts: Sequence[GgufFile], path: Path, model: str) -> Model:
    first = parts[0]
    remedy = "write the model's own file here"
    if not first.architecture:
        raise _refused(model, f"{path.name} is no model: it does not name its architecture", remedy)
    if first.architecture in _NO_TEXT:
        what = f"models[{model}].path: {path.name} is no model: it is a projector for pictures"
        raise NotAModel(what, remedy=f"{remedy}, and --mmproj into args")
    recurrent = any(first.has(prefix) for prefix in _RECURRENT)
    return Model(
        architecture=first.architecture,
        trained_context=first.number(".context_length") or None,
        window=first.number(".attention.sliding_window") or None,
        recurrent=recurrent,
        token_bytes=None if recurrent else _token_bytes(first),
        tensors=tuple(tensor for part in parts for tensor in part.tensors),
    )


def _token_bytes(first: GgufFile) -> int | None:
    """Keys and values of all layers, as llama.cpp lays them out: heads of 16 bit numbers. A file whose layers differ
    lists its heads, and lists are not read: then as if each query head had its own, which is the most."""
    layers, heads = first.number(".block_count"), first.number(".attention.head_count")
    width = first.number(".embedding_length")
    if not layers or not heads or not width:
        return None
    own = first.number(".attention.head_count_kv") or heads
    key = first.number(".attention.key_length") or width // heads
    value = first.number(".attention.value_length") or width // heads
    return layers * own * (key + value) * 2


def _refused(model: str, what: str, remedy: str) -> ConfigError:
    return ConfigError(f"models[{model}].path: {what}", remedy=remedy)
