"""The layout: which models live where, with how much context. Pure.

The largest model first, on the fewest cards that hold it, each with the most context that fits; cards that are left
over then serve further backends of the same models, the largest first again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from viiwork_core.config.model import KvShareConfig
from viiwork_core.contracts.engine import Vendor
from viiwork_core.contracts.recognition import FoundModel
from viiwork_core.engines.gpus.gpu import Gpu
from viiwork_core.setup.hardware import GIB, MIB, Hardware
from viiwork_core.setup.scan import Recognised

CONTEXTS: Final = (8192, 16384, 32768, 49152, 65536)
"""Tokens per slot that are proposed: an agent's turns fill the larger ones, and beyond them the cache of one slot
outgrows the weights of many models."""

SLOTS: Final = 2
"""One request must not keep all others waiting; more slots are the operator's choice, at the price of context."""

CARD_OVERHEAD: Final = GIB
"""Of each card, beside weights and cache: the driver's context and the engine's compute buffers. An allowance of the
field for llama.cpp with whole layers on a card, not a measurement of this machine."""

SHARED_OVERHEAD: Final = GIB // 2
"""The same for each backend in shared memory, where no driver takes a part for itself."""


@dataclass(frozen=True, slots=True)
class Need:
    """Bytes that one backend takes."""

    weights: int
    """The size of the model's files: engines keep the weights as they lie on disk."""

    cache: int | None
    """Tokens per slot, times slots, times what the files say that a token takes, in 16 bits. None: they do not say."""

    overhead: int

    @property
    def total(self) -> int:
        """All that is known of."""
        return self.weights + (self.cache or 0) + self.overhead

    def text(self) -> str:
        """For people."""
        cache = "a cache of unknown size" if self.cache is None else f"cache {gib(self.cache)}"
        return f"{gib(self.total)}: weights {gib(self.weights)}, {cache}, overhead {gib(self.overhead)}"


