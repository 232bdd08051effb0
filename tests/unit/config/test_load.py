"""Pass 1: the core's keys, all problems at once, each with its line."""

from __future__ import annotations

from pathlib import Path

import pytest

from viiwork_core.config.load import load_config, parse_config
from viiwork_core.config.schema import Config
from viiwork_core.errors import ConfigError

ENV = {"HOME": "/home/somebody"}
MODEL = "models:\n- {name: m, engine: acme, context: 10%s}\n"


def read(text: str) -> Config:
    return parse_config(text, ENV)


def problems(text: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        read(text)
    return caught.value.message.splitlines()


def test_an_empty_document_has_all_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    config = read("")
    assert (config.api.host, config.api.port, config.api.max_body) == (None, 8086, 32 << 20)
    assert (config.mesh.network, config.mesh.bind_port, config.mesh.rejoin_interval) == (None, 7946, 60.0)
    assert (config.routing.policy, config.routing.queue_max, config.routing.queue_timeout) == ("fastest", 64, 20.0)
    assert (config.health.interval, config.health.max_failures, config.health.max_respawns) == (5.0, 3, 3)
    assert config.models == ()
    assert config.node.state_dir == Path("/home/somebody/.local/state/viiwork")


def test_a_whole_document() -> None:
    config = read(
        """
node: {name: box, state_dir: /srv/v}
api: {host: "::1", port: 0, max_body: 1MiB}
mesh:
  name: home
  seeds: ["192.0.2.7:7946", "[2001:DB8::1]:1"]
  secret_env: MY_SECRET
routing: {policy: acme, acme: {x: 1}, queue_timeout: 250ms}
models:
- name: m
  engine: acme
  acme: {deep: {er: [1]}}
  path: /models/m
  context: 4096
  parallel: 4
  gpus: [0, 1, 2, 3]
  gpus_per_backend: 2
  startup_timeout: 1h30m
  args: [--x]
  env: {A: b}
  kv_share: {group: g, address: 192.0.2.1}
"""
    )
    assert config.mesh.network == "seeds"
    assert config.mesh.seeds == ("192.0.2.7:7946", "[2001:db8::1]:1")
    assert dict(config.routing.blocks) == {"acme": {"x": 1}}
    (model,) = config.models
    assert model.block == {"deep": {"er": [1]}}
    assert (model.backends, model.startup_timeout, model.gpus) == (2, 5400.0, (0, 1, 2, 3))
    assert model.kv_share is not None
    assert (model.kv_share.min_tokens, model.kv_share.max_gib, model.kv_share.address) == (8192, 16.0, "192.0.2.1")
    assert config.source.line(("models", 0, "acme", "deep")) == 12


def test_all_problems_are_told_at_once_in_the_order_of_the_file() -> None:
    found = problems(
        """node: {name: a b}
api:
  prot: 1
routing: {queue_max: -1}
models:
- name: m
  engine: acme
  amce: {x: 1}
  gpus: [0, 0]
"""
    )
    assert found == [
        "node.name (line 1): must be 1 to 253 of the characters A-Z a-z 0-9 . _ -",
        "api.prot (line 3): unknown key; did you mean port?",
        "routing.queue_max (line 4): must be greater than or equal to 0",
        "models[0].context (line 6): missing; add it",
        "models[0].amce (line 8): unknown key; did you mean acme?",
        "models[0].gpus (line 9): names a GPU twice; list each index once",
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("nod: {}", "nod (line 1): unknown key; did you mean node?"),
        ("zzz: {}", "zzz (line 1): unknown key"),
        ("node: 5", "node (line 1): must be a block of keys"),
        ("node: {name: 5}", "node.name (line 1): must be text; put it in quotes"),
        ("node: {state_dir: ''}", "node.state_dir (line 1): must be a path; write it as text"),
        ("models: {}", "models (line 1): must be a list"),
        ("models: [x]", "models[0] (line 1): must be a block of keys"),
        ("api: {port: '8086'}", "api.port (line 1): must be a whole number"),
        ("api: {port: 70000}", "api.port (line 1): must be less than or equal to 65535"),
        ("api: {host: example.org}", "api.host (line 1): must be an IP address"),
        ("mesh: {open: 1}", "mesh.open (line 1): must be true or false"),
        ("mesh: {network: 'a b'}", "mesh.network (line 1): must be 1 to 128 characters without white space"),
        ("mesh: {advertise: 0.0.0.0}", "mesh.advertise (line 1): must be an address that others can reach"),
        ("gpu: {vendor: intel}", "gpu.vendor (line 1): must be 'auto', 'nvidia', 'amd', 'apple' or 'none'"),
        ("gpu: {power_limit_watts: -1}", "gpu.power_limit_watts (line 1): must be greater than or equal to 0"),
        ("gpu: {vendr: amd}", "gpu.vendr (line 1): unknown key; did you mean vendor?"),
        ("mesh: {zzz: 5}", "mesh.zzz (line 1): unknown key"),
        ("mesh: {secret_enforce: none}", "mesh.secret_enforce (line 1): must be full: every node asks for the secret"),
        ("mesh: {secret_enforce: outgoing}", "mesh.secret_enforce (line 1): must be full"),
        ("activity: {prompts: all}", "activity.prompts (line 1): must be off, sizes or full"),
        ("activity: {prompts: on}", "activity.prompts (line 1): must be off, sizes or full"),
        ("activity: {event_history: 0}", "activity.event_history (line 1): must be greater than or equal to 1"),
        ("api:\n  max_body: 1GiB", "api.max_inflight_bytes (line 1): is less than one body of max_body; raise it"),
        (
            "api: {max_connections: 99999999999}",
            "api.max_connections (line 1): must be less than or equal to 2147483647",
        ),
        ("mesh: {seeds: ['host:1']}", "mesh.seeds[0] (line 1): must be ip:port"),
        ("mesh: {seeds: ['2001:db8::1:1']}", "mesh.seeds[0] (line 1): must be ip:port"),
        ("mesh: {seeds: ['[192.0.2.1]:1']}", "mesh.seeds[0] (line 1): must be ip:port"),
        ("mesh: {seeds: ['192.0.2.1:0']}", "mesh.seeds[0] (line 1): must be ip:port"),
        ("mesh: {seeds: ['192.0.2.1:65536']}", "mesh.seeds[0] (line 1): must have a port of 1 to 65535"),
        ("mesh: {network: none, seeds: ['192.0.2.1:1']}", "mesh.network (line 1): is none, but mesh.seeds names nodes"),
        ("mesh: {rejoin_interval: 0}", "mesh.rejoin_interval (line 1): must be greater than 0"),
        ("routing: {queue_timeout: 5}", "routing.queue_timeout (line 1): must be a duration; write a number and"),
        ("routing: {radio: {}}", "routing.radio (line 1): unknown key: routing.policy does not name it"),
        ("routing: {policy: acme, acme: 1}", "routing.acme (line 1): must be a block of keys"),
        ("routing: {performance: 3}", "routing.performance (line 1): must be true or false"),
        ("routing: {performance: false, policy: x}", "routing.performance (line 1): cannot be set beside"),
        (MODEL % ", other: {}", "models[0].other (line 2): unknown key: models[0].engine does not name it; options"),
        (MODEL % ", acme: [1]", "models[0].acme (line 2): must be a block of keys"),
        (MODEL % ", source: 'x:y'", "models[0].source (line 2): not built yet; give the file's place as path"),
        (MODEL % ", args: [8]", "models[0].args[0] (line 2): must be text; put it in quotes"),
        (MODEL % ", env: {'A=': b}", "models[0].env.A= (line 2): must be the name of an environment variable"),
        (MODEL % ", gpus: [-1]", "models[0].gpus[0] (line 2): must be greater than or equal to 0"),
        (
            MODEL % ", gpus: [0, 1, 2], gpus_per_backend: 2",
            "models[0].gpus_per_backend (line 2): does not divide the 3",
        ),
        (MODEL % ", kv_share: {grup: x}", "models[0].kv_share.group (line 2): missing; add it"),
        (
            MODEL % ", kv_share: {group: g, max_gib: .inf}",
            "models[0].kv_share.max_gib (line 2): must be a finite number",
        ),
    ],
)
def test_each_problem_names_its_key_and_line(text: str, expected: str) -> None:
    assert problems(text)[0].startswith(expected)


