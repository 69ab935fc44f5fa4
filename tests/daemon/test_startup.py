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
#: Rooms with a folder for each plugin.
PLUGINS = ("schedulers", "vendors")
#: Not packages: what their extensions leave behind, and how pip installs.
NOISE = ("_", "cython_runtime")

#: Of these, what discovers no card: it is imported while the vendors' processes do.
AFTER_THE_SPAWN = {"asyncinotify", "betterproto2", "grpclib", "h2", "hpack", "hyperframe", "multidict"}
#: Our own rooms that decide what a vendor's process is started with.
BEFORE_THE_SPAWN = {
    "agent.cli",
    "agent.cluster",  # credentials, and what the pods of the node mean
    "agent.config",
    "agent.core",
    "agent.core.allocation",
    "agent.core.devices",
    "agent.core.publishing",
    "agent.daemon",
    "agent.host",
    "agent.isolation",
    "agent.kubelet",  # the lock of the kubelet's directory
    "agent.logs",
    "agent.scheduler_api",
    "agent.schedulers",
    "agent.state",
    "agent.vendor_api",
    "agent.vendors",
}
#: Rooms that serve the kubelet, or keep true what it was answered.
BEFORE_REGISTER = BEFORE_THE_SPAWN | {
    "agent.core.attribution",
    "agent.core.placement",
    "agent.core.reconciling",
    "agent.core.registration",
    "agent.daemon.allocation",
    "agent.daemon.publishing",
    "agent.daemon.reconciling",
    "agent.daemon.registration",
    "agent.kubelet.pb",
}
#: Parts of the standard library that cost a start some milliseconds each. No way to the kubelet needs them.
NEEDLESS = {"hmac", "html", "http.server", "pprint", "pydoc", "secrets", "unittest", "xml"}

#: Our own dataclasses that exist at Register. Each takes 0.4 ms and 12 KiB more than a `msgspec.Struct`.
MOST_DATACLASSES = 165

#: Runs the agent as its script does. At the start of the vendor's process, and at the first call of the
#: kubelet, prints which modules are loaded, and how many dataclasses they have.
SCRIPT = """
import gc, json, os, sys
before = set(sys.modules)

def dataclasses_of(name):
    classes = (value for value in vars(sys.modules[name]).values() if isinstance(value, type))
    return sum(cls.__module__ == name and "__dataclass_fields__" in vars(cls) for cls in classes)

def show(what):
    ours = [name for name in sys.modules if name.startswith("agent.") and ".pb." not in name]
    count = sum(map(dataclasses_of, ours))
    print(json.dumps([what, [gc.isenabled(), count, *sorted(set(sys.modules) - before)]]), flush=True)

class Patches:
    # The modules are patched as they are imported, so that the test imports nothing.
    def find_spec(self, name, path=None, target=None):
        if patch := PATCHES.get(name):
            sys.meta_path.remove(self)
            spec = importlib.util.find_spec(name)
            sys.meta_path.insert(0, self)
            load = spec.loader.exec_module
            spec.loader.exec_module = lambda module: (load(module), patch(module))
            return spec

def at_spawn(module):
    start = module.ProcessRunner.__init__
    def shown(self, *args, **kwargs):
        show("spawn")
        start(self, *args, **kwargs)
    module.ProcessRunner.__init__ = shown

def at_register(module):
    async def call_on(channel, method, request, **options):
        show(method)
        os._exit(0)
    module.call_on = call_on

def never(module):  # on a slow machine the first registration takes longer
    module.VIEWS_AFTER = module.CONNECT_AFTER = 3600.0

PATCHES = {
    "agent.isolation.backend_runner": at_spawn,
    "agent.kubelet.session": at_register,
    "agent.daemon.process": never,
}
import importlib.util
before |= set(sys.modules)
sys.meta_path.insert(0, Patches())
from agent.cli import main
main(sys.argv[1:])
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


def test_vendors_discover_while_the_way_to_the_kubelet_is_imported_and_no_more_is(
    short_path: Path,
) -> None:
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
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("[")]
    assert {moment: collects for moment, (collects, *_) in lines} == {"spawn": False, REGISTER: False}
    assert {moment: count for moment, (_, count, *_) in lines}[REGISTER] <= MOST_DATACLASSES
    shown = {moment: modules for moment, (_, _, *modules) in lines}
    assert packages(shown["spawn"]) <= ALLOWED - AFTER_THE_SPAWN
    assert packages(shown[REGISTER]) <= ALLOWED
    assert rooms(shown["spawn"]) <= BEFORE_THE_SPAWN
    assert rooms(shown[REGISTER]) <= BEFORE_REGISTER
    assert "agent.daemon.composition" not in shown["spawn"]
    assert not NEEDLESS & {*shown[REGISTER]}


def packages(modules: list[str]) -> set[str]:
    """The packages of other projects."""
    found = {name.partition(".")[0] for name in modules} - sys.stdlib_module_names - {"agent"}
    return {name for name in found if not name.startswith(NOISE)}


def rooms(modules: list[str]) -> set[str]:
    """Our own rooms of which a module is loaded; all vendors are one room here, and so are all schedulers."""
    found = {name.rpartition(".")[0] for name in modules if name.startswith("agent.")} - {"agent"}
    found = {"agent.kubelet.pb" if name.startswith("agent.kubelet.pb.") else name for name in found}
    return {".".join(name.split(".")[:2]) if name.split(".")[1] in PLUGINS else name for name in found}