@dataclass(frozen=True, slots=True)
class Line:
    """One model as it is to be served: an entry of models[]."""

    name: str
    engine: str
    model: FoundModel
    context: int
    parallel: int = SLOTS
    gpus: tuple[int, ...] = ()
    gpus_per_backend: int = 1
    share: str | None = None
    """The group of hosts that hand each other its caches."""

    options: Mapping[str, Any] = field(default_factory=dict)
    """The engine's block."""

    on_card: bool = False
    """Whether its cards have memory of their own."""

    @property
    def backends(self) -> int:
        return max(1, len(self.gpus) // max(1, self.gpus_per_backend))

    @property
    def need(self) -> Need:
        """Of one backend."""
        return need(self.model, self.context, self.parallel, self.gpus_per_backend if self.on_card else 0)

    def entry(self) -> dict[str, Any]:
        """As it stands in the configuration."""
        entry: dict[str, Any] = {"name": self.name, "engine": self.engine, "path": str(self.model.path)}
        entry |= {"context": self.context, "parallel": self.parallel}
        if self.gpus:
            entry["gpus"] = list(self.gpus)
        if self.gpus_per_backend != 1:
            entry["gpus_per_backend"] = self.gpus_per_backend
        if self.share is not None:
            entry["kv_share"] = {"group": self.share, **self._saved_from()}
        return entry | ({self.engine: dict(self.options)} if self.options else {})

    def _saved_from(self) -> dict[str, int]:
        """Where no conversation would reach the default length from which on caches are saved, half a slot's."""
        usual = KvShareConfig.model_fields["min_tokens"].default
        return {"min_tokens": self.context // 2} if self.context <= usual else {}

    def text(self) -> str:
        """For people, in one line."""
        cards = f"GPU {','.join(map(str, self.gpus))}" if self.gpus else "processor"
        each = f", {self.backends} backends" if self.backends > 1 else ""
        return f"{self.name} ({self.engine}): {cards}{each}, {self.parallel} slots of {self.context} tokens"


@dataclass(frozen=True, slots=True)
class Layout:
    """What is proposed."""

    lines: tuple[Line, ...] = ()
    left_out: Mapping[str, str] = field(default_factory=dict)
    """By name: why a model found no place."""


def gib(size: int) -> str:
    """For people."""
    # A tenth of a GiB is where the rounding would hide most of it.
    return f"{size / GIB:.1f} GiB" if size >= GIB // 10 or not size else f"{max(1, round(size / MIB))} MiB"


def need(model: FoundModel, context: int, parallel: int, cards: int) -> Need:
    """Of one backend on this many cards with memory of their own; 0: in shared memory."""
    cache = None if model.token_bytes is None else context * parallel * model.token_bytes
    return Need(model.bytes, cache, cards * CARD_OVERHEAD if cards else SHARED_OVERHEAD)


def names(found: Sequence[Recognised]) -> list[str]:
    """A name for each, none twice: where the models' own agree, that of the file, then with a number."""
    taken = set[str]()
    return [_taken(one.model, taken) for one in found]


def _taken(model: FoundModel, taken: set[str]) -> str:
    stem = "".join(letter if letter.isprintable() and not letter.isspace() else "-" for letter in model.path.stem)
    offers = (model.name, stem.lower()[:100], *(f"{model.name}-{number}" for number in range(2, 1000)))
    name = next(offer for offer in offers if offer not in taken)
    taken.add(name)
    return name


def contexts(model: FoundModel) -> tuple[int, ...]:
    """What may be proposed, rising: nothing beyond what the model was trained on."""
    trained = model.context
    if trained is None:
        return CONTEXTS
    fitting = tuple(size for size in CONTEXTS if size <= trained)
    return (*fitting, trained) if trained < CONTEXTS[-1] and trained not in fitting else fitting


def propose(
    found: Sequence[Recognised], hardware: Hardware, *, on_cpu: frozenset[str], called: Sequence[str] = ()
) -> Layout:
    """A place for each of these models, as far as there is room. `on_cpu`: the engines that need no GPU."""
    pairs = zip(called or names(found), found, strict=True)
    ordered = sorted(pairs, key=lambda pair: pair[1].model.bytes, reverse=True)
    if hardware.has_cards:
        return _on_cards(ordered, hardware.cards)
    if hardware.vendor is Vendor.APPLE:
        return _in_memory(ordered, hardware.shared, (0,) if hardware.cards else ())
    unfit = {name: f"{one.engine} does not run without a GPU" for name, one in ordered if one.engine not in on_cpu}
    layout = _in_memory([pair for pair in ordered if pair[0] not in unfit], hardware.shared, ())
    return replace(layout, left_out={**unfit, **layout.left_out})


def _on_cards(ordered: Sequence[tuple[str, Recognised]], cards: Sequence[Gpu]) -> Layout:
    free = sorted((card for card in cards if card.memory_total), key=lambda card: (card.memory_total, card.index))
    lines, left_out = list[Line](), dict[str, str]()
    for name, one in ordered:
        placed = _placed(name, one, free)
        if placed is None:
            left_out[name] = _no_room(one.model, free)
        else:
            lines.append(placed)
            free = [card for card in free if card.index not in placed.gpus]
    return Layout(tuple(_spread(lines, free)), left_out)


def _no_room(model: FoundModel, free: Sequence[Gpu]) -> str:
    if not free:
        return "no card is left for it"
    least = need(model, contexts(model)[0], 1, len(free))
    room = len(free) * (free[0].memory_total or 0) * MIB
    return f"it needs {gib(least.total)} on {len(free)} cards, which hold {gib(room)}: the smallest one counts for each"


def _placed(name: str, one: Recognised, free: Sequence[Gpu]) -> Line | None:
    """On the fewest cards, and of those the smallest that hold it. `free` by rising memory."""
    for parallel in (SLOTS, 1):
        for count in range(1, len(free) + 1):
            for start in range(len(free) - count + 1):
                chosen = free[start : start + count]
                room = count * (chosen[0].memory_total or 0) * MIB
                context = _largest(one.model, parallel, count, room)
                if context is not None:
                    gpus = tuple(sorted(card.index for card in chosen))
                    line = Line(name, one.engine, one.model, context, parallel, gpus, count, on_card=True)
                    return replace(line, options=one.model.options)
    return None


def _largest(model: FoundModel, parallel: int, cards: int, room: int) -> int | None:
    """The most context that fits; the least there is for a model whose cache is of unknown size. None: none fits."""
    sizes = contexts(model) if model.token_bytes is not None else contexts(model)[:1]
    return next((size for size in reversed(sizes) if need(model, size, parallel, cards).total <= room), None)


def _spread(lines: Sequence[Line], free: Sequence[Gpu]) -> Iterator[Line]:
    """Further backends on cards that are left, where such a backend fits as the first one does."""
    left = list(free)
    for line in lines:
        gpus, count = line.gpus, line.gpus_per_backend
        fitting = [card for card in left if (card.memory_total or 0) * MIB * count >= line.need.total]
        while len(fitting) >= count:
            more, fitting = fitting[:count], fitting[count:]
            gpus += tuple(sorted(card.index for card in more))
        left = [card for card in left if card.index not in gpus]
        yield replace(line, gpus=tuple(sorted(gpus)) if count == 1 else gpus)


def _in_memory(ordered: Sequence[tuple[str, Recognised]], room: int, gpus: tuple[int, ...]) -> Layout:
    """All in one memory. Each first gets a place with the least context, then, in the same order, more."""
    lines, left_out = list[Line](), dict[str, str]()
    for name, one in ordered:
        line = _smallest(name, one, room, gpus)
        if line is None:
            least = need(one.model, contexts(one.model)[0], 1, 0)
            left_out[name] = f"it needs {gib(least.total)}, and {gib(room)} of memory are left"
        else:
            lines.append(line)
            room -= line.need.total
    grown = list[Line]()
    for line in lines:
        size = _largest(line.model, line.parallel, 0, room + line.need.total) or line.context
        grown.append(replace(line, context=size))
        room -= grown[-1].need.total - line.need.total
    return Layout(tuple(grown), left_out)


def _smallest(name: str, one: Recognised, room: int, gpus: tuple[int, ...]) -> Line | None:
    for parallel in (SLOTS, 1):
        line = Line(name, one.engine, one.model, contexts(one.model)[0], parallel, gpus)
        if line.need.total <= room:
            return replace(line, options=one.model.options)
    return None


def shortages(lines: Sequence[Line], hardware: Hardware) -> dict[str, str]:
    """By name: why a line that somebody wrote does not fit, as far as is known. A node would start it all the same."""
    if not hardware.has_cards:
        return _of_memory(lines, hardware.shared)
    sizes = {card.index: card.memory_total for card in hardware.cards}
    return {line.name: why for line in lines if (why := _of_cards(line, sizes))} | _of_memory(
        [line for line in lines if not line.gpus], hardware.shared
    )


def _of_memory(lines: Sequence[Line], room: int) -> dict[str, str]:
    found = dict[str, str]()
    for line in lines:
        room -= line.need.total
        if room < 0:
            found[line.name] = f"it needs {line.need.text()}; that is {gib(-room)} more than the memory has room for"
    return found


def _of_cards(line: Line, sizes: Mapping[int, int | None]) -> str:
    known = [size for index in line.gpus if (size := sizes.get(index))]
    if not line.gpus or len(known) < len(line.gpus):
        return ""  # what cards are not here is for others to say
    room = min(known) * MIB * line.gpus_per_backend
    if line.need.total <= room:
        return ""
    return f"it needs {line.need.text()}; {line.gpus_per_backend} of its cards hold {gib(room)}"