def test_what_is_wrong_between_models(monkeypatch: pytest.MonkeyPatch) -> None:
    text = """models:
- {name: m, engine: a, context: 1, gpus: [0]}
- {name: x, engine: a, context: 0, gpus: [1]}
- {name: m, engine: a, context: 1, gpus: [0]}
"""
    monkeypatch.setattr("sys.platform", "linux")
    assert problems(text) == [
        "models[1].context (line 3): must be greater than or equal to 1",
        "models[2].name (line 4): is the name of models[0] too; rename one",
        "models[2].gpus (line 4): GPU 0 belongs to models[0] already; give each GPU to one model",
    ]


def test_models_share_the_one_gpu_of_a_mac(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.platform", "darwin")
    assert len(read(MODEL % ", gpus: [0]" + "- {name: n, engine: a, context: 1, gpus: [0]}").models) == 2


def test_a_secret_in_the_wrong_place_is_not_repeated() -> None:
    secret = "c2VjcmV0IHNlY3JldCBzZWNyZXQgc2VjcmV0IHNlYw=="
    found = problems(f"mesh: {{secret: {secret}, secret_env: {secret}, open: {secret}}}")
    assert len(found) == 3
    assert secret not in "\n".join(found)


def test_a_v1_file_is_refused_with_a_pointer() -> None:
    assert problems("server: {}\nmodel: x\n") == ["configuration: v1 config: see docs/migrating-to-v2.md"]


def test_keys_of_parts_that_do_not_exist_are_one_warning_each() -> None:
    config = read("power: {}\nmesh: {secret_enforce: full}\napi:\n  catalog: {upstream: https://x.example}\n")
    assert config.warnings == (
        "power (line 1): not built yet, ignored",
        "api.catalog.upstream (line 4): not built yet, ignored",
    )


REFERENCE = """
node: {name: box, state_dir: /srv/v}
api: {host: 0.0.0.0, port: 8086}
mesh:
  network: tailnet
  bind_port: 7946
  advertise: ""
  open: false
  secret_env: VIIWORK_MESH_SECRET
  secret_prev_env: VIIWORK_MESH_SECRET_PREV
  secret_enforce: full
  tailnet: {enabled: auto, socket: /var/run/tailscale/tailscaled.sock}
  lan: {mdns: auto}
  seeds: []
  rejoin_interval: 60s
  capacity_poll: 1s
routing: {performance: true, queue_max: 64, queue_timeout: 20s, forward_retry: 1, stale_after: 3s}
gpu: {vendor: auto, power_limit_watts: 0}
health: {interval: 5s, timeout: 10s, max_failures: 3, respawn_grace: 60s, max_respawns: 3}
activity: {prompt_history: 1000, event_history: 2000}
update: {enabled: false}
models:
- {name: m, engine: llamacpp, path: /m.gguf, gpus: [0], context: 8192, parallel: 4, startup_timeout: 10m}
"""


def test_a_configuration_of_the_other_viiwork_is_one() -> None:
    config = read(REFERENCE)
    assert config.activity.event_history == 2000
    assert [warning.split(" ")[0] for warning in config.warnings] == ["update"]


def test_a_block_whose_keys_are_all_commented_out_has_its_defaults() -> None:
    config = read("node:\napi:\n  # port: 1\nmesh:\nmodels:\n")
    assert (config.api.port, config.mesh.bind_port, config.models) == (8086, 7946, ())


@pytest.mark.parametrize(("text", "kept"), [("0", 1000), ("-1", 1000), ("7", 7)])
def test_a_prompt_history_below_one_is_the_default(text: str, kept: int) -> None:
    assert read(f"activity: {{prompt_history: {text}}}").activity.prompt_history == kept


@pytest.mark.parametrize("word", ["off", "'off'", "no", "false"])
def test_prompts_are_off(word: str) -> None:
    assert read(f"activity: {{prompts: {word}}}").activity.prompts == "off"


def test_limits_of_the_api() -> None:
    api = read("").api
    assert (api.max_body, api.max_inflight_bytes, api.max_connections) == (32 << 20, 512 << 20, 16384)
    assert api.stream_wait is False


def test_the_vendor_of_the_cards() -> None:
    assert read("").gpu.vendor == "auto"
    config = read("gpu: {vendor: amd, power_limit_watts: 0}")
    assert (config.gpu.vendor, config.gpu.power_limit_watts, config.warnings) == ("amd", 0, ())


def test_a_power_limit_is_told_to_have_no_effect() -> None:
    (warning,) = read("gpu:\n  power_limit_watts: 180\n").warnings
    assert warning.startswith("gpu.power_limit_watts (line 2): not built yet, ignored; set it with rocm-smi")


def test_performance_false_is_the_policy_least_busy() -> None:
    config = read("routing: {performance: false}")
    assert (config.routing.policy, config.warnings) == ("least_busy", ())
    assert read("routing: {performance: true}").routing.policy == "fastest"


@pytest.mark.parametrize("key", ["_source", "source", "_warnings", "warnings", "blocks", "model_extra"])
def test_no_key_reaches_the_configurations_own_attributes(key: str) -> None:
    assert any("unknown key" in line for line in problems(f"{key}: {{}}"))


def test_equal_content_on_other_lines_is_equal() -> None:
    assert read(MODEL % "").models == read("\n\n" + MODEL % "").models


def test_models_share_the_one_gpu_of_an_apple_vendor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.platform", "linux")
    two = MODEL % ", gpus: [0]" + "- {name: n, engine: a, context: 1, gpus: [0]}\n"
    assert len(read(two + "gpu: {vendor: apple}").models) == 2


def test_a_file_is_found_in_the_users_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    file = tmp_path / "viiwork/viiwork.yaml"
    file.parent.mkdir()
    file.write_text("node: {name: found}\n")
    assert load_config(None, {"XDG_CONFIG_HOME": str(tmp_path)}).node.name == "found"


def test_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    large, latin = tmp_path / "large", tmp_path / "latin"
    large.write_bytes(b"#" * ((1 << 20) + 1))
    latin.write_bytes(b"a: \xff\n")
    for path, reason in [
        (tmp_path / "none", "No such file"),
        (tmp_path, "directory"),
        (large, "1 MiB"),
        (latin, "UTF-8"),
    ]:
        with pytest.raises(ConfigError, match=reason) as caught:
            load_config(path, ENV)
        assert str(path) in caught.value.message
