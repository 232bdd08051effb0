"""Pass 2 and 3: names to classes, blocks to options, all problems at once."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from viiwork_core.builtin.priced import Fastest
from viiwork_core.builtin.seeds import Seeds, SeedsOptions
from viiwork_core.config.load import parse_config
from viiwork_core.config.unsound import UnsoundConfig
from viiwork_core.contracts.options import NoOptions
from viiwork_core.errors import ConfigError
from viiwork_core.registry.options import Resolved, resolve, with_the_rest
from viiwork_core.registry.registry import Registry

from .conftest import ENGINE, Install

Load = Callable[..., Registry]

DISCOVERY = """
from viiwork_core import *

class Radio(Discovery):
    name = "radio"
    networks = frozenset({"lan"})
    class Options(PluginOptions):
        channel: int = 1
    async def announce(self, card): pass
    async def sightings(self):
        return
        yield

class Letter(Radio):
    name = "letter"
    networks = frozenset()

@hookimpl
def viiwork_register_discovery(): return [Radio, Letter]

class Picky(Policy):
    name = "picky"
    class Options(PluginOptions):
        depth: int
        @classmethod
        def model_validate(cls, block): raise LookupError("a bug")
    def rank(self, query, candidates, rng): return []

@hookimpl
def viiwork_register_policy(): return Picky
"""


@pytest.fixture
def read(install: Install, load: Load) -> Callable[[str], Resolved]:
    install("acme", ENGINE)
    install("radio", DISCOVERY)
    registry = load("acme", "radio")
    return lambda text: resolve(parse_config(text, {"HOME": "/h"}), registry)


Read = Callable[[str], Resolved]


def problems(read: Read, text: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        read(text)
    return caught.value.message.splitlines()


def test_names_become_classes_and_blocks_options(read: Read) -> None:
    resolved = read(
        "mesh: {network: none}\nmodels:\n- {name: m, engine: acme, context: 1, gpus: [0], acme: {layers: 3}}\n"
        "- {name: n, engine: acme_cpu, context: 1, kv_share: {group: g}}\n"
    )
    first, second = resolved.models
    assert (first.config.name, first.engine.name, first.options.model_dump()) == (
        "m",
        "acme",
        {"binary": "acme", "layers": 3},
    )
    assert first.cache is None
    assert second.cache is not None
    assert second.cache.engine == "acme_cpu"
    assert (resolved.policy, resolved.policy_options, resolved.discoveries) == (Fastest, NoOptions(), ())


def test_all_problems_of_all_blocks_at_once(read: Read) -> None:
    text = """mesh:
  network: tailnet
  radoi: {}
  radio: {chanel: 3}
routing: {policy: fancy}
models:
- name: a
  engine: acme
  context: 1
  gpus: [0]
  acme:
    binray: x
    layers: many
