"""What `xpu-agent doctor` says in the agent's pod, of a node that is well and of one that a test has broken.

Pods that choose their cards by themselves, are privileged, or were refused are found in test_traps.py.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from testing.plugin import ToyPlugin, devices

from . import cards, containerd
from .api import Object
from .cards import LIBRARIES
from .cluster import Cluster
from .kubelet import DIRECTORY, NODE
from .place import Place, free_ports
from .release import NAMESPACE, STATE, Release
from .space import GPU
from .test_cdi import EXAMPLE as BY_CDI
from .test_lives_on import process
from .until import until

DAEMON_SET = "xpu-agent-nvidia"
DAEMON_SETS = f"/apis/apps/v1/namespaces/{NAMESPACE}/daemonsets"
ROLE = "clusterrole/xpu-agent"
#: Another installation's.
SECOND = "second"
LABELS = {"app": SECOND}


@dataclass(frozen=True)
class Diagnosis:
    """How the doctor ended, and what it found."""

    exit: int
    findings: tuple[Object, ...]

    def of(self, ailment: str) -> list[str]:
        """What was found of this kind, in the doctor's words."""
        return [it["what"] for it in self.findings if it["ailment"] == ailment]

    @property
    def ailments(self) -> set[str]:
        return {it["ailment"] for it in self.findings if it["ailment"]}


async def doctor(cluster: Cluster, *flags: str, where: str = f"daemonset/{DAEMON_SET}") -> Diagnosis:
    """Ask it in the one pod of this DaemonSet."""
    script = 'xpu-agent doctor --json "$@"; echo "exit $?"'
    command = ["exec", f"--namespace={NAMESPACE}", where, "--", "sh", "-c", script, "doctor", *flags]
    told, _, status = (await cluster.api.kubectl(*command)).rpartition("exit ")
    return Diagnosis(int(status), tuple(json.loads(told)["findings"]))


async def found(cluster: Cluster, ailment: str, words: str, *flags: str, **more: str) -> Diagnosis:
    """Ask until it has found such a thing."""
    return await until(
        lambda: doctor(cluster, *flags, **more),
        lambda it: any(words in what for what in it.of(ailment)),
        f"the doctor to find {ailment}: {words}",
    )


async def test_of_a_node_that_is_well_nothing_is_found_and_a_pod_lacks_the_host_for_the_runtime_alone(
    cluster: Cluster, agent: Release
) -> None:
    await cluster.offers(4)

    told = await doctor(cluster)

    left = [it for it in told.findings if it["severity"] != "ok"]
    assert [(it["check"], it["severity"]) for it in left] == [
        ("vendor-parts", "not-made"),
        ("container-runtime", "not-made"),
    ]
    assert all("NVIDIA's container runtime" in it["what"] and "--host-root" in it["what"] for it in left)
    assert told.exit == 0


async def test_another_plugin_that_registers_our_resource_is_found(cluster: Cluster, agent: Release) -> None:
    await cluster.offers(4)
    toy = ToyPlugin(DIRECTORY / "device-plugins", GPU)
    toy.list = devices("xyz")
    await toy.serve("nvidia-gpu.sock")  # as NVIDIA's plugin calls it
    try:
        await toy.register()
        await cluster.offers(3)
        told = await found(cluster, "foreign-devices", "3 devices of nvidia.com/gpu such as x, y, z")
    finally:
        await toy.close()
        toy.socket.unlink(missing_ok=True)

    assert any("nvidia-gpu.sock" in it for it in told.of("foreign-plugin"))
    assert told.of("allocatable-differs") == [f"{GPU}: the agent offers 4, the Node 3"]
    assert told.exit == 1
    await cluster.offers(4)


async def test_a_library_that_is_a_link_to_nowhere_is_found(cluster: Cluster, agent: Release) -> None:
    link = LIBRARIES / "libnvidia-ml.so.1"
    whole = link.readlink()
    point(link, "libnvidia-ml.so.550.54.14")
    try:
        told = await doctor(cluster)
    finally:
        point(link, str(whole))

    [what] = told.of("library-dangling")
    assert what.endswith("libnvidia-ml.so.550.54.14")
    assert told.exit == 1


