"""Every fault that the doctor knows, made for real: files, sockets, disks, processes, driver, API server."""

from __future__ import annotations

import json
import os
import shutil
import socket
import sys
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from grpclib.const import Cardinality, Handler, Status
from grpclib.exceptions import GRPCError
from scenarios.node import PATIENCE
from support.waiting import eventually
from testing.plugin import ClosingServer, ToyPlugin, devices

from agent.core.publishing.agent_status import AgentStatus
from agent.core.usage.usage_report import SamplingStatus, UsageReport
from agent.host import files
from agent.http import serving
from agent.kubelet.pb.deviceplugin import v1beta1 as pb
from agent.kubelet.pod_resources import LIST
from agent.state.checkpoint import CheckpointFile, SavedState
from agent.state.uninstall_record import NAME, UninstallRecord
from agent.testing.node_kubelet import Container, Pod
from agent.vendor_api.agent import HostPart, Vendor
from agent.vendor_api.hooks import hookimpl
from agent.vendors.metax.child.abi import Code
from agent.vendors.nvidia.plugin import register_backend
from agent.vendors.simulated.child.scenario import Scenario

sys.path.append(str(Path(__file__).parents[1] / "vendors" / "metax"))

from metax_host import Host
from mxsml_stub import MxsmlStub
from schedulers.koordinator.doctor.koordination import placement

from .patient import GPU, RUNTIME, Patient, may_mount

MEMORY = "example.com/memory"
Fault = Callable[[Patient, pytest.MonkeyPatch], Awaitable[str]]

#: Ailment to what makes it; each returns a word that the finding must hold.
FAULTS: dict[str, Fault] = {}


def fault(name: str) -> Callable[[Fault], Fault]:
    def put(it: Fault) -> Fault:
        FAULTS[name] = it
        return it

    return put


# The kubelet


@fault("kubelet-directory-missing")
async def _(patient: Patient, _: pytest.MonkeyPatch) -> str:
    await patient.kubelet.kill()
    shutil.rmtree(patient.kubelet.plugin_dir)
    return str(patient.kubelet.plugin_dir)


@fault("kubelet-directory-closed")
async def _(patient: Patient, monkeypatch: pytest.MonkeyPatch) -> str:
    place = patient.root / "other"
    place.mkdir()
    read_only(patient, place, monkeypatch)
    patient.given["kubelet-dir"] = str(place)
    return str(place)


@fault("kubelet-socket-missing")
async def _(patient: Patient, _: pytest.MonkeyPatch) -> str:
    await patient.kubelet.kill()
    (patient.kubelet.plugin_dir / "kubelet.sock").unlink()
    return "kubelet.sock"


@fault("kubelet-socket-wrong")
async def _(patient: Patient, _: pytest.MonkeyPatch) -> str:
    await patient.kubelet.kill()
    path = patient.kubelet.plugin_dir / "kubelet.sock"
    path.unlink()
    path.mkdir()
    return "is no socket but d"


@fault("kubelet-socket-deaf")
async def _(patient: Patient, _: pytest.MonkeyPatch) -> str:
    await patient.kubelet.kill()
    return "no process listens"


@fault("pod-resources-missing")
async def _(patient: Patient, _: pytest.MonkeyPatch) -> str:
    patient.given["pod-resources-socket"] = str(patient.root / "nowhere.sock")
    return "nowhere.sock"


@fault("pod-resources-deaf")
async def _(patient: Patient, _: pytest.MonkeyPatch) -> str:
    path = patient.root / "deaf.sock"
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(path))
    patient.given["pod-resources-socket"] = str(path)
    return "no process answers"


@fault("pod-resources-off")
async def _(patient: Patient, _: pytest.MonkeyPatch) -> str:
    path = patient.root / "off.sock"
    server = ClosingServer([_Off()])
    await server.start(path=str(path))
    patient.stack.push_async_callback(server.shutdown)
    patient.given["pod-resources-socket"] = str(path)
    return "unknown service v1.PodResourcesLister"


