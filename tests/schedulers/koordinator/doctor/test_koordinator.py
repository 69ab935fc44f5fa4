"""A node of Koordinator's that is well has nothing to mend, and each check knows what is not its affair."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePosixPath

import pytest
from cluster.koordlets import Koordlet, from_files
from doctor.patient import GPU, Patient
from scenarios.node import PATIENCE
from support.waiting import eventually

from agent.scheduler_api.findings import Finding, Severity
from agent.schedulers.koordinator.doctor import report_mode_check
from agent.schedulers.koordinator.doctor.programs import on_host, running
from agent.state.uninstall_record import NAME, UninstallRecord

from . import koordination
from .koordination import allocated, card, cards, device, infos, install, koordlet, limits, manage, node
from .koordinator_faults import LOCK, ago

#: Full name of the kind of a Device.
DEVICES = "devices.scheduling.koordinator.sh"
CHECKS = (
    *("koordinator", "koord-programs", "koordlet", "device-daemon"),
    *("koord-device", "koord-node", "scheduler-locks", "koord-pods"),
)


def told(findings: Sequence[Finding], check: str) -> str:
    return "; ".join(it.what for it in findings if it.check == check)


def ailments(findings: Sequence[Finding]) -> set[str]:
    return {it.kind for it in findings if it.check in CHECKS} - {""}


async def test_a_device_that_the_agent_writes_is_well_with_what_the_manager_makes_of_it(
    patient: Patient, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(patient)
    koordination.introduce(patient, monkeypatch)
    koordination.placement(patient, "auto")
    await koordination.reports(patient, mode="device", healthy=2)
    await patient.server.wait(lambda it: it.find("Device", "node"))
    manage(patient)
    asks = {"resources": {"limits": {GPU: "1"}}}
    koordination.put_pod(patient, "promised", asks, annotations=allocated(patient.cards.uuids[0]))

    findings = await patient.findings()

    assert [it for it in findings if it.severity is not Severity.OK] == []
    assert "the agent reports the cards by device" in told(findings, "koordinator")
    assert told(findings, "koord-device") == "Device node lists 2 cards, 2 healthy"


async def test_a_koordlet_that_takes_the_agent_s_file_is_well(patient: Patient) -> None:
    install(patient, "feed")
    koordlet(patient)
    await koordination.reports(patient, mode="feed", healthy=2)
    await eventually(lambda: from_files(infos(patient)), PATIENCE)
    device(patient, from_files(infos(patient)) or [])
    manage(patient)

    findings = await patient.findings()

    assert [it for it in findings if it.severity is not Severity.OK] == []
    assert "runs here with Accelerators=true" in told(findings, "koordlet")


async def test_where_koordinator_is_not_there_or_not_to_be_told_nothing_is_asked_of_it(
    patient: Patient,
) -> None:
    absent = await patient.findings()
    install(patient, "none")
    Koordlet(patient.server, "node").report([])
    unwanted = await patient.findings()

    assert ailments(absent) == ailments(unwanted) == set()
    assert "Koordinator is not installed" in told(absent, "koordlet")
    assert "report.mode is 'none'" in told(unwanted, "koord-device")


async def test_a_node_without_any_right_on_devices_has_them_named_where_koordinator_is_there(
    patient: Patient,
) -> None:
    install(patient)
    patient.server.forbid("*", "/apis/scheduling.koordinator.sh/v1alpha1/devices")

    findings = await patient.findings()

    denied = {it.what.partition(" is forbidden")[0] for it in findings if it.kind == "right-missing"}
    verbs = ("get", "list", "watch", "create", "update", "delete")
    assert {f"{verb} devices.scheduling.koordinator.sh" for verb in verbs} <= denied
    assert "403" in told(findings, "koord-device")


@pytest.mark.parametrize(
    ("ready", "found"),
    [("True", set()), ("Unknown", {"device-of-old-name"}), ("False", {"device-of-old-name"})],
)
async def test_a_device_of_another_node_is_left_from_before_where_that_node_works_no_more(
    patient: Patient, ready: str, found: set[str]
) -> None:
    install(patient)
    device(patient, cards(patient))
    device(patient, cards(patient), name="other")
    device(patient, [card("GPU-of-others", 0)], name="a-third")
    other = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "other"}}
    patient.server.put_object({**other, "status": {"conditions": [{"type": "Ready", "status": ready}]}})
    manage(patient)

    assert ailments(await patient.findings()) == found


async def test_a_device_that_an_agent_here_wrote_under_another_name_is_left_from_before(
    patient: Patient,
) -> None:
    install(patient)
    patient.node.state.mkdir(mode=0o700)
    UninstallRecord(patient.node.state / NAME).note_object(DEVICES, "before")
    device(patient, cards(patient))
    device(patient, [card("GPU-that-was-taken-out", 0)], name="before")
    manage(patient)

    assert ailments(await patient.findings()) == {"device-of-old-name"}


async def test_pods_that_are_over_or_of_other_cards_are_in_no_doubt(patient: Patient) -> None:
    install(patient)
    device(patient, cards(patient))
    manage(patient)
    asks = {"resources": {"limits": {GPU: "1"}}}
    ended = koordination.put_pod(patient, "ended", asks, scheduler="default-scheduler")
    patient.server.put_object({**ended, "status": {"phase": "Succeeded"}})
    its = allocated(patient.cards.uuids[0])
    over = koordination.put_pod(patient, "over", limits(gpu_core="100"), annotations=its)
    patient.server.put_object({**over, "status": {"phase": "Failed"}})
    koordination.put_pod(patient, "elsewhere", limits(gpu_core="100"), annotations=allocated("GPU-of-others"))
    koordination.put_pod(patient, "nonsense", asks, annotations={**allocated("x"), "gpu": "["})
    koordination.put_pod(patient, "waits", limits(gpu_core="50", gpu_memory="1Gi"), node="")

    assert ailments(await patient.findings()) == set()


async def test_a_koordlet_that_has_our_cards_reads_the_file_wherever_its_pod_has_it(patient: Patient) -> None:
    install(patient)
    koordlet(patient, volumeMounts=[])
    device(patient, cards(patient))
    manage(patient)

    assert ailments(await patient.findings()) == set()


async def test_cards_that_others_add_by_files_make_no_difference(patient: Patient) -> None:
    install(patient, "feed")
    koordlet(patient)
    await koordination.reports(patient, mode="feed", healthy=2)
    device(patient, [*cards(patient), card("GPU-of-another-file", 2)])
    manage(patient)

    assert ailments(await patient.findings()) == set()


async def test_a_vendor_heeds_the_scheduler_where_one_of_its_resources_does(patient: Patient) -> None:
    shared = {"name": f"{GPU}.shared", "placement": "auto", "devices": [1]}
    patient.configure(resources=[{"name": GPU, "devices": [0]}, shared])
    install(patient)
    device(patient, cards(patient))
    manage(patient)
    its = allocated(patient.cards.uuids[0])
    koordination.put_pod(patient, "promised", limits(gpu_core="100"), annotations=its)

    assert ailments(await patient.findings()) == set()


async def test_a_pod_of_metax_that_names_its_core_waits_for_something_else(patient: Patient) -> None:
    install(patient)
    device(patient, [card("GPU-metax", 0)], vendor="metax")
    asks = limits(gpu_memory="1Gi", gpu_core="5")
    asks["resources"]["limits"]["metax-tech.com/sgpu"] = "1"
    koordination.put_pod(patient, "waits", asks, node="")

    assert "metax-pod-without-core" not in ailments(await patient.findings())


async def test_the_rights_to_take_cards_back_are_needed_where_an_agent_here_has_told_them(
    patient: Patient,
) -> None:
    install(patient, "none")
    patient.server.forbid("delete", "/apis/scheduling.koordinator.sh/v1alpha1/devices")
    before = await patient.findings()
    patient.node.state.mkdir(mode=0o700)
    UninstallRecord(patient.node.state / NAME).note_object(DEVICES, "node")

    findings = await patient.findings()

    assert "right-missing" not in {it.kind for it in before}
    (denied,) = (it.what for it in findings if it.kind == "right-missing")
    assert denied.startswith("delete devices.scheduling.koordinator.sh is forbidden")


async def test_a_koordlet_that_is_seen_not_to_report_is_not_waited_for(patient: Patient) -> None:
    install(patient)
    koordlet(patient, features="CgroupReconcile=true")
    Koordlet(patient.server, "node").report([])

    assert "the agent reports the cards by device" in told(await patient.findings(), "koordinator")


async def test_a_device_on_a_later_page_of_a_large_cluster_is_found(patient: Patient) -> None:
    install(patient)
    for number in range(250):
        device(patient, [card(f"GPU-{number}", 0)], name=f"a{number:03}")
    device(patient, cards(patient), name="z")

    findings = await patient.findings()

    assert "Device z lists" in told(findings, "koord-device")


async def test_pods_that_wait_for_something_else_are_not_kept(patient: Patient) -> None:
    install(patient)
    for number in range(3):
        koordination.put_pod(patient, f"other-{number}", {}, node="")
    koordination.put_pod(patient, "ours", limits(gpu_core="50"), node="")

    waiting = (await patient.look()).cluster.schedulers["koordinator"].pods["waiting"].value or ()

    assert [it["metadata"]["name"] for it in waiting] == ["ours"]


async def test_an_empty_device_of_a_koordlet_that_is_gone_is_one_that_the_agent_takes_over(
    patient: Patient,
) -> None:
    install(patient)
    Koordlet(patient.server, "node").report([])

    findings = await patient.findings()

    assert "the agent reports the cards by device" in told(findings, "koordinator")
    (found,) = (it for it in findings if it.kind == "device-empty")
    assert found.remedy.startswith("run the doctor again in a minute")
    assert "koordlet-not-reporting" not in ailments(findings)


async def test_a_koordlet_whose_hand_is_seen_and_its_pod_is_not_reads_the_file(patient: Patient) -> None:
    install(patient, "feed")
    Koordlet(patient.server, "node").report(cards(patient))

    assert "koordlet-not-reporting" not in ailments(await patient.findings())


async def test_a_lock_of_a_time_to_come_is_found(patient: Patient) -> None:
    node(patient, annotations={LOCK: f"{ago(-600)},default,a"})

    findings = await patient.findings()

    assert "a time 10 minutes in the future" in told(findings, "scheduler-locks")
    assert ailments(findings) == {"lock-unreadable"}


async def test_a_fresh_lock_that_the_agent_may_free_is_well(patient: Patient) -> None:
    node(patient, annotations={LOCK: f"{ago(1)},default,a"})

    findings = await patient.findings()

    assert told(findings, "scheduler-locks") == f"locks held for less than 5 minutes: {LOCK}"


async def test_settings_that_differ_from_node_to_node_or_can_not_be_read_are_not_judged(
    patient: Patient,
) -> None:
    install(patient)
    device(patient, cards(patient))
    manage(patient)
    koordination.colocate(patient, enable=False, nodeConfigs=[{"enable": True}])
    assert ailments(await patient.findings()) == set()

    koordination.colocate(patient, enable=False)
    patient.server.forbid("get", "/api/v1/namespaces/koordinator-system/configmaps")
    assert ailments(await patient.findings()) == set()


async def test_a_scheduler_that_is_not_seen_is_told_as_not_looked_at(patient: Patient) -> None:
    install(patient)
    patient.server.delete_object("Pod", "koord-scheduler", "koordinator-system")

    found = [it for it in await patient.findings() if it.check == "koord-programs"]

    assert [(it.severity, it.what) for it in found] == [
        (Severity.NOT_MADE, "no pod of koord-scheduler is seen in this cluster")
    ]


async def test_pods_that_can_not_be_listed_are_told_as_such_and_not_as_none(patient: Patient) -> None:
    install(patient)
    patient.server.forbid("list", "/api/v1/pods")

    found = [it for it in await patient.findings() if it.check == "koord-programs"]

    assert [it.severity for it in found] == [Severity.NOT_MADE]
    assert found[0].what.startswith("pods could not be listed: ")


async def test_a_remedy_by_helm_keeps_the_gates_that_are_there(patient: Patient) -> None:
    install(patient, "feed")
    known = "BECPUEvict=false,CgroupReconcile=true,A b=true"
    for name, app in (("scheduler", "koord-scheduler"), ("manager", "koord-manager")):
        koordination.program(patient, app, f"--feature-gates={known}", name=name)
    koordlet(patient, features=f"{known},GPUEnvInject=true")

    remedies = {it.kind: it.remedy for it in await patient.findings()}

    kept = r"BECPUEvict=false\,CgroupReconcile=true\,"
    assert f"'scheduler.featureGates={kept}DevicePluginAdaption=true'" in remedies["scheduler-gate-off"]
    assert f"'featureGates={kept}EnableSyncGPUSharedResource=true'" in remedies["manager-gate-off"]
    with_accelerators = rf"{kept}GPUEnvInject=true\,Accelerators=true"
    assert f"'koordlet.features={with_accelerators}'" in remedies["koordlet-not-reporting"]
    assert f"'koordlet.features={kept}GPUEnvInject=false'" in remedies["koordlet-injects"]


async def test_where_no_koordlet_is_seen_its_chart_s_own_gates_stay(patient: Patient) -> None:
    install(patient, "feed")

    (found,) = (it for it in await patient.findings() if it.kind == "koordlet-not-reporting")

    own = r"BECPUEvict=true\,BEMemoryEvict=true\,CgroupReconcile=true\,Accelerators=true"
    assert f"'koordlet.features={own}'" in found.remedy


@pytest.mark.parametrize("content", ["", "7", "lock", None])
async def test_what_may_be_another_s_is_never_to_be_removed(patient: Patient, content: str | None) -> None:
    """As the kubelet's socket, where the directory of cards is said to be the kubelet's."""
    install(patient, "feed")
    koordlet(patient)
    place = infos(patient) / "kubelet.sock"
    if content is None:
        await patient.listen(place)
    else:
        place.write_text(content)

    findings = await patient.findings()

    assert "device-infos-strange" in ailments(findings)
    assert not any("rm -f" in it.remedy for it in findings)


async def test_links_to_nothing_and_in_a_ring_are_told_as_koordlet_meets_them(patient: Patient) -> None:
    install(patient, "feed")
    koordlet(patient)
    (infos(patient) / "lost").symlink_to("nothing")
    (infos(patient) / "ring").symlink_to("ring")

    (found,) = (it for it in await patient.findings() if it.kind == "device-infos-strange")

    assert "/lost: is a link to what is not there" in found.what
    assert "/ring: Too many levels of symbolic links" in found.what


async def test_what_is_to_be_removed_is_named_as_a_shell_takes_it(patient: Patient) -> None:
    install(patient, "feed")
    koordlet(patient)
    (infos(patient) / "a; b").write_text("[")

    (found,) = (it for it in await patient.findings() if it.kind == "device-infos-broken")

    assert f"rm -f '{infos(patient)}/a; b'" in found.remedy


async def test_a_named_vendor_without_cards_is_told_with_an_agent_and_without(
    patient: Patient, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(patient, "device", vendor="simulated")
    koordination.introduce(patient, monkeypatch)

    left = told(await patient.findings(), "koordinator")

    assert "report.vendor is 'simulated', which lists no cards, and the node has 2 of nvidia" in left

    await koordination.reports(patient, mode="device", cards=0)
    findings = await patient.findings()

    assert {"cards-left-out", "device-missing"} <= ailments(findings)
    assert "the node has 2 cards, and the agent reports none by device" in told(findings, "koord-device")
    assert "2 cards of nvidia are not reported" in told(findings, "koordinator")


@pytest.mark.parametrize(
    ("config", "what"),
    [
        (None, "there is no ConfigMap koordinator-system/slo-controller-config"),
        ("{", "colocation-config of koordinator-system/slo-controller-config is no JSON: Expecting"),
        ("[]", "colocation-config of koordinator-system/slo-controller-config is no object"),
        ("[" * 99_999, "colocation-config of koordinator-system/slo-controller-config is nested too deeply"),
    ],
    ids=["none", "broken", "a list", "deep"],
)
async def test_settings_of_koord_manager_that_say_nothing_are_told_as_they_are(
    patient: Patient, config: str | None, what: str
) -> None:
    install(patient)
    patient.server.delete_object("ConfigMap", "slo-controller-config", "koordinator-system")
    patient.server.delete_object("Pod", "koord-manager", "koordinator-system")
    if config is not None:
        koordination.colocate(patient, config)

    (found,) = (it for it in await patient.findings() if it.kind == "colocation-off")

    assert found.what.startswith(what)
    assert "kubectl -n koordinator-system edit configmap" in found.remedy


async def test_a_koordlet_that_is_seen_is_told_once_though_it_has_overwritten_the_device(
    patient: Patient, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(patient, "device")
    koordination.introduce(patient, monkeypatch)
    await koordination.reports(patient, mode="device", healthy=2)
    await patient.server.wait(lambda it: it.find("Device", "node"))
    Koordlet(patient.server, "node").report([])
    await patient.agent.until(lambda it: it["report"]["overwritten"])
    koordlet(patient)

    found = ailments(await patient.findings())

    assert "koordlet-in-the-way" in found
    assert "device-overwritten" not in found


async def test_an_agent_in_a_pod_is_compared_by_what_the_host_has(patient: Patient) -> None:
    install(patient)
    koordlet(patient)
    inside = "/inside"
    koordination.configure(patient, deviceInfosDir=inside)
    mount = {"volumeMounts": [{"name": "koordlet", "mountPath": inside}]}
    volumes = [{"name": "koordlet", "hostPath": {"path": str(infos(patient))}}]
    labels = {"app.kubernetes.io/name": "xpu-agent"}
    koordination.put_pod(patient, "agent", mount, labels, volumes=volumes)

    assert "koordlet-reads-elsewhere" not in ailments(await patient.findings())


def container(*arguments: str, **more: object) -> dict[str, object]:
    return {"name": "koordlet", "command": ["/koordlet"], "args": list(arguments), **more}


def pod(*containers: object, **spec: object) -> dict[str, object]:
    metadata = {"name": "p", "namespace": "n", "labels": {"koord-app": "koordlet"}}
    return {"metadata": metadata, "spec": {"containers": list(containers), **spec}}


@pytest.mark.parametrize(
    ("arguments", "on"),
    [
        (["-feature-gates=A=true,Gate=true"], True),
        (["--feature-gates", "Gate=true"], True),
        (["-feature-gates=Gate=true", "-feature-gates=Gate=false"], False),
        (["-feature-gates=AllAlpha=true"], True),
        (["-feature-gates=AllAlpha=true,Gate=0"], False),
        (["-feature-gates"], False),
        ([], False),
    ],
)
def test_gates_are_read_as_the_programs_read_them(arguments: list[str], on: bool) -> None:
    (found,) = running([pod(container(*arguments))], "koordlet")

    assert found.has("Gate") is on


@pytest.mark.parametrize(
    ("image", "version"),
    [
        ("ghcr.io/koordinator-sh/koordlet:v1.8.0", (1, 8)),
        ("registry:5000/koordlet:1.10", (1, 10)),
        ("registry:5000/koordlet", None),
        ("koordlet:latest", None),
        ("koordlet@sha256:0", None),
    ],
)
def test_the_version_is_the_image_s_tag_where_it_says_one(
    image: str, version: tuple[int, int] | None
) -> None:
    (found,) = running([pod(container(image=image))], "koordlet")

    assert found.version == version


@pytest.mark.parametrize(
    "strange",
    [
        {},
        {
            "metadata": {"labels": {"koord-app": 1}},
            "spec": {"containers": [1, {"args": [1], "command": "x"}]},
        },
        pod({"name": 1, "args": {"a": 1}}),
        {**pod(container()), "status": {"phase": "Failed"}},
        {"spec": {"containers": [container()]}},
    ],
)
def test_what_is_no_program_of_koordinator_s_is_none_whatever_it_holds(strange: dict[str, object]) -> None:
    assert running([strange], "koordlet") == []


def test_a_path_is_on_the_host_where_the_nearest_mount_is_a_directory_of_it() -> None:
    mounts = [
        {"name": "run", "mountPath": "/run"},
        {"name": "infos", "mountPath": "/run/infos", "subPath": "sub"},
        {"name": "own", "mountPath": "/run/own"},
    ]
    volumes = [
        {"name": "run", "hostPath": {"path": "/host/run"}},
        {"name": "infos", "hostPath": {"path": "/host/infos"}},
        {"name": "own", "emptyDir": {}},
    ]
    it = container(volumeMounts=mounts)
    whole = pod(it, volumes=volumes)

    assert on_host(whole, it, PurePosixPath("/run/a")) == PurePosixPath("/host/run/a")
    assert on_host(whole, it, PurePosixPath("/run/infos/b")) == PurePosixPath("/host/infos/sub/b")
    assert on_host(whole, it, PurePosixPath("/run/own/c")) is None
    assert on_host(whole, it, PurePosixPath("/etc")) is None


async def test_a_koordlet_that_does_nothing_is_in_nobody_s_way(
    patient: Patient, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(patient, "device")
    koordination.introduce(patient, monkeypatch)
    await koordination.reports(patient, mode="device", healthy=2)
    # As the agent has it a minute later: its word is what counts here, and not how it came to it.
    monkeypatch.setattr(
        report_mode_check, "koordlet_sign", lambda _: "koordlet x runs here with Accelerators=true"
    )

    assert "koordlet-in-the-way" not in ailments(await patient.findings())
