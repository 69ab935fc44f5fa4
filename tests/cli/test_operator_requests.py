"""`xpu-agent health`: what it says to the agent, and how it shows the answer."""

from __future__ import annotations

import io
import json
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import anyio
import anyio.to_thread
import pytest
from support.short_places import SHORT_PLACE

from agent.cli import health_table, main, operator_requests
from agent.core.devices.inventory import Inventory
from agent.core.errors import NoSuchDevice, UsageError
from agent.core.model import Allocation, AllocationState, Command, Cordon, VendorState, VendorStatus
from agent.core.publishing.agent_status import AgentStatus
from agent.http import serving
from agent.http.admin_client import CannotAsk
from agent.vendor_api.agent import Device, Fault, HealthEvent, Proof


def node() -> AgentStatus:
    """A card in use and cordoned, a sick one, and one that is remembered."""
    inventory = Inventory(cordons={"gone-1": Cordon("bob", "", 900.0)})
    inventory.enable([VendorStatus("acme", VendorState.STARTING)])
    inventory.discovered("acme", [Device("a-0", 0), Device("a-1", 1)], now=100)
    inventory.observed("acme", [HealthEvent("a-1", Fault("xid-79", "off", cleared_by=(Proof.RESET,)))], 880)
    inventory.cordon("a-0", Cordon("root (alice)", "maintenance", 940.0))
    held = Allocation("x", "acme.com/xpu", "acme", ("a-0",), ("a-0",), AllocationState.DONE, 1.0)
    return AgentStatus("node", "1", snapshot=inventory.snapshot(), allocations=(held,))


@contextmanager
def running(error: Exception | None = None) -> Iterator[tuple[Path, list[Command]]]:
    """An agent behind an admin socket, in a thread of its own, and the commands that it heard."""
    heard: list[Command] = []
    up, over = threading.Event(), threading.Event()

    async def apply(command: Command) -> str:
        heard.append(command)
        if error is not None:
            raise error
        return f"{command.device}: {command.verb}ed"

    async def serve(path: Path) -> None:
        async with serving(node, path, apply=apply):
            up.set()
            await anyio.to_thread.run_sync(over.wait)

    with tempfile.TemporaryDirectory(dir=SHORT_PLACE) as directory:
        thread = threading.Thread(target=anyio.run, args=(serve, Path(directory) / "agent.sock"))
        thread.start()
        try:
            assert up.wait(30)
            yield Path(directory), heard
        finally:
            over.set()
            thread.join()


def test_list_shows_each_device_with_what_ends_its_fault_and_who_cordoned_it() -> None:
    with running() as (directory, _):
        devices = health_table.known_devices(directory / "agent.sock")
    out = io.StringIO()

    health_table.show(devices, out, now=1000.0)

    rows = [
        " ".join(line.split()) for line in out.getvalue().splitlines() if "acme" in line or "gone" in line
    ]
    assert rows == [
        "acme 0 a-0 healthy - 15m - yes root (alice) maintenance 60s",
        "acme 1 a-1 unhealthy xid-79: off 2m reset, operator no - - -",
        "- - gone-1 unknown (not listed) lost-contact: not listed since the agent started - - no bob - 100s",
    ]


def test_list_as_json_is_a_list_of_devices(capsys: pytest.CaptureFixture[str]) -> None:
    with running() as (directory, _):
        assert main(["health", "list", "--json", "--state-dir", str(directory)]) == 0

    devices = {it["uuid"]: it for it in json.loads(capsys.readouterr().out)}
    assert devices["a-0"]["cordon"] == {"author": "root (alice)", "reason": "maintenance", "since": 940.0}
    assert devices["a-0"]["inUse"] is True
    assert devices["a-1"]["health"]["reason"] == "xid-79"
    assert devices["a-1"]["clearedBy"] == ["reset", "operator"]
    assert [it["listed"] for it in devices.values()] == [True, True, False]


@pytest.mark.parametrize(
    ("arguments", "command"),
    [
        (["cordon", "a-0"], Command("cordon", "a-0", "")),
        (["cordon", "a-0", "--reason", "fan"], Command("cordon", "a-0", "", "fan")),
        (["uncordon", "a-0"], Command("uncordon", "a-0", "")),
        (["clear", "a-0"], Command("clear", "a-0", "")),
    ],
)
def test_a_command_reaches_the_agent_and_its_answer_is_printed(
    arguments: list[str], command: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    with running() as (directory, heard):
        assert main(["health", *arguments, "--state-dir", str(directory)]) == 0

    assert [replace(it, author="") for it in heard] == [command]
    assert capsys.readouterr().out == f"a-0: {command.verb}ed\n"


def test_whoever_uses_sudo_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUDO_USER", "alice")
    with running() as (directory, heard):
        main(["health", "cordon", "a-0", "--state-dir", str(directory)])

    assert heard[0].author.endswith("(alice)")


def test_a_refusal_is_exit_1_with_the_agents_words(capsys: pytest.CaptureFixture[str]) -> None:
    with running(NoSuchDevice("a-9", (), ("a-0", "a-1"))) as (directory, _):
        assert main(["health", "clear", "a-9", "--state-dir", str(directory)]) == 1

    assert capsys.readouterr().err == "xpu-agent: this node has no device 'a-9'; it has a-0, a-1\n"


@pytest.mark.parametrize("arguments", [[], ["dance"], ["cordon"], ["clear", "a", "--reason", "x"]])
def test_anything_else_is_a_usage_error(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["health", *arguments])

    assert ended.value.code == 2


def test_no_agent_is_told_with_the_socket(short_path: Path) -> None:
    with pytest.raises(CannotAsk, match="there is no such socket"):
        operator_requests.send(short_path / "agent.sock", "clear", "a-0")


def test_a_reason_that_is_no_utf_8_is_refused_before_anybody_is_asked(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="reason: is not UTF-8"):
        operator_requests.send(tmp_path / "agent.sock", "cordon", "a", "\udcff bad")
