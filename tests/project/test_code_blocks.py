"""All code in the documents: read as what it is, or run against one node with the model of `make run`."""

from __future__ import annotations

import configparser
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

import click
import pytest
from fences import ROOT, SHOWN, Fence, all_fences, commands, pages
from http_node import Node, model, started

from demo.smollm2 import check_engine, model_path
from viiwork_core.cli.main import cli
from viiwork_core.config.load import parse_config
from viiwork_core.registry.entry_points import load_plugins
from viiwork_core.registry.options import resolve
from viiwork_core.setup.answers import parse_answers

FENCES = all_fences()
RUN = ("bash", "sh", "python", "js")
ADDRESS = re.compile(r"(?:127\.0\.0\.1|localhost):8086")
PRELUDES = {"docs/plugins/hooks.md": "from viiwork_core import *\n"}
NODE_CLIENTS = Path(sys.prefix) / "node" / "node_modules"

VIIWORK = """\
#!{python}
# The command, told where the configuration is: for root that would be the machine's own.
import sys
from viiwork_core.cli.main import cli
import click

args, command = sys.argv[1:], cli
with click.Context(cli) as context:
    for word in args:
        command = command.get_command(context, word) or command if isinstance(command, click.Group) else command
if any("--config" in parameter.opts for parameter in command.params) and "--config" not in args:
    args += ["--config", {config!r}]
cli(args, prog_name="viiwork")
"""

CURL = """\
#!/bin/sh
# An error status is one of the command's too.
exec {curl} --silent --show-error --fail-with-body --noproxy '*' --max-time 60 "$@"
"""


def select(holds: Callable[[Fence], bool]) -> list[object]:
    return [pytest.param(fence, id=fence.where) for fence in FENCES if holds(fence)]


def test_every_block_is_run_or_says_why_not() -> None:
    known = {*SHOWN, *RUN, *READERS}
    strange = [f.where for f in FENCES if f.language not in known and f.note is None and f.elsewhere is None]
    assert not strange, "name the language, or say `<!-- not run: REASON -->` before the block"


def test_the_tests_that_are_named_exist() -> None:
    here = Path(__file__).parent
    assert not [fence.where for fence in FENCES if fence.elsewhere and not (here / fence.elsewhere).exists()]


# What is read


def _yaml(text: str) -> None:
    read = parse_config(text, {}, origin="the document")
    assert read.warnings == ()
    resolve(read, load_plugins({}))


def _ini(text: str) -> None:
    parser = configparser.ConfigParser(strict=False, interpolation=None)  # systemd's keys may stand more than once
    parser.optionxform = str  # type: ignore[assignment]  # as its documentation says
    parser.read_string(text)
    assert parser.sections()


YAML_OF: dict[str, Callable[[str], object]] = {"docs/init.md": parse_answers}
"""Pages whose YAML is something else than a node's configuration."""

READERS: dict[str, Callable[[str], object]] = {
    "yaml": _yaml,
    "json": json.loads,
    "toml": tomllib.loads,
    "ini": _ini,
}


@pytest.mark.parametrize("fence", select(lambda one: one.language in READERS and not one.note and not one.elsewhere))
def test_a_block_can_be_read(fence: Fence) -> None:
    read = YAML_OF.get(fence.page) if fence.language == "yaml" else None
    (read or READERS[fence.language])(fence.text)


# Command lines


def _resolved(words: list[str]) -> tuple[click.Context, click.Command, list[str]]:
    """The command that a line means, and what it is given."""
    command: click.Command = cli
    context = click.Context(command)
    while isinstance(command, click.Group) and words and not words[0].startswith("-"):
        name, found, words = command.resolve_command(context, words)
        assert found is not None, name
        command, context = found, click.Context(found, context)
    return context, command, words


@pytest.mark.parametrize("path", [pytest.param(path, id=path.relative_to(ROOT).as_posix()) for path in pages()])
def test_the_commands_of_a_page_exist_with_their_options(path: Path) -> None:
    wrong = []
    for number, line in commands(path):
        words = shlex.split(re.split(r" (?:&&|\|\|?|>|;) ", line)[0], comments=True)
        try:
            context, command, rest = _resolved(words)
            command.make_parser(context).parse_args(list(rest))
        except (click.UsageError, ValueError) as error:
            wrong.append(f"{path.name}:{number}: viiwork {line}: {error}")
    assert not wrong


# What is run


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """What `make run` starts, on a free port."""
    try:
        check_engine()
        path = str(model_path())
    except SystemExit as error:
        pytest.skip(str(error))
    entry = model("smollm2", "llamacpp", path=path, args=["--predict", "12"], llamacpp={"threads": 1})
    with started(
        "demo", tmp_path_factory.mktemp("documents") / "node", {"models": [entry]}, plugins="llamacpp"
    ) as node:
        yield node


@pytest.fixture(scope="module")
def bench(node: Node, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder in which a page's blocks run, one after the other."""
    folders: dict[str, Path] = {}

    def folder(page: str) -> Path:
        if page not in folders:
            folders[page] = made = tmp_path_factory.mktemp("page")
            (made / "bin").mkdir()
            config = node.folder / "viiwork.yaml"
            shutil.copy(config, made)
            programs = {
                "viiwork": VIIWORK.format(python=sys.executable, config=str(config)),
                "curl": CURL.format(curl=shutil.which("curl")),
            }
            for name, text in programs.items():
                (made / "bin" / name).write_text(text)
                (made / "bin" / name).chmod(0o755)
            if NODE_CLIENTS.exists():
                (made / "node_modules").symlink_to(NODE_CLIENTS)
        return folders[page]

    return folder


def _command(fence: Fence, folder: Path, address: str) -> list[str | Path]:
    """What runs a block, with the node's address in place of the one it shows. Skips where what it needs is missing."""
    for program in ("curl", "jq"):
        if fence.language in ("bash", "sh") and program in fence.text and shutil.which(program) is None:
            pytest.skip(f"{program} is not on PATH")
    if fence.language == "js" and not (shutil.which("node") and NODE_CLIENTS.exists()):
        pytest.skip(f"there is no node, or no clients in {NODE_CLIENTS}: `make test` installs them where npm is")
    program, ending = {"python": (sys.executable, "py"), "js": ("node", "mjs")}.get(fence.language, ("bash", "sh"))
    script = folder / f"line-{fence.line}.{ending}"
    script.write_text(PRELUDES.get(fence.page, "") + ADDRESS.sub(address, fence.text))
    return [program, *(["-eu", "-o", "pipefail"] if program == "bash" else []), script]


@pytest.mark.parametrize("fence", select(lambda one: one.language in RUN and not one.note and not one.elsewhere))
def test_a_block_runs(fence: Fence, node: Node, bench: Callable[[str], Path]) -> None:
    folder = bench(fence.page)
    command = _command(fence, folder, f"{node.host}:{node.port}")
    env = {
        "HOME": str(folder),
        "PATH": os.pathsep.join((str(folder / "bin"), str(Path(sys.executable).parent), os.environ["PATH"])),
        # Whatever a client would send elsewhere does not arrive.
        "HTTP_PROXY": "http://127.0.0.1:9",
        "HTTPS_PROXY": "http://127.0.0.1:9",
        "NO_PROXY": "127.0.0.1",
        "LLM_LOAD_PLUGINS": "",
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "LANGSMITH_TRACING": "false",
        "NO_COLOR": "1",
    }
    done = subprocess.run(
        command, cwd=folder, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=90, check=False
    )
    assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
