"""Sessions: which conversation a request belongs to, with and without a header that says so."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum

import msgspec

from viiwork_core.routing.conversation import Chain
from viiwork_core.routing.heads import Conversations


class Found(StrEnum):
    """How a request's session was found."""

    NONE = "none"
    """It belongs to none."""

    HEADER = "header"
    """The client named it."""

    RESPONSE = "previous response"
    """It goes on from a response that is remembered."""

    CHAIN = "conversation"
    """It extends an earlier request."""

    NEW = "new conversation"
    """It extends none, and got a name."""

    HINT = "hint"
    """By whom the client speaks for, which may be one user with many conversations."""

    FORWARD = "forward"
    """The node that forwarded it knows."""


class Identity(msgspec.Struct, frozen=True, gc=False):
    """Whose turn a request is."""

    session: str
    continues: bool
    """Whether an earlier turn of it is known to have been served somewhere."""

    begins: bool = False
    """Whether it has just got its name."""


class Sessions:
    """Identifies requests. Pure but for the names that it gives."""

    def __init__(self, conversations: Conversations, new_name: Callable[[], str]) -> None:
        """`new_name` makes a name for a conversation that has none: 32 hex characters, never the same twice."""
        self._conversations = conversations
        self._new_name = new_name

    def identify(self, model: str, named: str | None, chain: Chain | None, hint: str | None = None) -> Identity | None:
        """The session: what the client named, else the conversation that the request extends, else the hint, else a
        new one. None: the request shows nothing of a conversation.

        `named` and `hint` are keyed hashes of what the client says. A hint is a name that may well be shared by many
        conversations, such as one of a user.
        """
        if named is not None:
            return Identity(named, self._conversations.known(model, named))
        if chain is None or chain.last is None:
            return Identity(hint, self._conversations.known(model, hint)) if hint is not None else None
        match = self._conversations.match(model, chain)
        return (
            Identity(match.session, continues=True)
            if match
            else Identity(self._new_name(), continues=False, begins=True)
        )