- {name: b, engine: acme, context: 1}
- {name: c, engine: nope, context: 1}
- {name: d, engine: acme, context: 1, gpus: [1], kv_share: {group: g}}
"""
    assert problems(read, text) == [
        "mesh.network (line 2): no installed discovery serves tailnet; "
        "pip install 'viiwork[tailscale]', or set it to seeds or none",
        "mesh.radoi (line 3): no discovery radoi is installed (installed: letter, radio, seeds); "
        "did you mean radio? or pip install viiwork-discovery-radoi",
        "mesh.radio.chanel (line 4): unknown key; did you mean channel?",
        "routing.policy (line 5): no routing policy fancy is installed "
        "(installed: cache_aware, fastest, least_busy, picky, round_robin); "
        "pip install viiwork-fancy",
        "models[0].acme.binray (line 12): unknown key; did you mean binary?",
        "models[0].acme.layers (line 13): must be a valid integer, unable to parse string as an integer",
        "models[1].gpus (line 14): is empty, and acme does not run without a GPU; "
        "list the indices of this model's GPUs",
        "models[2].engine (line 15): no engine nope is installed (installed: acme, acme_cpu, external); "
        "pip install viiwork-nope",
        "models[3].kv_share (line 16): acme has no cache transfer (installed: acme_cpu); "
        "did you mean acme_cpu? or pip install viiwork-acme",
    ]


def test_a_bug_in_a_plugins_options_is_a_problem_of_its_block(read: Read) -> None:
    assert problems(read, "mesh: {network: none}\nrouting: {policy: picky, picky: {}}") == [
        "routing.picky (line 2): reading the options failed: LookupError: a bug"
    ]


def test_a_policy_without_options_takes_none(read: Read) -> None:
    found = problems(read, "mesh: {network: none}\nrouting: {policy: least_busy, least_busy: {x: 1}}")
    assert found == ["routing.least_busy.x (line 2): unknown key"]


def sources(read: Read, text: str) -> dict[str, object]:
    return {cls.name: options.model_dump() for cls, options in read(text).discoveries}


def test_a_network_turns_on_what_serves_it(read: Read) -> None:
    assert sources(read, "mesh: {network: lan}") == {"radio": {"channel": 1}}
    assert sources(read, "mesh: {network: lan, radio: {channel: 2}}") == {"radio": {"channel": 2}}


def test_an_unset_network_is_every_discovery_that_serves_one(read: Read) -> None:
    assert sources(read, "") == {"radio": {"channel": 1}}


def test_a_networks_name_configures_its_only_discovery(read: Read) -> None:
    assert sources(read, "mesh: {network: lan, lan: {channel: 4}}") == {"radio": {"channel": 4}}
    found = problems(read, "mesh: {network: lan, lan: {}, radio: {}}")
    assert found == ["mesh.radio (line 1): is about radio, as mesh.lan is"]


def test_a_block_of_its_own_turns_a_source_on(read: Read) -> None:
    assert sources(read, "mesh: {network: lan, letter: {}}") == {"radio": {"channel": 1}, "letter": {"channel": 1}}
    assert sources(read, "mesh: {network: none, letter: {}}") == {}


def test_seeds_are_on_whenever_there_are_some(read: Read) -> None:
    resolved = read("mesh: {seeds: ['192.0.2.1:7946']}")
    assert resolved.discoveries == ((Seeds, SeedsOptions(addresses=("192.0.2.1:7946",))),)
    both = sources(read, "mesh: {network: lan, seeds: ['192.0.2.1:7946']}")
    assert both == {"radio": {"channel": 1}, "seeds": {"addresses": ("192.0.2.1:7946",)}}
    assert sources(read, "mesh: {network: seeds}") == {}


def test_no_discovery_at_all_stops_with_what_to_install(load: Load) -> None:
    with pytest.raises(ConfigError) as caught:
        resolve(parse_config("", {"HOME": "/h"}), load())
    assert caught.value.message == (
        "mesh.network: is not set, and no discovery is installed; "
        "pip install 'viiwork[mdns]' or 'viiwork[tailscale]', or set it to seeds or none"
    )


def test_a_network_may_be_a_discoverys_name(read: Read) -> None:
    assert sources(read, "mesh: {network: letter}") == {"letter": {"channel": 1}}
    assert problems(read, "mesh: {network: letr}") == [
        "mesh.network (line 1): no installed discovery serves letr; did you mean letter?"
    ]
    assert problems(read, "mesh: {network: wifi}") == [
        "mesh.network (line 1): no installed discovery serves wifi; "
        "set it to one of lan, letter, none, radio, seeds, tailnet"
    ]


UNSOUND = """
nod: 1
mesh: {network: none, bind_prt: 7}
routing: {policy: nope, queue_max: many}
models:
- {name: a, engine: acme_cpu, context: 1, acme_cpu: {layer: 3}}
- {name: a b, engine: amce_cpu, context: 1}
- {name: c, engine: acme, context: 0, acme: {layers: x}}
- {name: d, engine: acme_cpu, context: 1, acme_cp: {layers: x}}
- {name: e, engine: [acme], context: 1}
- text
"""


def test_what_the_first_pass_finds_hides_nothing_from_the_second(install: Install, load: Load) -> None:
    install("acme", ENGINE)
    with pytest.raises(UnsoundConfig) as caught:
        parse_config(UNSOUND, {"HOME": "/h"})
    lines = with_the_rest(caught.value, load("acme")).message.splitlines()
    assert [line.partition(":")[0] for line in lines] == [
        "nod (line 2)",
        "mesh.bind_prt (line 3)",
        "routing.queue_max (line 4)",
        "routing.policy (line 4)",
        "models[0].acme_cpu.layer (line 6)",
        "models[1].name (line 7)",
        "models[1].engine (line 7)",
        "models[2].context (line 8)",
        "models[3].acme_cp (line 9)",
        "models[4].engine (line 10)",
        "models[5] (line 11)",
    ]
    assert lines[4].endswith("did you mean layers?")
    assert "no engine amce_cpu is installed (installed: acme, acme_cpu, external); did you mean acme_cpu?" in lines[6]
    assert lines[8].endswith("did you mean acme_cpu?")


@pytest.mark.parametrize(
    "text", ["models: 5\n", "routing: 5\n", "mesh: 5\n", "routing: {policy: 5}\n", "mesh: {network: none, a: 1}\n"]
)
def test_blocks_that_are_none_are_told_once(load: Load, text: str) -> None:
    with pytest.raises(UnsoundConfig) as caught:
        parse_config("mesh: {network: none}\n" * ("mesh" not in text) + text, {"HOME": "/h"})
    assert with_the_rest(caught.value, load()).message == caught.value.message
