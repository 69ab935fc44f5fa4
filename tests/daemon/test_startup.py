"""What is loaded before the first Register: everything else would make a node wait for its devices."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from agent.cli import VERBS
from agent.kubelet.session import REGISTER

#: The agent's way to the kubelet. What is not here is imported after the first registration, or never.
ALLOWED = {
    "anyio",
    "asyncinotify",
    "betterproto2",
    "grpclib",
    "h2",
    "hpack",
    "hyperframe",
    "msgspec",
    "multidict",
    "pluggy",
    "structlog",
    "typing_extensions",
    "yaml",
}
#: Not packages: what their extensions leave behind, and how pip installs.
NOISE = ("_", "cython_runtime")

#: Runs the agent, and at its first call of the kubelet prints which packages are loaded.
SCRIPT = """
import json, os, sys
before = set(sys.modules)
from agent import cli, logs  # as `run` does: structlog must come in by way of our logs, which keep rich out
from agent.daemon import process
from agent.kubelet import session

process.VIEWS_AFTER = process.DOOR_AFTER = 3600.0  # on a slow machine the first registration takes longer

async def call(path, method, request, **options):
    loaded = {name.partition(".")[0] for name in set(sys.modules) - before}
    print(json.dumps([method, sorted(loaded - sys.stdlib_module_names - {"agent"})]), flush=True)
    os._exit(0)

session.call = call
cli.main(sys.argv[1:])
"""

#: Runs a verb, and prints which of the command line's modules were loaded for it.
VERB = """
import json, sys
from agent import cli
try:
    cli.main([sys.argv[1], "--help"])
except SystemExit:
    pass
print(json.dumps([name for name in sys.modules if name.startswith("agent.cli.")]))
"""


@pytest.mark.parametrize("verb", VERBS)
def test_of_the_verbs_only_the_one_that_is_named_is_loaded(verb: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", VERB, verb], capture_output=True, text=True, timeout=150, check=False
    )

    assert done.returncode == 0, done.stderr
    loaded = json.loads(done.stdout.splitlines()[-1])
    assert sorted(loaded) == sorted(["agent.cli.common_arguments", "agent.cli.parser", f"agent.cli.{verb}"])


#: What the way to the API server brings with it; it is opened after the first registration.
LATE = {"kubernetes_asyncio", "aiohttp", "urllib3", "yarl"}

#: Loads what `run` composes, down to the room that speaks with the API server, and prints what came in.
COMPOSE = """
import json, sys
before = set(sys.modules)
from agent import cli, logs
from agent.daemon import node_agent, process
from agent.cluster import credentials, api_client, reflector
print(json.dumps(sorted({name.partition(".")[0] for name in set(sys.modules) - before})))
"""


def test_the_room_of_the_api_server_is_imported_without_its_library() -> None:
    done = subprocess.run(
        [sys.executable, "-c", COMPOSE], capture_output=True, text=True, timeout=150, check=False
    )

    assert done.returncode == 0, done.stderr
    loaded = set(json.loads(done.stdout))
    assert "agent" in loaded
    assert not loaded & LATE


def test_nothing_heavy_is_imported_before_the_first_register(short_path: Path) -> None:
    plugins = short_path / "p"
    plugins.mkdir()
    config = short_path / "config.yaml"
    vendors = {"simulated": {"settings": {"devices": 8}}, "nvidia": {"enabled": False}}
    agent = {
        "kubeletDir": str(plugins),
        "podResourcesSocket": str(short_path / "p.sock"),
        "stateDir": str(short_path / "s"),
        "cdiDir": str(short_path / "c"),
        "http": "127.0.0.1:0",
    }
    report = {"deviceInfosDir": str(short_path / "i")}
    config.write_text(json.dumps({"version": "v1", "agent": agent, "report": report, "vendors": vendors}))
    with socket.socket(socket.AF_UNIX) as kubelet:
        kubelet.bind(str(plugins / "kubelet.sock"))
        kubelet.listen()
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT, "run", "--config", str(config), "--node-name", "n"],
            capture_output=True,
            text=True,
            timeout=50,
            check=False,
        )

    assert done.returncode == 0, done.stderr
    method, loaded = json.loads(done.stdout.splitlines()[-1])
    assert method == REGISTER
    assert {name for name in loaded if not name.startswith(NOISE)} <= ALLOWED
