"""The planner: is it worth importing a replica, is it worth saving a turn, and did an import keep its promise?

Pure functions. Every "no" is a Skip with a reason in words, for the log.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Generic, TypeVar

from viiwork_core.errors import CacheRefused
from viiwork_core.kvshare.holdings import Held
from viiwork_core.kvshare.replicas import Replica
from viiwork_core.kvshare.turns import Usage

WARM_SHARE = 0.9
"""A turn that reused at least this share of its prompt was warm; also the share of a promise that keeps it."""

PARTLY_SHARE = 0.3
"""A turn that reused at least this share of its prompt was partly warm."""

SLACK = 8
"""Tokens by which a saved file may differ from the turn's count: the last token of an answer may or may not be in the
cache, and templates close a message with a few."""

MOVE_S = 60.0
"""The longest that a save or a restore may take: about 1 s a GB was measured, so this is far past the largest."""

RESTORE_S_PER_GIB = 10.0
RESTORE_MIN_S = 5.0
"""What a restore may take where it is not known how long the prompt would be read: about four times what the slowest
engine was seen to take, since its disk may be slow too."""

Target = TypeVar("Target")


@dataclass(frozen=True, slots=True)
class Skip:
    """Not worth it, or not right."""

    reason: str


@dataclass(frozen=True, slots=True)
class Import:
    """Restore this replica into the reserved slot before the turn."""

    replica: Replica

    @property
    def promised_tokens(self) -> int:
        """What the turn should reuse, if its prompt extends the replica."""
        return self.replica.header.tokens


@dataclass(frozen=True, slots=True)
class Export(Generic[Target]):
    """Save the turn and send it there."""

    target: Target


def plan_import(
    *,
    replica: Replica | None,
    held: Held | None,
    fingerprint: str | None,
    context: int | None,
    still: int | None = None,
    missed: bool = False,
    read_s: float | None = None,
    import_s: float | None = None,
) -> Import | Skip:
    """Decide whether the session's replica goes into the chosen backend before its turn.

    `held` is what the backend's cache is believed to hold of the session, and `still` how many tokens the engine says
    it holds (None: it cannot say): a belief that the engine does not confirm counts for nothing. `missed`: the last
    turn served from `held` did not find it. `fingerprint` and `context` (tokens a slot) are the backend's.

    `read_s` is what reading the replica's tokens anew would take, as far as they are not held, and `import_s` what the
    import would; None: not known.
    """
    if replica is None:
        return Skip("no replica of the session is here")
    header = replica.header
    if header.fingerprint != fingerprint:
        return Skip("the replica's fingerprint is not the backend's")
    if context is not None and header.tokens > context:
        return Skip(f"the replica holds {header.tokens} tokens, a slot {context}")
    if held is not None and held.turn >= header.turn and not missed and not _lost(held, still):
        return Skip(f"the backend holds turn {held.turn}, the replica is of turn {header.turn}")
    if read_s is not None and import_s is not None and import_s >= read_s:
        return Skip(f"importing takes about {import_s:.2g} s, reading the prompt {read_s:.2g} s")
    return Import(replica)


def unread(held: Held | None, still: int | None, tokens: int) -> int:
    """How many of a replica's tokens the backend would have to read anew, as far as is known."""
    # Of an older turn with as many tokens or more something was taken back since, and who knows from where on.
    if held is None or held.tokens >= tokens:
        return tokens
    return tokens - (held.tokens if still is None else min(still, held.tokens))


def import_guess(size: int) -> float:
    """Seconds that importing a file of so many bytes may well take, before one was measured: a hopeful guess, so that
    one is tried."""
    return 0.01 + 0.5 * size / (1 << 30)


def restore_deadline(size: int, read_s: float | None) -> float:
    """Seconds that importing a file of so many bytes may take: never longer than reading the prompt would."""
    within = min(MOVE_S, RESTORE_MIN_S + RESTORE_S_PER_GIB * size / (1 << 30))
    return within if read_s is None else min(within, read_s)


