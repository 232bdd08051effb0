"""The body of a request, read before mlx_lm does: what would end its generation thread, or reach out, is refused here.

mlx_lm checks some fields and hands the others to the thread that answers everybody; what that thread trips over ends
it, and with it the answers of all other clients.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

LONGEST_STOPS = 64

RESERVED = frozenset(
    {
        *("conversation", "tools", "documents", "chat_template", "add_generation_prompt", "continue_final_message"),
        *("tokenize", "padding", "truncation", "max_length", "return_tensors", "return_dict", "tokenizer_kwargs"),
        *("return_assistant_tokens_mask", "load_audio_from_video"),
    }
)
"""Arguments of apply_chat_template that are not the template's: a template of the client's own may run for ever, and
the others change what comes out."""


class BadRequest(ValueError):
    """What a client asked for cannot be done; the message is for it."""


def read_body(raw: bytes) -> bytes:
    """The body as mlx_lm shall read it: fields that are null are left out, as clients mean it. Raises BadRequest."""
    try:
        body = json.loads(raw, parse_constant=_refuse_constant)
    except RecursionError as error:
        raise BadRequest("Invalid JSON in request body: it is nested too deeply") from error
    except ValueError as error:  # UnicodeDecodeError too
        raise BadRequest(f"Invalid JSON in request body: {error}") from error
    if not isinstance(body, dict):
        raise BadRequest("Request should be a JSON dictionary")
    for problem in _problems(body):
        raise BadRequest(problem)
    if None not in body.values():
        return raw
    return json.dumps({name: value for name, value in body.items() if value is not None}).encode()


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no number of JSON")


def _problems(body: dict[str, object]) -> Iterator[str]:
    if not isinstance(body.get("prompt", ""), str):
        yield "prompt must be a string"
    if not _are_messages(messages := body.get("messages") or []):
        yield "messages must be a list of objects"
    elif any(map(_fetched, _parts(messages))):
        yield "an image must be a data URL: nothing is fetched"
    if not _are_stops(body.get("stop") or []):
        yield f"stop must be a string or a list of at most {LONGEST_STOPS} strings"
    options = body.get("stream_options") or {}
    if not isinstance(options, dict) or not isinstance(options.get("include_usage"), bool | None):
        yield "stream_options must be an object with include_usage true or false"
    yield from _numbers(body)
    arguments = body.get("chat_template_kwargs") or {}
    if not isinstance(arguments, dict) or not RESERVED.isdisjoint(arguments):
        yield f"chat_template_kwargs must be an object without {', '.join(sorted(RESERVED))}"


def _numbers(body: dict[str, object]) -> Iterator[str]:
    bias = body.get("logit_bias") or {}
    if not isinstance(bias, dict) or not all(isinstance(value, int | float) for value in bias.values()):
        yield "logit_bias must be an object of numbers"
    seed = body.get("seed")
    if isinstance(seed, int) and not 0 <= seed < 2**64:
        yield "seed must be at least 0 and below 2**64"
    if body.get("n") not in (None, 1) or body.get("best_of") not in (None, 1):
        yield "n must be 1: this engine writes one answer to a request"


def _are_messages(messages: object) -> bool:
    return isinstance(messages, list) and all(isinstance(message, dict) for message in messages)


def _parts(messages: object) -> Iterator[dict[str, object]]:
    """The parts of messages that have several."""
    assert isinstance(messages, list)
    for message in messages:
        content = message.get("content")
        if isinstance(content, list):
            yield from (part for part in content if isinstance(part, dict))


def _fetched(part: dict[str, object]) -> bool:
    """Whether mlx_lm would get a picture from somewhere."""
    if part.get("type") == "text":
        return False
    picture = part.get("image_url", part.get("image"))
    url = picture.get("url") if isinstance(picture, dict) else picture
    return isinstance(url, str) and not url.startswith("data:")


def _are_stops(stop: object) -> bool:
    words = [stop] if isinstance(stop, str) else stop
    return isinstance(words, list) and len(words) <= LONGEST_STOPS and all(isinstance(word, str) for word in words)