def point(link: Path, target: str) -> None:
    """Let the link lead there, as a driver's package does it."""
    new = link.with_name(".new")
    new.symlink_to(target)
    new.rename(link)


async def test_each_right_that_is_missing_is_found(cluster: Cluster, agent: Release) -> None:
    role = json.loads(await cluster.api.kubectl("get", ROLE, "--output=json"))
    rules = [it for it in role["rules"] if "events" not in it["resources"]]
    assert len(rules) < len(role["rules"])
    await allow(cluster, rules)
    try:
        told = await found(cluster, "right-missing", "create events.events.k8s.io is forbidden")
    finally:
        await allow(cluster, role["rules"])

    assert len(told.of("right-missing")) == 2, "to create and to patch"
    assert told.exit == 0, "cards are given out without it"


async def allow(cluster: Cluster, rules: list[Object]) -> None:
    patch = json.dumps([{"op": "replace", "path": "/rules", "value": rules}])
    await cluster.api.kubectl("patch", ROLE, "--type=json", f"--patch={patch}")


async def test_a_second_agent_is_found_in_the_pod_that_stands_by(cluster: Cluster, agent: Release) -> None:
    async with beside(cluster, STATE):
        told = await found(cluster, "agent-stands-by", "holds the lock", where=f"daemonset/{SECOND}")
    assert told.exit == 0, "in a rollout it is as it should be"


async def test_a_second_agent_with_a_state_of_its_own_stands_by_too(cluster: Cluster, agent: Release) -> None:
    async with beside(cluster, STATE.with_name("xpu-agent-other")):
        words = "the agent that serves"
        told = await found(cluster, "agent-stands-by", words, where=f"daemonset/{SECOND}")
    assert told.exit == 0


@asynccontextmanager
async def beside(cluster: Cluster, state: Path) -> AsyncIterator[None]:
    """A DaemonSet of the same agent that fits the same node, as of a second installation."""
    template = (await cluster.api.get(f"{DAEMON_SETS}/{DAEMON_SET}"))["spec"]["template"]["spec"]
    await cluster.api.apply(
        {
            "apiVersion": "apps/v1",
            "kind": "DaemonSet",
            "metadata": {"name": SECOND, "namespace": NAMESPACE},
            "spec": {
                "selector": {"matchLabels": LABELS},
                "template": {"metadata": {"labels": LABELS}, "spec": another(template, state)},
            },
        }
    )
    pods = f"/api/v1/namespaces/{NAMESPACE}/pods?labelSelector=app={SECOND}"

    async def phases() -> list[str]:
        return [it["status"]["phase"] for it in await cluster.api.items(pods)]

    try:
        await until(phases, lambda it: it == ["Running"], "the second agent's pod to run")
        yield
    finally:
        await cluster.api.kubectl("delete", "daemonset", SECOND, f"--namespace={NAMESPACE}", "--wait=false")
        await until(phases, lambda it: it == [], "the second agent's pod to go")


def another(template: Object, state: Path) -> Object:
    """The pod with its state there, and on a port of its own, where nobody asks it whether it is ready."""
    [container] = template["containers"]
    [port] = free_ports(1)
    env = [it for it in container["env"] if it["name"] != "XPU_AGENT_HTTP"]
    env.append({"name": "XPU_AGENT_HTTP", "value": f"127.0.0.1:{port}"})
    kept = {key: it for key, it in container.items() if key not in {"livenessProbe", "readinessProbe"}}
    volumes = [it for it in template["volumes"] if it["name"] != "state"]
    volumes.append({"name": "state", "hostPath": {"path": str(state), "type": "DirectoryOrCreate"}})
    return {**template, "containers": [{**kept, "env": env}], "volumes": volumes}