def save_deadline(read_s: float | None) -> float:
    """Seconds that a save may take: one that takes longer than reading the prompt is not worth its stall."""
    return MOVE_S if read_s is None else min(MOVE_S, max(1.0, read_s))


def plan_save(
    *,
    tokens: int | None,
    min_tokens: int,
    fingerprint: str | None,
    target: Target | None,
    gain_s: float | None = None,
    stall_s: float | None = None,
) -> Export[Target] | Skip:
    """Decide whether a turn that just ended is saved and sent.

    `tokens` is what the slot's cache holds now (None: the engine did not say), `target` where the session would go
    next (None: there is no such member). `gain_s` is what the save is expected to spare, the time to read the prompt
    times the chance that the session moves, and `stall_s` how long it holds up the engine; None: not known.
    """
    if fingerprint is None:
        return Skip("the backend has no fingerprint")
    if target is None:
        return Skip("no other member of the group can take the session")
    if tokens is None:
        return Skip("the engine did not say how many tokens it holds")
    if tokens < min_tokens:
        return Skip(f"{tokens} tokens are under kv_share.min_tokens, {min_tokens}")
    if gain_s is not None and stall_s is not None and gain_s < stall_s:
        return Skip(f"a save stalls the engine for {stall_s:.2g} s and is expected to spare {gain_s:.2g} s")
    return Export(target)


class Warmth(StrEnum):
    """How much of its prompt a turn reused."""

    WARM = "warm"
    PARTLY = "partly"
    COLD = "cold"


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a turn after an import shows."""

    warmth: Warmth
    kept: bool
    """The engine reused what the restore promised. False: the restore said yes and did little or nothing, or the
    prompt does not extend what was saved."""

    useless: bool = field(default=False, compare=False)
    """The engine reused next to nothing of it."""


def judge(*, promised_tokens: int, cached_tokens: int | None, prompt_tokens: int | None) -> Verdict | None:
    """Compare what a turn reused with its whole prompt (`prompt_tokens` counts the reused ones too) and with what the
    import promised. None when the engine did not say."""
    warmth = warmth_of(cached_tokens, prompt_tokens)
    if cached_tokens is None or warmth is None:
        return None
    share = cached_tokens / max(1, promised_tokens)
    return Verdict(warmth, kept=share >= WARM_SHARE, useless=share < PARTLY_SHARE)


def warmth_of(cached_tokens: int | None, prompt_tokens: int | None) -> Warmth | None:
    """How warm a turn was; None when the engine did not say."""
    if cached_tokens is None or not prompt_tokens:
        return None
    share = cached_tokens / prompt_tokens
    if share >= WARM_SHARE:
        return Warmth.WARM
    return Warmth.PARTLY if share >= PARTLY_SHARE else Warmth.COLD


def _lost(held: Held, still: int | None) -> bool:
    return still is not None and still < WARM_SHARE * held.tokens


def worth(tokens: int, covered: int | None, *, extends_only: bool) -> int:
    """The tokens to expect from a restore. Raises CacheRefused when the prompt shares too little with the file."""
    if covered is None:
        return tokens
    if extends_only and covered < tokens:
        raise CacheRefused(f"the prompt extends {covered} of the replica's {tokens} tokens, and must extend all")
    if covered < PARTLY_SHARE * tokens:
        raise CacheRefused(f"the prompt shares {covered} of the replica's {tokens} tokens")
    return covered


def check_count(saved: int, in_file: int | None, usage: Usage) -> None:
    """A file with another number of tokens than the turn had is another session's, or cut."""
    if in_file is not None and in_file != saved:
        raise CacheRefused(f"the engine saved {saved} tokens, the file holds {in_file}")
    if usage.prompt is None or usage.total is None or not usage.prompt - SLACK <= saved <= usage.total + SLACK:
        raise CacheRefused(f"the file holds {saved} tokens, the turn had {usage.prompt} to {usage.total}")
