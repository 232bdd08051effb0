"""?prefer= and X-Viiwork-Prefer, as the client writes them."""

from __future__ import annotations

import pytest

from viiwork_core.errors import InvalidRequest
from viiwork_core.proxy.headers import Raw, outgoing
from viiwork_core.proxy.request import MOST_PREFERRED, preferred_hosts


def header(value: str) -> list[Raw]:
    return [(b"X-Viiwork-Prefer", value.encode())]


@pytest.mark.parametrize(
    ("query", "headers", "names"),
    [
        (b"", [], ()),
        (b"prefer=a,b", [], ("a", "b")),
        (b"prefer=%20b%20,,mesh,a,b", [], ("b", "a")),
        (b"host=x&prefer=a", [], ("a",)),
        (b"", header("a, b"), ("a", "b")),
        (b"prefer=c", header("a, b"), ("c",)),
        (b"prefer=", header("a"), ("a",)),
        (b"prefer=,", header("a"), ()),
        (b"prefer=mesh", header("a"), ()),
        (b"prefer=a&prefer=b", [], ("a",)),
        (b"prefer=a", header("not a name!"), ("a",)),
        (b"prefer=[fd7a::1]:8086,host.ts.net", [], ("[fd7a::1]:8086", "host.ts.net")),
    ],
)
def test_names_in_the_client_s_order(query: bytes, headers: list[Raw], names: tuple[str, ...]) -> None:
    assert preferred_hosts(query, headers) == names


@pytest.mark.parametrize(
    ("query", "headers"),
    [
        (b"prefer=a%20b", []),
        (b"prefer=a/b", []),
        (b"prefer=http://a", []),
        (b"prefer=%ff", []),
        (b"prefer=" + b"a" * 254, []),
        (b"", header("a;b")),
        (b"", [(b"x-viiwork-prefer", b"\xff")]),
        (b"host=b&prefer=a%00", []),
        (b"prefer=" + b",".join(b"n%d" % number for number in range(MOST_PREFERRED + 1)), []),
    ],
)
def test_what_is_no_list_of_names_is_refused(query: bytes, headers: list[Raw]) -> None:
    with pytest.raises(InvalidRequest, match="invalid prefer parameter"):
        preferred_hosts(query, headers)


def test_eight_are_not_too_many() -> None:
    names = [f"n{number}" for number in range(MOST_PREFERRED)]
    assert preferred_hosts(b"prefer=" + ",".join([*names, "", "mesh"]).encode(), []) == tuple(names)


def test_it_goes_no_further_than_this_node() -> None:
    assert outgoing(header("a")) == []