#: Where the pod sees what the doctor needs of the host's /etc.
HOST = "/host"
LABEL = "example.com/pool"


@pytest.fixture(scope="module")
def small_disk(place: Place) -> Iterator[Path]:
    """The state directory is a disk of its own; nothing lives on it while it is put there."""
    STATE.mkdir(exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m,mode=0700", "state", str(STATE)], check=True)
    yield STATE
    subprocess.run(["umount", "--lazy", str(STATE)], check=True)


@pytest.fixture
async def fragile(cluster: Cluster, small_disk: Path) -> Release:
    """The agent that gives out cards by CDI names, asks for a label, and has its state on the small disk."""
    values = fragile_values(cluster.place)
    if not await cluster.agent.holds(values):
        await cluster.agent.anew(values)
    await cluster.offers(4)
    return cluster.agent


def fragile_values(place: Place) -> dict[str, Any]:
    config = {
        "version": "v1",
        "vendors": {"nvidia": {"enabled": True, "settings": {"deviceListStrategy": ["cdi-cri"]}}},
        "nodes": [{"match": {"labels": {LABEL: "a"}}, "set": {"report": {"labels": False}}}],
    }
    base, path = cards.values(place), containerd.CONFIG.parent
    etc = {"name": "etc", "hostPath": {"path": str(path), "type": "Directory"}}
    seen = {"name": "etc", "mountPath": f"{HOST}{path}", "readOnly": True}
    return {
        **BY_CDI,
        "config": {"map": {"fragile": yaml.safe_dump(config)}, "default": "fragile"},
        "extraVolumes": [*base["extraVolumes"], etc],
        "extraVolumeMounts": [*base["extraVolumeMounts"], seen],
    }


async def test_a_cdi_directory_that_the_runtime_does_not_read_is_found(
    cluster: Cluster, fragile: Release
) -> None:
    whole = containerd.CONFIG.read_text()
    assert not (await doctor(cluster, f"--host-root={HOST}")).of("cdi-directory-unread")
    containerd.CONFIG.write_text(whole.replace('"/var/run/cdi"', '"/opt/cdi"'))
    try:
        told = await doctor(cluster, f"--host-root={HOST}")
    finally:
        containerd.CONFIG.write_text(whole)

    [what] = told.of("cdi-directory-unread")
    assert "specs go to /var/run/cdi" in what
    assert "reads /etc/cdi, /opt/cdi" in what
    assert told.exit == 1


async def test_a_label_that_the_config_asks_for_and_the_node_lacks_is_found(
    cluster: Cluster, fragile: Release
) -> None:
    assert (await doctor(cluster)).of("node-label-missing") == [f"Node {NODE} has no label {LABEL}"]

    await cluster.label(f"{LABEL}=b")
    try:
        assert not (await doctor(cluster)).of("node-label-missing")
    finally:
        await cluster.label(f"{LABEL}-")


async def test_a_full_disk_of_the_state_is_found(cluster: Cluster, fragile: Release) -> None:
    filler = STATE / "filler"
    filler.write_bytes(bytes(7 << 20))
    try:
        told = await doctor(cluster)
    finally:
        filler.unlink()

    assert told.of("state-full")
    assert told.exit == 1
    assert not (await doctor(cluster)).of("state-full")


async def test_a_state_that_can_not_be_written_is_found(cluster: Cluster, fragile: Release) -> None:
    [status] = (await fragile.pod())["status"]["containerStatuses"]
    pid = await process(status["containerID"])
    within(pid, "mount", "-o", "bind,ro", str(STATE), str(STATE))
    try:
        told = await doctor(cluster)
    finally:
        within(pid, "umount", str(STATE))

    assert told.of("state-read-only") == [f"{STATE} is on a read-only file system"]
    assert told.exit == 1


def within(pid: int, *command: str) -> None:
    """Run it as root of the node, among the mounts of this process."""
    subprocess.run(["nsenter", f"--target={pid}", "--mount", *command], check=True, timeout=60)