class _Off:
    """A server that has the method in its name alone, as gRPC in Go answers for one that it has not."""

    def __mapping__(self) -> dict[str, Handler]:
        return {LIST: Handler(self._refuse, Cardinality.UNARY_UNARY, pb.Empty, pb.Empty)}

    async def _refuse(self, stream: object) -> None:
        raise GRPCError(Status.UNIMPLEMENTED, "unknown service v1.PodResourcesLister")


# Other plugins


@fault("foreign-plugin")
async def _(patient: Patient, _: pytest.MonkeyPatch) -> str:
    await patient.listen(patient.kubelet.plugin_dir / "nvidia-gpu.sock")
    return "nvidia-gpu.sock"


@fault("yielded-plugin")
async def _(patient: Patient, monkeypatch: pytest.MonkeyPatch) -> str:
    await patient.listen(patient.kubelet.plugin_dir / "nvidia-gpu.sock")
    sockets = ("nvidia-gpu.sock",)
    registers(monkeypatch, lambda it: replace(it, replaces=replace(it.replaces, sockets=sockets)))
    patient.configure(foreign="yield")
    return "nvidia-gpu.sock"


@fault("plugin-of-unseen-cards")
async def _(patient: Patient, _: pytest.MonkeyPatch) -> str:
    patient.beside("metax")
    await patient.listen(patient.kubelet.plugin_dir / "metax-gpu.sock")
    return "metax-gpu.sock, and no card of metax is seen here"


@fault("foreign-agent")
async def _(patient: Patient, _: pytest.MonkeyPatch) -> str:
    await patient.start()
    await patient.listen(patient.kubelet.plugin_dir / "xpu-0a0b0c0d-4711-1.sock")
    return "xpu-0a0b0c0d-4711-1.sock"


@fault("foreign-devices")
async def _(patient: Patient, _: pytest.MonkeyPatch) -> str:
    await patient.start()
    toy = ToyPlugin(patient.kubelet.plugin_dir, GPU)
    toy.list = devices("zyx")
    await patient.stack.enter_async_context(toy)
    await toy.serve()
    await toy.register()
    await patient.node.read(patient.kubelet.checkpoint, '"z"')
    return "3 devices of nvidia.com/gpu such as x, y, z"


@fault("unknown-cards")
async def _(patient: Patient, _: pytest.MonkeyPatch) -> str:
    toy = ToyPlugin(patient.kubelet.plugin_dir, "nvidia.com/gpu.shared")
    toy.list = devices("gone")
    async with toy:
        await toy.serve()
        await toy.register()
        pod = Pod("old", (Container({"nvidia.com/gpu.shared": 1}),))
        await eventually(lambda: "nvidia.com/gpu.shared" in patient.kubelet.counts(), PATIENCE)
        assert (await patient.kubelet.admit(pod)).admitted
    await patient.start()
    return f"the pod with uid {pod.uid} has nvidia.com/gpu.shared"


@fault("foreign-capacity")
async def _(patient: Patient, _: pytest.MonkeyPatch) -> str:
    patient.offer(4)
    return "offers 4 of nvidia.com/gpu"


# Library and driver


@fault("library-missing")
async def _(patient: Patient, _: pytest.MonkeyPatch) -> str:
    patient.configure(library=str(patient.root / "lib/libnvidia-ml.so.1"))
    return "library-not-found"


@fault("no-vendor")
async def _(patient: Patient, _: pytest.MonkeyPatch) -> str:
    patient.configure(library=str(patient.root / "lib/libnvidia-ml.so.1"), enabled="auto")
    return "library-not-found"


@fault("library-dangling")
async def _(patient: Patient, _: pytest.MonkeyPatch) -> str:
    (patient.root / "lib").mkdir()
    link = patient.root / "lib/libnvidia-ml.so.1"
    link.symlink_to("/opt/driver-550/libnvidia-ml.so.550.54.14")
    patient.configure(library=str(link))
    return f"{link} leads to /opt/driver-550/libnvidia-ml.so.550.54.14"


