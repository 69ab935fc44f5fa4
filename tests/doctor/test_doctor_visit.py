"""`xpu-agent doctor`: what it prints, how it ends, and that it changes nothing."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import anyio.to_thread
import pytest
from schedulers.koordinator.doctor.koordination import placement

from agent.cli import main
from agent.daemon.scheduler_plugins import registered
from agent.doctor import configuration_reading
from agent.doctor.checks import CHECKS
from agent.doctor.findings_output import show, stops
from agent.scheduler_api import Scheduler
from agent.scheduler_api.findings import LONGEST, Finding, Severity, not_made
from agent.vendors.simulated.agent.claims import WITH_RECEIPT

from .patient import CARDS, GPU, Patient


async def doctor(patient: Patient, *more: str) -> int:
    """The verb as a shell calls it, with its own event loop."""
    flags = ("--config", str(patient.node.config), "--node-name", "node", "--host-root", str(patient.host))
    arguments = ["doctor", *flags, "--kubeconfig", str(patient.kubeconfig), *more]
    return await anyio.to_thread.run_sync(main, arguments)


async def test_a_healthy_node_ends_with_0_and_a_fault_that_stops_work_with_1(
    patient: Patient, capsys: pytest.CaptureFixture[str]
) -> None:
    patient.beside("metax")
    await patient.start()

    assert await doctor(patient) == 0
    assert "34 ok: nothing stops work" in capsys.readouterr().out

    await patient.kubelet.kill()

    assert await doctor(patient) == 1
    told = capsys.readouterr().out
    assert "STOPS  kubelet" in told
    assert "no process listens" in " ".join(told.split())  # where lines end is the paths' length
    assert "do:  start the kubelet: systemctl start kubelet" in told
    assert "this stops work" in told


async def test_json_has_each_check_with_its_finding(
    patient: Patient, capsys: pytest.CaptureFixture[str]
) -> None:
    patient.add_pod("greedy", {"env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]})
    patient.beside("metax")
    await patient.start()

    assert await doctor(patient, "--json") == 0  # a warning stops nothing

    told: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert told["counts"] == {"stops": 0, "warns": 1, "not-made": 0, "ok": 33}
    assert {it["check"] for it in told["findings"]} == {it.name for it in CHECKS}
    (found,) = (it for it in told["findings"] if it["severity"] == "warns")
    assert found["check"] == "pods-around"
    assert found["ailment"] == "pod-chooses-devices"
    assert "default/greedy" in found["what"]
    assert found["remedy"].startswith("remove NVIDIA_VISIBLE_DEVICES")


async def test_nothing_is_changed_beside_a_running_agent(patient: Patient) -> None:
    document = await patient.start()
    await patient.node.counts({GPU: (CARDS, CARDS)})  # so both checkpoints are there
    await patient.node.saved()
    before = files(patient)
    asked = len(patient.server.requests)

    await patient.findings()

    after = await patient.agent.until(lambda it: it["ready"])
    assert [it["registrations"] for it in after["resources"]] == [
        it["registrations"] for it in document["resources"]
    ]
    assert files(patient) == before
    writes = {it.path for it in patient.server.requests[asked:] if it.verb not in ("get", "list", "watch")}
    assert writes == {"/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"}


def files(patient: Patient) -> dict[str, tuple[int, int]]:
    """Names with inode and mode; an agent that works rewrites its checkpoint, and so does its kubelet."""
    found = {}
    for place in (patient.node.state, patient.kubelet.plugin_dir):
        for name in os.listdir(place):
            if name.startswith(".") or name in ("checkpoint.new", "checkpoint.journal"):
                continue  # being written just now, or there between two checkpoints
            it = (place / name).lstat()
            is_rewritten = name in ("checkpoint.json", "kubelet_internal_checkpoint")
            found[f"{place}/{name}"] = (0 if is_rewritten else it.st_ino, it.st_mode)
    return found


async def test_without_an_api_server_its_checks_are_named_as_not_made(patient: Patient) -> None:
    patient.kubeconfig = None

    findings = await patient.findings()

    missing = {it.check: it.what for it in findings if it.severity is Severity.NOT_MADE}
    assert "--kubeconfig" in missing.pop("api-server")
    assert "agent" in missing.pop("memory-units")
    assert missing.keys() == {
        *("rbac", "node-allocatable", "pods-refused", "pods-around", "scheduler-locks"),
        *("koordinator", "koord-programs", "koordlet", "device-daemon"),
        *("koord-device", "koord-node", "koord-pods"),
    }
    assert {"see check api-server" in it for it in missing.values()} == {True}


async def test_a_kubeconfig_that_is_broken_is_named_with_its_place(patient: Patient, tmp_path: Path) -> None:
    patient.kubeconfig = tmp_path / "kubeconfig"
    patient.kubeconfig.write_text("current-context: a\ncontexts: []\n")

    findings = await patient.findings()

    (found,) = (it for it in findings if str(patient.kubeconfig) in it.what)
    assert found.kind == "api-server-away"


async def test_a_token_that_is_not_taken_is_a_way_that_leads_nowhere(patient: Patient) -> None:
    old = patient.server.token
    patient.server.renew_token()

    findings = await patient.findings()

    (found,) = (it for it in findings if "401" in it.what)
    assert found.kind == "api-server-away"
    assert all(old not in it.what for it in findings)


async def test_what_may_not_be_read_is_not_made_and_keeps_nothing_else_from_it(patient: Patient) -> None:
    patient.server.forbid("*", "/api/v1/pods")
    patient.server.forbid("get", "/api/v1/nodes")

    findings = await patient.findings()

    not_made = {it.check for it in findings if it.severity is Severity.NOT_MADE}
    assert {"pods-refused", "pods-around", "node-allocatable"} <= not_made
    denied = {it.what.partition(" is forbidden")[0] for it in findings if it.kind == "right-missing"}
    assert denied == {"get nodes/node", "list pods", "watch pods"}


def simulated(**settings: Any) -> Mapping[str, Any]:
    """A vendor of whose cards there is one."""
    return {"vendors": {"simulated": {"enabled": True, "settings": {"devices": 1, **settings}}}}


EVENTS = "/apis/events.k8s.io/v1/namespaces/default/events"


@pytest.mark.parametrize(
    ("forbidden", "more", "missing"),
    [
        pytest.param(
            ("*", EVENTS),
            {"report": {"events": True}},
            ["create events.events.k8s.io", "patch events.events.k8s.io"],
            id="events",
        ),
        pytest.param(("*", EVENTS), {"report": {"events": False}}, [], id="events, unwanted"),
        pytest.param(("patch", "/api/v1/pods"), simulated(receipts=True), ["patch pods"], id="receipts"),
        pytest.param(("patch", "/api/v1/pods"), simulated(receipts=False), [], id="receipts, unwanted"),
        pytest.param(
            ("patch", "/api/v1/nodes/node/status"),
            simulated(extendedResource="acme.com/card-count"),
            ["patch nodes/status/node"],
            id="counts of a vendor",
        ),
        pytest.param(("patch", "/api/v1/nodes/node/status"), simulated(), [], id="counts, unwanted"),
        pytest.param(("*", "/api/v1/pods"), {"agent": {"watchPods": False}}, [], id="pods, not followed"),
    ],
)
async def test_a_right_is_needed_where_the_configuration_makes_use_of_it(
    patient: Patient, forbidden: tuple[str, str], more: Mapping[str, Any], missing: list[str]
) -> None:
    patient.server.forbid(*forbidden)
    document = json.loads(patient.node.config.read_text())
    for key, its in more.items():
        document[key] = {**document.get(key, {}), **its}
    patient.node.config.write_text(json.dumps(document))

    findings = await patient.findings()

    denied = [it.what.partition(" is forbidden")[0] for it in findings if it.kind == "right-missing"]
    assert denied == missing


async def receipts_missing(patient: Patient) -> list[str]:
    """What the doctor misses where a scheduler's own dialect has receipts, and pods may not be patched."""
    patient.server.forbid("patch", "/api/v1/pods")
    findings = await patient.findings()
    return [it.what.partition(" is forbidden")[0] for it in findings if it.kind == "right-missing"]


