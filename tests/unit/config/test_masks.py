"""What is masked, and what stays readable."""

from __future__ import annotations

import pytest

from viiwork_core.config.masks import MASK, Masks


@pytest.mark.parametrize("name", ["HF_TOKEN", "OPENAI_API_KEY", "my_secret", "DB_PASSWORD", "AWS_CREDENTIALS"])
def test_a_variable_that_is_named_like_a_secret(name: str) -> None:
    assert Masks({}).environment({name: "hunter2", "HSA_ENABLE_SDMA": "0"}) == {name: MASK, "HSA_ENABLE_SDMA": "0"}


@pytest.mark.parametrize(
    ("args", "shown"),
    [
        (["--api-key", "hunter2", "--x"], ["--api-key", MASK, "--x"]),
        (["--api-key=hunter2"], [f"--api-key={MASK}"]),
        (["--hf-token", "hunter2", "hunter3"], ["--hf-token", MASK, "hunter3"]),
        (["--api-key", "--x", "y"], ["--api-key", "--x", "y"]),
        (["--max-tokens", "5"], ["--max-tokens", "5"]),
        (["--api-key-file", "/run/keys"], ["--api-key-file", "/run/keys"]),
        (["--proxy=http://me:hunter2@proxy:80"], [f"--proxy=http://{MASK}@proxy:80"]),
        ([], []),
    ],
)
def test_arguments(args: list[str], shown: list[str]) -> None:
    assert Masks({}).arguments(args) == shown


def test_options_however_deep() -> None:
    options = {
        "api_key": "hunter2",
        "api_key_env": "MY_KEY",
        "prompt_tokens": 5,
        "token": None,
        "list": [{"password": "hunter2", "url": "https://hunter2@host/v1"}],
    }
    assert Masks({}).values(options) == {
        "api_key": MASK,
        "api_key_env": "MY_KEY",
        "prompt_tokens": 5,
        "token": None,
        "list": [{"password": MASK, "url": f"https://{MASK}@host/v1"}],
    }


def test_a_secret_of_the_environment_is_found_wherever_it_stands() -> None:
    masks = Masks({"VIIWORK_MESH_SECRET": "abcdefgh", "OTHER_SECRET": "abcdefgh-longer", "PATH": "/bin:/usr/bin"})
    assert masks.text("--x=abcdefgh-longer,abcdefgh /bin:/usr/bin") == f"--x={MASK},{MASK} /bin:/usr/bin"
    assert masks.environment({"A": "abcdefgh"}) == {"A": MASK}
    assert masks.values({"a": ["abcdefgh"]}) == {"a": [MASK]}


def test_a_short_value_is_no_secret_to_look_for() -> None:
    assert Masks({"KEY_LAYOUT": "de"}).text("a model") == "a model"