@fault("library-foreign")
async def _(patient: Patient, _: pytest.MonkeyPatch) -> str:
    content = bytearray(patient.cards.stub.library.read_bytes())
    content[18:20] = (243).to_bytes(2, "little")  # e_machine: EM_RISCV
    (patient.root / "usr/lib64").mkdir(parents=True)
    (patient.root / "usr/lib64/libnvidia-ml.so.1").write_bytes(content)
    patient.configure(library=str(patient.root))
    return "usr/lib64/libnvidia-ml.so.1 is for riscv64"


@fault("library-unusable")
async def _(patient: Patient, _: pytest.MonkeyPatch) -> str:
    half = patient.root / "libnvidia-ml.so.1"
    half.write_bytes(patient.cards.stub.library.read_bytes()[:100])
    patient.configure(library=str(half))
    return f"library-unusable: {half}: cannot read file data"


@fault("library-bypassed")
async def _(patient: Patient, monkeypatch: pytest.MonkeyPatch) -> str:
    metax(patient, monkeypatch, library="/nowhere/libmxsml.so")
    return "metax: 8 cards"


@fault("vendor-left-out")
async def _(patient: Patient, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr("agent.vendors.nvidia.plugin.register_backend", None)
    return "nvidia"


@fault("driver-not-loaded")
async def _(patient: Patient, _: pytest.MonkeyPatch) -> str:
    patient.cards.unload()
    return "no /proc/driver/nvidia/version"


@fault("driver-mismatch")
async def _(patient: Patient, _: pytest.MonkeyPatch) -> str:
    patient.cards.stub.init_error(18)  # NVML_ERROR_LIB_RM_VERSION_MISMATCH
    return f"library {patient.cards.stub.library}"


@fault("driver-denied")
async def _(patient: Patient, _: pytest.MonkeyPatch) -> str:
    patient.cards.stub.init_error(4)  # NVML_ERROR_NO_PERMISSION
    return "/dev/nvidiactl"


@fault("driver-failing")
async def _(patient: Patient, _: pytest.MonkeyPatch) -> str:
    patient.cards.segfault()
    return "SIGSEGV"


@fault("part-missing")
async def _(patient: Patient, monkeypatch: pytest.MonkeyPatch) -> str:
    needs(monkeypatch, HostPart("the driver", ("/nowhere/module",), "no card works", "modprobe it"))
    return "the driver is not there: none of /nowhere/module; without it no card works"


@fault("part-lacking")
async def _(patient: Patient, monkeypatch: pytest.MonkeyPatch) -> str:
    runtime = HostPart("the runtime", ("/usr/bin/a-runtime",), "no libraries come", "install it")
    needs(monkeypatch, replace(runtime, needed=False, on_host=True))
    return "the runtime is not there: none of /usr/bin/a-runtime"


def needs(monkeypatch: pytest.MonkeyPatch, part: HostPart) -> None:
    """Let NVIDIA's cards be served with something that is not here."""
    registers(monkeypatch, lambda it: replace(it, host=replace(it.host, parts=(part,))))


def registers(monkeypatch: pytest.MonkeyPatch, change: Callable[[Vendor], Vendor]) -> None:
    """Let NVIDIA's plugin say something else of its vendor."""

    def register(settings: Mapping[str, Any]) -> Vendor:
        return change(register_backend(settings))

    monkeypatch.setattr("agent.vendors.nvidia.plugin.register_backend", hookimpl(register))


@fault("device-unwatched")
async def _(patient: Patient, monkeypatch: pytest.MonkeyPatch) -> str:
    stub = metax(patient, monkeypatch)
    stub.lose(3, Code.BUSY_DEVICE)
    return "unreadable"


def metax(patient: Patient, monkeypatch: pytest.MonkeyPatch, **vendor: Any) -> MxsmlStub:
    """Give the node eight cards of MetaX, too."""
    stub = MxsmlStub(patient.root)
    for name, value in stub.environment.items():
        monkeypatch.setenv(name, value)
    settings = {it: value for it, value in Host(patient.root, stub).settings().items() if it != "library"}
    document = json.loads(patient.node.config.read_text())
    its = {"enabled": True, "library": str(stub.library), "settings": settings, **vendor}
    patient.node.write(json.dumps({**document, "vendors": {**document["vendors"], "metax": its}}))
    return stub


@fault("device-sick")
async def _(patient: Patient, _: pytest.MonkeyPatch) -> str:
    patient.cards.stub.lose(1)
    return "lost"


@fault("runtime-not-default")
async def _(patient: Patient, _: pytest.MonkeyPatch) -> str:
    (patient.host / "etc/containerd/config.toml").write_text(RUNTIME.format('"runc"'))
    return "nvidia: containerd starts containers by runc, as "


@fault("resource-unserved")
async def _(patient: Patient, _: pytest.MonkeyPatch) -> str:
    shared = {"name": f"{GPU}.shared", "sharing": {"kind": "replicas", "replicas": 2}}
    patient.configure(resources=[{"name": GPU}, shared])
    return f"vendor nvidia: {GPU}.shared asks for all devices, {GPU} has them already; set 'devices'"


# State


@fault("state-directory-wrong")
async def _(patient: Patient, _: pytest.MonkeyPatch) -> str:
    patient.node.state.write_text("")
    return "is no directory"


@fault("state-open")
async def _(patient: Patient, _: pytest.MonkeyPatch) -> str:
    patient.node.state.mkdir()
    patient.node.state.chmod(0o777)
    (patient.node.state / "checkpoint.json").touch()
    (patient.node.state / "checkpoint.json").chmod(0o666)
    return "checkpoint.json has mode 0666, not 0600"


@fault("state-read-only")
async def _(patient: Patient, monkeypatch: pytest.MonkeyPatch) -> str:
    patient.node.state.mkdir()
    read_only(patient, patient.node.state, monkeypatch)
    return str(patient.node.state)


@fault("state-full")
async def _(patient: Patient, monkeypatch: pytest.MonkeyPatch) -> str:
    patient.node.state.mkdir()
    if may_mount():
        patient.disk(patient.node.state, "size=64k,mode=0700")
    else:
        full = os.statvfs_result((4096, 4096, 16, 16, 16, 1, 1, 1, 0, 255))
        monkeypatch.setattr(os, "statvfs", lambda path: full)
    return "has 64 KiB left"


@fault("checkpoint-unreadable")
async def _(patient: Patient, monkeypatch: pytest.MonkeyPatch) -> str:
    read, checkpoint = files.read, patient.node.state / "checkpoint.json"

    def refuse(path: Path, *rest: Any, **more: Any) -> bytes:
        if path == checkpoint:
            raise PermissionError(13, "Permission denied")
        return read(path, *rest, **more)

    monkeypatch.setattr("agent.host.files.read", refuse)  # nothing forbids root to read
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    return f"{checkpoint}: Permission denied"


@fault("checkpoint-damaged")
async def _(patient: Patient, _: pytest.MonkeyPatch) -> str:
    patient.node.state.mkdir(mode=0o700)
    (patient.node.state / "checkpoint.json").write_text('{"version":2,"checksum":"sha256:0","data":{}}')
    return "its checksum does not match"


@fault("checkpoint-set-aside")
async def _(patient: Patient, _: pytest.MonkeyPatch) -> str:
    patient.node.state.mkdir(mode=0o700)
    (patient.node.state / "checkpoint.json").write_text("nonsense")
    await patient.start()
    return "checkpoint.json.corrupt-1-"


@fault("journal-damaged")
async def _(patient: Patient, _: pytest.MonkeyPatch) -> str:
    CheckpointFile(patient.node.state / "checkpoint.json").save(SavedState(), durable=False)
    (patient.node.state / "checkpoint.journal").write_text("nonsense")
    (patient.node.state / "checkpoint.journal").chmod(0o600)
    return "not a journal of this agent"


@fault("journal-set-aside")
async def _(patient: Patient, _: pytest.MonkeyPatch) -> str:
    patient.node.state.mkdir(mode=0o700)
    (patient.node.state / "checkpoint.journal").write_text("nonsense")
    await patient.start()
    return "checkpoint.journal.corrupt-1-"


# CDI


def containerd(patient: Patient, text: str, name: str = "config.toml") -> None:
    patient.configure(settings={**patient.cards.settings["settings"], "deviceListStrategy": ["cdi-cri"]})
    path = patient.host / "etc/containerd" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@fault("cdi-directory-unread")
async def _(patient: Patient, _: pytest.MonkeyPatch) -> str:
    part = '[plugins."io.containerd.cri.v1.runtime"]\ncdi_spec_dirs = ["/etc/cdi", "/opt/cdi"]\n'
    containerd(patient, f"version = 3\n{part}")
    return "reads /etc/cdi, /opt/cdi"


@fault("cdi-off")
async def _(patient: Patient, _: pytest.MonkeyPatch) -> str:
    part = f'[plugins."io.containerd.grpc.v1.cri"]\ncdi_spec_dirs = ["{patient.node.cdi}"]\n'
    containerd(patient, f"version = 2\n{part}")
    return "CDI is not enabled in"


@fault("cdi-directory-closed")
async def _(patient: Patient, monkeypatch: pytest.MonkeyPatch) -> str:
    containerd(patient, "version = 3\n")
    patient.node.cdi.mkdir()
    read_only(patient, patient.node.cdi, monkeypatch)
    return str(patient.node.cdi)


@fault("file-left-behind")
async def _(patient: Patient, _: pytest.MonkeyPatch) -> str:
    patient.node.state.mkdir(mode=0o700)
    left = patient.root / "features.d-of-yesterday"
    left.touch()
    UninstallRecord(patient.node.state / NAME).note_features(left)
    return f"{left}: the file exists, and no agent keeps the file"


# Agents


@fault("agent-not-running")
async def _(patient: Patient, _: pytest.MonkeyPatch) -> str:
    return "there is no such socket"


@fault("agent-not-ready")
async def _(patient: Patient, _: pytest.MonkeyPatch) -> str:
    await patient.start()
    patient.cards.segfault()
    await patient.agent.until(lambda it: it["troubles"])
    return "vendor nvidia"


@fault("receipts-unwritten")
async def _(patient: Patient, _: pytest.MonkeyPatch) -> str:
    view = AgentStatus("node", "1", receipts_error="default/web: 403 Forbidden: no patch")
    patient.node.state.mkdir(mode=0o700)
    await patient.stack.enter_async_context(serving(lambda: view, str(patient.node.state / "agent.sock")))
    return "default/web: 403 Forbidden"


@fault("extended-resources-unwritten")
async def _(patient: Patient, _: pytest.MonkeyPatch) -> str:
    view = AgentStatus("node", "1", extended_error="403 Forbidden: no patch on nodes/status")
    patient.node.state.mkdir(mode=0o700)
    await patient.stack.enter_async_context(serving(lambda: view, str(patient.node.state / "agent.sock")))
    return "no patch on nodes/status"


@fault("cards-doubtful")
async def _(patient: Patient, _: pytest.MonkeyPatch) -> str:
    view = AgentStatus("node", "1", doubts=("vendor enflame: no profile of GCU-1's slices is known",))
    patient.node.state.mkdir(mode=0o700)
    await patient.stack.enter_async_context(serving(lambda: view, str(patient.node.state / "agent.sock")))
    return "no profile of GCU-1's slices is known"


@fault("pids-hidden")
async def _(patient: Patient, _: pytest.MonkeyPatch) -> str:
    await serve_use(patient, UsageReport(1.0, 1.0, sees_node_pids=False))
    return "not those of the machine; node node"


@fault("use-unsampled")
async def _(patient: Patient, _: pytest.MonkeyPatch) -> str:
    late = "nvidia: sample did not return within 2 s"
    await serve_use(patient, UsageReport(1.0, 1.0, (SamplingStatus("nvidia", error=late),)))
    return late


async def serve_use(patient: Patient, report: UsageReport) -> None:
    """Let an agent whose config wants use measured answer this."""
    patient.given["usage-enabled"] = "true"
    view = AgentStatus("node", "1", usage=report)
    patient.node.state.mkdir(mode=0o700)
    await patient.stack.enter_async_context(serving(lambda: view, str(patient.node.state / "agent.sock")))


@fault("version-skew")
async def _(patient: Patient, monkeypatch: pytest.MonkeyPatch) -> str:
    await patient.start()
    monkeypatch.setattr("agent.doctor.survey.version", lambda: "9.9.9")
    return "this command is 9.9.9"


@fault("lock-without-service")
async def _(patient: Patient, _: pytest.MonkeyPatch) -> str:
    pid = await hold(patient)
    return f"(pid {pid}) holds"


@fault("second-agent")
async def _(patient: Patient, _: pytest.MonkeyPatch) -> str:
    pid = await hold(patient)
    (patient.node.state / "agent.sock").unlink(missing_ok=True)
    await patient.listen(patient.node.state / "agent.sock")
    return f"(pid {pid}) holds"


@fault("agent-elsewhere")
async def _(patient: Patient, _: pytest.MonkeyPatch) -> str:
    path = patient.kubelet.plugin_dir / "xpu-0a0b0c0d-4711-1.sock"
    await patient.listen(path)
    return f"{path} is served by"


@fault("agent-stands-by")
async def _(patient: Patient, _: pytest.MonkeyPatch) -> str:
    view = AgentStatus("node", "1", standby="pid 4711")
    where = await patient.stack.enter_async_context(serving(lambda: view, "127.0.0.1:0"))
    patient.given["http"] = where
    return "pid 4711 holds the lock"


async def hold(patient: Patient) -> int:
    """Let another process hold the lock; its pid."""
    patient.node.state.mkdir(mode=0o700)
    code = (
        "import fcntl, sys; it = open(sys.argv[1], 'w'); fcntl.flock(it, fcntl.LOCK_EX); print(flush=True)\n"
        "sys.stdin.read()"
    )
    return await patient.program(code, str(patient.node.state / "agent.lock"))


# The cluster


@fault("allocatable-missing")
async def _(patient: Patient, _: pytest.MonkeyPatch) -> str:
    await patient.start()
    patient.offer(None)
    return "the agent offers 2, the Node none"


@fault("allocatable-differs")
async def _(patient: Patient, _: pytest.MonkeyPatch) -> str:
    await patient.start()
    patient.offer(3)
    return "the agent offers 2, the Node 3"


@fault("node-unknown")
async def _(patient: Patient, _: pytest.MonkeyPatch) -> str:
    patient.server.delete_object("Node", "node")
    return "404"


@fault("node-label-missing")
async def _(patient: Patient, _: pytest.MonkeyPatch) -> str:
    match = {"match": {"labels": {"gpu.example/pool": "shared"}}, "set": {"report": {"labels": True}}}
    patient.configure(match)
    return "no label gpu.example/pool"


@fault("unit-kept")
async def _(patient: Patient, _: pytest.MonkeyPatch) -> str:
    cards = [{"uuid": "SIM-0", "index": 0, "memory": 16 << 30}]
    scenario = Scenario(patient.root / "scenario.json", devices=cards)

    def count(unit: str) -> None:
        rule = {"name": MEMORY, "sharing": {"kind": "memory", "unit": unit}}
        its = {"enabled": True, "settings": {"scenario": str(scenario.path)}, "resources": [rule]}
        patient.node.configure(nvidia=patient.vendor, simulated=its)

    count("1")
    await patient.agent.start()
    patient.stack.push_async_callback(patient.agent.kill)
    await patient.node.counts({MEMORY: (16, 16)})
    await patient.node.admit("first", {MEMORY: 4})
    count("0.1")
    await patient.agent.until(lambda it: any(one["unitKept"] for one in it["resources"]))
    return f"{MEMORY} counts memory in units of 1 GiB, not of 0.1"


@fault("pod-refused")
async def _(patient: Patient, _: pytest.MonkeyPatch) -> str:
    said = (
        "Allocate failed due to no healthy devices present; cannot allocate unhealthy devices "
        "nvidia.com/gpu, which is unexpected"
    )
    patient.add_pod("stuck", {}, phase="Failed", reason="UnexpectedAdmissionError", message=said)
    return "default/stuck: Allocate failed"


@fault("pod-chooses-devices")
async def _(patient: Patient, _: pytest.MonkeyPatch) -> str:
    patient.add_pod("greedy", {"env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]})
    return "default/greedy, container main asks for no device and sets NVIDIA_VISIBLE_DEVICES=all"


@fault("pod-privileged")
async def _(patient: Patient, _: pytest.MonkeyPatch) -> str:
    limits = {"resources": {"limits": {GPU: "1"}}, "securityContext": {"privileged": True}}
    patient.add_pod("mighty", limits)
    return "default/mighty, container main asks for nvidia.com/gpu and is privileged"


@fault("right-missing")
async def _(patient: Patient, _: pytest.MonkeyPatch) -> str:
    patient.server.forbid("create", "/apis/events.k8s.io/v1/namespaces/default/events")
    return "create events.events.k8s.io is forbidden"


@fault("claims-unseen")
async def _(patient: Patient, _: pytest.MonkeyPatch) -> str:
    patient.server.forbid("*", "/api/v1/pods")
    placement(patient, "claim")
    return f"{GPU} has placement 'claim', and list pods is forbidden"


@fault("api-server-away")
async def _(patient: Patient, _: pytest.MonkeyPatch) -> str:
    await patient.server.go_away()
    return patient.server.url


# The configuration


@fault("config-refused")
async def _(patient: Patient, _: pytest.MonkeyPatch) -> str:
    patient.spoil("version: v1\nvendors:\n  nvidia: {enabeld: true}\n")
    return f"{patient.node.config}:3"


@fault("config-awaits-labels")
async def _(patient: Patient, _: pytest.MonkeyPatch) -> str:
    patient.configure({"match": {"labels": {"pool": "a"}}, "set": {"report": {"labels": False}}})
    await patient.server.go_away()
    return "the label 'pool' is not known of this Node yet"


@fault("config-odd")
async def _(patient: Patient, _: pytest.MonkeyPatch) -> str:
    patient.configure(settings={**patient.cards.settings["settings"], "disableHealthChecks": "xids,79x"})
    return "is no XID"


@fault("config-other")
async def _(patient: Patient, _: pytest.MonkeyPatch) -> str:
    await patient.start()
    other = patient.root / "other.yaml"
    other.write_text(patient.node.config.read_text())
    patient.given["config"] = str(other)
    return f"the agent has {patient.node.config}, this command {other}"


@fault("config-not-taken")
async def _(patient: Patient, _: pytest.MonkeyPatch) -> str:
    await patient.start()
    whole = patient.node.config.read_text()
    patient.node.write("{")
    await patient.agent.until(lambda it: it["config"]["error"])
    fixed = patient.root / "fixed.yaml"
    fixed.write_text(whole)
    patient.given["config"] = str(fixed)
    return str(patient.node.config)


def read_only(patient: Patient, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the directory be one that even root cannot write."""
    if may_mount():
        patient.disk(place, "ro,size=1m,mode=0700")
        return
    access = os.access

    def refuse(path: Path, mode: int) -> bool:
        return not (mode & os.W_OK and Path(path) == place) and access(path, mode)

    monkeypatch.setattr(os, "access", refuse)