@pytest.fixture
def with_receipts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A registered scheduler whose own dialect has receipts, for the cards of every vendor."""
    own = Scheduler("acme", dialects=(WITH_RECEIPT,))
    monkeypatch.setattr(configuration_reading, "registered", lambda: (*registered(), own))


@pytest.mark.usefixtures("with_receipts")
@pytest.mark.parametrize(
    ("chosen_by", "missing"), [("local", []), ("auto", ["patch pods"]), ("claim", ["patch pods"])]
)
async def test_the_receipts_of_a_scheduler_s_own_dialect_need_the_right_where_schedulers_choose(
    patient: Patient, chosen_by: str, missing: list[str]
) -> None:
    placement(patient, chosen_by)

    assert await receipts_missing(patient) == missing


@pytest.mark.usefixtures("with_receipts")
async def test_a_vendor_whose_resources_follow_schedulers_by_default_needs_the_right_too(
    patient: Patient,
) -> None:
    document = json.loads(patient.node.config.read_text())
    document["vendors"]["metax"] = {"enabled": True, "settings": {"mode": "sgpu"}}
    patient.node.config.write_text(json.dumps(document))

    assert await receipts_missing(patient) == ["patch pods"]


async def test_a_config_that_is_bad_is_told_once_also_beside_the_agent_that_refused_it(
    patient: Patient, capsys: pytest.CaptureFixture[str]
) -> None:
    await patient.start()
    patient.spoil("report: {}\nversion: v9\n")
    await patient.agent.until(lambda it: it["config"]["error"])

    assert await doctor(patient, "--json") == 1

    told = json.loads(capsys.readouterr().out)["findings"]
    assert [it["ailment"] for it in told if f"{patient.node.config}:2" in it["what"]] == ["config-refused"]
    assert [it["check"] for it in told if it["severity"] == "stops"] == ["config"]
    assert "agent" in {it["check"] for it in told if it["severity"] == "ok"}  # it was asked


async def test_the_configuration_is_read_with_the_labels_of_the_node(patient: Patient) -> None:
    match = {"match": {"labels": {"pool": "b"}}, "set": {"agent": {"cdiDir": "/opt/of-pool-b"}}}
    patient.configure(match)
    patient.offer(2, pool="b")

    around = await patient.look()

    assert str(around.config.agent.cdi_dir) == "/opt/of-pool-b"
    assert around.configuration.labels == ("pool",)


def test_strangers_text_is_printed_without_control_characters_and_bounded() -> None:
    out = io.StringIO()
    finding = Finding("pods-refused", Severity.WARNS, "", why="a", remedy="b")

    show("n\x1b[31m", "1", [finding, not_made("kubelet", "\x1b]0;x\x07" + "y" * 5000)], out)

    assert "\x1b" not in out.getvalue()
    assert out.getvalue().count("y") <= LONGEST + 10
    assert not stops([finding])
