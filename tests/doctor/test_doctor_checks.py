"""What each check makes of what it sees, beyond the faults that are made for real."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator, Mapping
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from pkgutil import walk_packages
from typing import Any

import pytest
from msgspec import structs

from agent import core, daemon, isolation, kubelet
from agent.config import AgentSettings, Config, VendorSettings
from agent.core.allocation.container_edit_checks import UnusableEdits
from agent.core.errors import (
    AgentError,
    AllocationError,
    ClosedDevice,
    CordonedDevice,
    GivenTwice,
    InOtherMode,
    InsufficientMemory,
    InsufficientRoom,
    InsufficientShares,
    InvalidRequest,
    LimitsUnread,
    NotAllocated,
    NotPromised,
    NotServable,
    OutdatedDevice,
    PromisedElsewhere,
    PromisedMoreCards,
    RetiredResource,
    SamplingEnded,
    StartRefused,
    StillHeld,
    UnhealthyDevice,
    UnknownDevice,
    UnknownResource,
    VendorAbsent,
    VendorCrashed,
    VendorError,
    VendorTimeout,
)
from agent.daemon.agent_locks import AgentLocks
from agent.daemon.vendor_plugins import VendorPlugin
from agent.doctor import (
    agent_processes,
    cdi_setup,
    checks,
    host_parts,
    library_files,
    node_object,
    refused_pods,
    vendor_libraries,
)
from agent.doctor import state_directory as state
from agent.doctor.checks import Check, examined
from agent.doctor.container_runtime import DEFAULTS, Runtime, Unreadable, runtimes
from agent.doctor.library_files import machine_of
from agent.doctor.socket_listeners import listener
from agent.doctor.surroundings import Configuration, Surroundings
from agent.host.file_locks import holders
from agent.isolation.vendor_process import BackendFailure, CallRefused
from agent.kubelet.rpc import as_status
from agent.scheduler_api.findings import Finding, Severity
from agent.scheduler_api.node_checks import Observed
from agent.state.state_directory_lock import StateDirectoryLock
from agent.testing.simkubelet.grpc_errors import RpcError
from agent.vendor_api.agent import ContainerEdits, Fault, Host, HostPart, ResourceRule, Signs, State, Vendor

from .patient import short_directory
from .surveyed import CARD, GPU, NOWHERE, Devices, around, vendor


class Connecting(socket.socket):
    """A socket whose calls a test can refuse."""


def named(findings: list[Finding]) -> list[tuple[str, Severity]]:
    return [(it.kind, it.severity) for it in findings]


# Checks as a whole


def test_a_check_that_breaks_is_named_and_keeps_no_other_from_its_word(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(_: Surroundings) -> list[Finding]:
        raise RuntimeError("no such thing")

    silent = Check("silent", lambda _: [])
    monkeypatch.setattr(checks, "CHECKS", (Check("broken", broken), silent, checks.CHECKS[0]))

    found = list(examined(around()))

    assert [(it.check, it.severity) for it in found] == [
        ("broken", Severity.NOT_MADE),
        ("silent", Severity.NOT_MADE),
        ("config", Severity.OK),
    ]
    assert "RuntimeError: no such thing" in found[0].what


def test_what_follows_from_a_config_that_can_not_be_used_is_not_checked_and_says_so_in_its_place() -> None:
    broken = Configuration(Config(NOWHERE), error="f.yaml:3: unknown key")
    told = {
        "config": {"error": f"{broken.error}; nothing is served"},
        "troubles": [f"config: {broken.error}"],
    }
    wide = replace(around(told=told), configuration=broken)

    found = list(examined(wide))

    assert [it.check for it in found if broken.error in it.what] == ["config"]
    pointing = {it.check for it in found if "see check config" in it.what}
    assert pointing == {it.name for it in checks.CHECKS if it.by_config} | {"agent"}
    assert len(pointing) > 5


# Vendors


@pytest.mark.parametrize(
    ("reason", "ailment"),
    [
        ("driver-not-loaded: load it", "driver-not-loaded"),
        ("driver-library-mismatch: reload", "driver-mismatch"),
        ("no-permission: allow", "driver-denied"),
        ("killed by SIGSEGV", "driver-failing"),
        ("did not list its devices within 30 s", "driver-failing"),
    ],
)
def test_a_driver_s_trouble_stops_unless_the_vendor_is_auto_and_another_serves(
    reason: str, ailment: str
) -> None:
    alone = around(vendor(), found={"nvidia": Observed(why=reason)})
    beside = replace(alone, vendors={**alone.vendors, "acme": Observed((CARD,))})
    wanted = Configuration(Config(vendors={"nvidia": VendorSettings(enabled=True)}), plugins=(vendor(),))

    assert named(list(vendor_libraries.drivers(alone))) == [(ailment, Severity.STOPS)]
    assert named(list(vendor_libraries.drivers(beside)))[0] == (ailment, Severity.WARNS)
    assert (
        named(list(vendor_libraries.drivers(replace(beside, configuration=wanted))))[0][1] is Severity.STOPS
    )


def test_a_vendor_that_is_auto_and_has_no_library_is_no_fault_where_another_serves() -> None:
    found: dict[str, Devices] = {"nvidia": Observed(why="library-not-found: none"), "acme": Observed((CARD,))}

    told = list(vendor_libraries.libraries(around(vendor(), vendor("acme"), found=found)))

    assert {it.severity for it in told} == {Severity.OK}


@pytest.mark.parametrize(
    ("head", "machine"),
    [
        (b"\x7fELF\x02\x01" + bytes(12) + b"\x3e\x00", "x86_64"),
        (b"\x7fELF\x02\x01" + bytes(12) + b"\xb7\x00", "aarch64"),
        (b"\x7fELF\x02\x02" + bytes(12) + b"\x00\x16", "s390x"),
        (b"\x7fELF\x02\x01" + bytes(12) + b"\xff\x7f", "machine 32767"),
        (b"\x7fELF", "no ELF file"),
        (b"", "no ELF file"),
        (b"INPUT(/usr/lib/libnvidia-ml.so)", "no ELF file"),
    ],
)
def test_a_library_s_machine_is_read_from_its_head(head: bytes, machine: str, tmp_path: Path) -> None:
    (tmp_path / "lib").write_bytes(head)

    assert machine_of(tmp_path / "lib") == machine


def test_a_bare_name_is_looked_for_where_the_loader_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", f":{tmp_path}")
    (tmp_path / "libxpu-nowhere.so.1").symlink_to("libxpu-nowhere.so.1.2")

    (found,) = library_files.defects(["libxpu-nowhere.so.1"])

    assert found == (f"{tmp_path}/libxpu-nowhere.so.1", "dangling", f"{tmp_path}/libxpu-nowhere.so.1.2")


def test_an_empty_file_is_no_library_of_another_machine(tmp_path: Path) -> None:
    (tmp_path / "lib.so").touch()
    made = Vendor(
        "nvidia", "a:B", GPU, lambda *_: ContainerEdits(), host=Host(libraries=lambda: [f"{tmp_path}/lib.so"])
    )
    found: dict[str, Devices] = {"nvidia": Observed(why="library-unusable: file too short")}

    told = list(vendor_libraries.libraries(around(VendorPlugin("nvidia", "here", "1", made), found=found)))

    assert named(told) == [("library-unusable", Severity.STOPS)]
    assert told[0].what == f"nvidia: {tmp_path}/lib.so is no ELF file"


def test_a_library_that_is_there_and_of_no_use_only_warns_where_another_vendor_serves() -> None:
    found: dict[str, Devices] = {"nvidia": Observed(why="library-unusable: half"), "acme": Observed((CARD,))}

    beside = around(vendor(), vendor("acme"), found=found)

    assert ("library-unusable", Severity.WARNS) in named(list(vendor_libraries.libraries(beside)))
    assert [it.what for it in vendor_libraries.drivers(beside)] == ["acme: 1 devices"]


def test_cards_known_without_their_library_are_neither_found_nor_sick() -> None:
    blind = replace(CARD, fault=Fault("no-library", "nothing watches it", state=State.UNKNOWN))
    wide = around(vendor("metax"), found={"metax": Observed((blind,))})

    (told,) = vendor_libraries.libraries(wide)

    assert (told.kind, told.severity) == ("library-bypassed", Severity.STOPS)
    assert told.what == "metax: 1 cards: nothing watches it"
    assert "mount the host's library directory" in told.remedy
    assert "vendors.metax.libraries" in told.remedy
    assert named(list(vendor_libraries.drivers(wide))) == [("", Severity.OK)]


def test_a_library_that_is_not_there_at_all_is_no_defect(tmp_path: Path) -> None:
    assert list(library_files.defects([f"{tmp_path}/lib.so", "libxpu-nowhere.so.1"])) == []
    assert library_files.existing_paths([f"{tmp_path}/lib.so"]) == ()


# What cards are served with


def needing(part: HostPart, sysfs: Path = Path("/nonexistent")) -> VendorPlugin:
    plugin = vendor("acme")
    assert plugin.vendor is not None
    host = replace(plugin.vendor.host, parts=(part,), signs=Signs(pci=("0xacac",), sysfs=str(sysfs)))
    return structs.replace(plugin, vendor=replace(plugin.vendor, host=host))


RUNTIME = HostPart("acme's runtime", ("/usr/bin/acme",), "no card is seen", "install it", on_host=True)


def test_what_lies_on_the_host_is_looked_for_below_where_its_root_is_mounted(tmp_path: Path) -> None:
    wide = around(needing(RUNTIME), root=tmp_path)
    missing = list(host_parts.parts(wide))
    (tmp_path / "usr/bin").mkdir(parents=True)
    (tmp_path / "usr/bin/acme").symlink_to("/nowhere")

    assert named(missing) == [("part-missing", Severity.STOPS)]
    assert missing[0].remedy == "install it"
    assert [it.what for it in host_parts.parts(wide)] == ["acme: acme's runtime is there (/usr/bin/acme)"]


def test_in_a_pod_nobody_says_that_the_host_lacks_what_a_pod_does_not_see(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    plugin = needing(RUNTIME)

    (unseen,) = host_parts.parts(around(plugin))

    assert unseen.severity is Severity.NOT_MADE
    assert "--host-root" in unseen.what
    assert named(list(host_parts.parts(around(plugin, root=tmp_path)))) == [("part-missing", Severity.STOPS)]


def test_a_card_on_the_bus_needs_its_driver_also_where_nobody_knows_the_card_yet(tmp_path: Path) -> None:
    driver = HostPart("acme's driver", (f"{tmp_path}/module/acme",), "no card works", "modprobe acme")
    away: dict[str, Devices] = {"acme": Observed(why="library-not-found: none"), "nvidia": Observed((CARD,))}
    wide = around(needing(driver, tmp_path), vendor(), found=away)
    elsewhere = list(host_parts.parts(wide))
    (tmp_path / "bus/pci/devices/0000:3a:00.0").mkdir(parents=True)
    (tmp_path / "bus/pci/devices/0000:3a:00.0/vendor").write_text("0xacac\n")

    assert named(elsewhere) == [("", Severity.OK)]
    # The vendor is `auto`, and another one serves.
    assert named(list(host_parts.parts(wide))) == [("part-missing", Severity.WARNS)]


def test_what_only_some_containers_need_warns_and_a_program_may_be_on_the_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool = HostPart("acme-smi", ("acme-smi",), "slices are not made", "install it", needed=False)
    wide = around(needing(tool))
    missing = named(list(host_parts.parts(wide)))
    (tmp_path / "acme-smi").touch(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))

    assert missing == [("part-lacking", Severity.WARNS)]
    assert named(list(host_parts.parts(wide))) == [("", Severity.OK)]


# Sockets and locks


@pytest.mark.parametrize("check", [it.name for it in checks.CHECKS])
def test_no_check_asks_a_socket_anything(check: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """All was asked before, each with its patience; a check that asks again waits for nobody's."""

    def connect(*_: object) -> None:
        raise AssertionError(f"{check} connects")

    (it,) = (it for it in checks.CHECKS if it.name == check)
    with short_directory() as root, socket.socket(socket.AF_UNIX) as bound:
        bound.bind(f"{root}/kubelet.sock")
        bound.listen()
        (root / "agent.sock").symlink_to(f"{root}/kubelet.sock")
        (root / "nvidia.sock").symlink_to(f"{root}/kubelet.sock")
        monkeypatch.setattr(Connecting, "connect", connect)
        monkeypatch.setattr(socket, "socket", Connecting)

        settings = replace(NOWHERE, kubelet_dir=root, state_dir=root)
        list(it.make(around(vendor(), config=Config(settings))))


def test_a_listener_is_told_with_its_process_also_behind_a_long_path() -> None:
    with short_directory() as root, socket.socket(socket.AF_UNIX) as bound:
        bound.bind(f"{root}/a")
        bound.listen()
        deep = root / ("d" * 120)
        deep.mkdir()
        (deep / "s.sock").symlink_to(root / "a")

        found = listener(deep / "s.sock")

    assert (found.state, found.pid) == ("listens", os.getpid())
    assert str(found).endswith(f"(pid {os.getpid()})")


def test_a_link_to_a_socket_that_is_gone_says_where_it_leads(tmp_path: Path) -> None:
    (tmp_path / "s").symlink_to("/nowhere/kubelet.sock")

    found = listener(tmp_path / "s")

    assert found.state == "missing"
    assert "/nowhere/kubelet.sock" in found.found


def test_of_a_lock_s_lines_only_who_holds_this_file_counts(tmp_path: Path) -> None:
    place = tmp_path / "agent.lock"
    place.touch()
    found = place.stat()
    here = f"{os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}:{found.st_ino}"
    lines = (
        f"1: FLOCK  ADVISORY  WRITE 4711 {here} 0 EOF",
        f"1: -> FLOCK  ADVISORY  WRITE 4712 {here} 0 EOF",
        f"2: POSIX  ADVISORY  WRITE 4713 {here} 0 EOF",
        f"3: FLOCK  ADVISORY  WRITE 4714 {here}1 0 EOF",
        f"4: FLOCK  ADVISORY  WRITE -1 {here} 0 EOF",
        f"5: FLOCK  ADVISORY  WRITE 4715 ff:fffff:{found.st_ino} 0 EOF",
        "nonsense",
    )
    (tmp_path / "locks").write_text("\n".join(lines))

    assert holders(place, tmp_path / "locks") == (4711, 0)


@pytest.mark.parametrize(("mine", "ailment"), [(True, "lock-without-service"), (False, "agent-elsewhere")])
def test_who_holds_the_kubelets_directory_is_told_from_who_holds_the_state(
    tmp_path: Path, mine: bool, ailment: str
) -> None:
    (tmp_path / "dp").mkdir()
    settings = AgentSettings(kubelet_dir=tmp_path / "dp", state_dir=tmp_path / "state")
    state = settings.state_dir if mine else tmp_path / "another"
    with AgentLocks(settings.kubelet_dir, StateDirectoryLock(state / "agent.lock")) as lock:
        assert lock.take() == ""

        (told,) = agent_processes.second(around(config=Config(settings)))

    assert told.kind == ailment
    assert f"(pid {os.getpid()}) holds {tmp_path}" in told.what


# The state


def test_a_file_above_the_state_directory_is_in_its_place(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    config = Config(AgentSettings(state_dir=tmp_path / "file/state"))

    (told,) = state.state(around(config=config))

    assert (told.kind, told.what) == ("state-directory-wrong", f"{tmp_path}/file is no directory")
    assert f"remove {tmp_path}/file, or" in told.remedy


# The container runtime


@pytest.mark.parametrize(
    ("text", "cdi_is", "directories"),
    [
        ("version = 3", "yes", DEFAULTS),
        ("version = 2", "unsaid", DEFAULTS),
        ("", "unsaid", DEFAULTS),
        ('version = 2\n[plugins."io.containerd.grpc.v1.cri"]\nenable_cdi = true', "yes", DEFAULTS),
        ('version = 3\n[plugins."io.containerd.cri.v1.runtime"]\nenable_cdi = false', "no", DEFAULTS),
        (
            'version = 3\n[plugins."io.containerd.cri.v1.runtime"]\ncdi_spec_dirs = ["/a", 1]',
            "yes",
            ("/a",),
        ),
        ('version = 3\nplugins = "odd"', "yes", DEFAULTS),
    ],
)
def test_containerd_s_file_says_whether_and_where_it_reads_specs(
    text: str, cdi_is: str, directories: tuple[str, ...], tmp_path: Path
) -> None:
    path = tmp_path / "etc/containerd/config.toml"
    path.parent.mkdir(parents=True)
    path.write_text(text)

    (found,) = runtimes(tmp_path)

    assert (found.name, found.source, found.cdi) == ("containerd", str(path), cdi_is)
    assert found.directories == directories


def test_what_containerd_s_file_imports_counts(tmp_path: Path) -> None:
    place = tmp_path / "etc/containerd"
    (place / "conf.d").mkdir(parents=True)
    (place / "config.toml").write_text('version = 3\nimports = ["/etc/containerd/conf.d/*.toml"]')
    part = '[plugins."io.containerd.cri.v1.runtime"]\ncdi_spec_dirs = ["/b"]'
    (place / "conf.d/50.toml").write_text(part)

    (found,) = runtimes(tmp_path)

    assert found.directories == ("/b",)


def test_the_last_of_cri_o_s_files_counts(tmp_path: Path) -> None:
    place = tmp_path / "etc/crio"
    (place / "crio.conf.d").mkdir(parents=True)
    (place / "crio.conf").write_text('[crio.runtime]\ncdi_spec_dirs = ["/a"]')
    (place / "crio.conf.d/10.conf").write_text('[crio.runtime]\ncdi_spec_dirs = ["/b"]')

    (found,) = runtimes(tmp_path)

    assert found == Runtime("CRI-O", str(place / "crio.conf.d/10.conf"), ("/b",))


def test_a_runtime_s_file_that_is_no_toml_is_named(tmp_path: Path) -> None:
    path = tmp_path / "etc/containerd/config.toml"
    path.parent.mkdir(parents=True)
    path.write_text("=")

    with pytest.raises(Unreadable, match=r"config\.toml: cannot be read"):
        runtimes(tmp_path)
    *_, found = cdi_setup.cdi(around(vendor(by_cdi=True), root=tmp_path))
    assert found.severity is Severity.NOT_MADE


@pytest.fixture
def by_default(monkeypatch: pytest.MonkeyPatch) -> Config:
    """The agent's default directory of CDI specs, of which it is not seen here whether it can be written."""
    monkeypatch.setattr(cdi_setup, "why_closed", lambda _: "")
    return Config()


@pytest.mark.parametrize(
    ("version", "severity"),
    [("containerd://1.7.20", Severity.STOPS), ("containerd://2.1.0", Severity.OK), ("", Severity.NOT_MADE)],
)
def test_an_old_file_that_does_not_say_cdi_is_judged_by_the_runtime_s_version(
    version: str, severity: Severity, tmp_path: Path, by_default: Config
) -> None:
    path = tmp_path / "etc/containerd/config.toml"
    path.parent.mkdir(parents=True)
    path.write_text("version = 2")
    seen = {"status": {"nodeInfo": {"containerRuntimeVersion": version}}}

    (found,) = cdi_setup.cdi(around(vendor(by_cdi=True), config=by_default, root=tmp_path, node=seen))

    assert found.severity is severity


@pytest.mark.parametrize("directory", ["/var/run/cdi", "/run/cdi", "/etc/cdi/"])
def test_run_and_var_run_are_one_directory(directory: str, tmp_path: Path, by_default: Config) -> None:
    path = tmp_path / "etc/containerd/config.toml"
    path.parent.mkdir(parents=True)
    path.write_text("version = 3")
    config = replace(by_default, agent=AgentSettings(cdi_dir=Path(directory)))

    (found,) = cdi_setup.cdi(around(vendor(by_cdi=True), config=config, root=tmp_path))

    assert found.severity is Severity.OK


# State


def test_state_that_belongs_to_somebody_else_is_open_to_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "state"
    place.mkdir(mode=0o700)
    if os.geteuid():
        monkeypatch.setattr(os, "geteuid", lambda: 4711)
    else:
        os.chown(place, 4711, -1)

    (found,) = state.state(around(config=Config(AgentSettings(state_dir=place))))

    assert found.kind == "state-open"
    assert f"{place} belongs to uid" in found.what


def test_a_disk_without_a_file_left_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = os.statvfs_result((4096, 4096, 1 << 20, 1 << 19, 1 << 19, 1000, 0, 0, 0, 255))
    monkeypatch.setattr(os, "statvfs", lambda path: seen)

    (found,) = state.disk(around(config=Config(AgentSettings(state_dir=tmp_path))))

    assert found.kind == "state-full"
    assert "inode" in found.what


# The Node


def test_our_resources_are_those_that_are_served_and_else_those_that_would_be() -> None:
    rules = (ResourceRule("nvidia.com/gpu.shared"),)
    config = Config(vendors={"nvidia": VendorSettings(resources=rules)})

    assert around(vendor(), config=config, told=resource(8)).names == {GPU}
    assert around(vendor(), config=config).names == {"nvidia.com/gpu.shared"}
    assert around(vendor()).names == {GPU}
    assert around(vendor(), found={"nvidia": Observed(why="no card")}).names == frozenset()


def resource(allocatable: int, **more: Any) -> dict[str, Any]:
    return {"resources": [{"name": GPU, "allocatable": allocatable, **more}], "standby": ""}


@pytest.mark.parametrize(
    ("ours", "theirs", "ailments"),
    [
        (8, {GPU: "8"}, [""]),
        (16000, {GPU: "16k"}, [""]),
        (8, {GPU: "0"}, ["allocatable-missing"]),
        (8, {}, ["allocatable-missing"]),
        (8, {GPU: "7"}, ["allocatable-differs"]),
        (0, {}, [""]),
        (8, {GPU: "nonsense"}, ["allocatable-differs"]),
    ],
)
def test_the_node_s_count_is_held_against_the_agent_s(
    ours: int, theirs: dict[str, str], ailments: list[str]
) -> None:
    seen = {"status": {"allocatable": theirs}}

    found = node_object.allocatable(around(told=resource(ours), node=seen))

    assert [it.kind for it in found] == ailments


def test_with_an_agent_that_stands_by_there_is_nothing_to_compare_the_node_with() -> None:
    (found,) = node_object.allocatable(
        around(told={**resource(8), "standby": "pid 4711"}, node={"status": {}})
    )

    assert found.severity is Severity.NOT_MADE


def test_a_resource_that_is_on_its_way_out_is_not_compared() -> None:
    seen: Mapping[str, Any] = {"status": {}}

    (found,) = node_object.allocatable(around(told=resource(8, retired=True), node=seen))

    assert found.severity is Severity.OK


# Pods


def pod(name: str = "a", *, phase: str = "Running", priority: str = "", **container: Any) -> dict[str, Any]:
    return {
        "metadata": {"namespace": "b", "name": name},
        "spec": {"containers": [{"name": "main", **container}], "priorityClassName": priority},
        "status": {"phase": phase},
    }


def env(value: Any, **more: Any) -> dict[str, Any]:
    return {"env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": value, **more}]}


LIMIT: dict[str, Any] = {"resources": {"limits": {GPU: "1"}}}
PRIVILEGED: dict[str, Any] = {"securityContext": {"privileged": True}}


@pytest.mark.parametrize(
    ("it", "ailments"),
    [
        (pod(**env("all")), ["pod-chooses-devices"]),
        (pod(**env("0"), **LIMIT), ["pod-chooses-devices"]),
        (pod(**env(None, valueFrom={"fieldRef": {}})), ["pod-chooses-devices"]),
        (pod(**env("all"), **LIMIT, **PRIVILEGED), ["pod-chooses-devices", "pod-privileged"]),
        (pod(**env("void")), []),
        (pod(**env("")), []),
        (pod(**env("none")), []),
        (pod(**LIMIT), []),
        (pod(**PRIVILEGED), []),
        (pod(**env("all"), phase="Succeeded"), []),
        (pod(**env("all"), priority="system-node-critical"), []),
        (pod(env="odd", resources=None, securityContext=[]), []),
        ({}, []),
    ],
)
def test_a_pod_goes_around_by_its_own_variable_or_privileged_with_a_limit(
    it: dict[str, Any], ailments: list[str]
) -> None:
    found = refused_pods.around(around(vendor(), its_pods=(it,)))

    assert [it.kind for it in found if it.kind] == ailments


def test_what_an_init_container_does_counts() -> None:
    it = pod()
    it["spec"]["initContainers"] = [{"name": "first", **env("all")}]

    (found,) = refused_pods.around(around(vendor(), its_pods=(it,)))

    assert "container first" in found.what


def test_of_many_pods_some_are_named_and_the_rest_is_counted() -> None:
    failed = {"phase": "Failed", "reason": "UnexpectedAdmissionError", "message": "m" * 5000}
    many = tuple({**pod(f"p{n}", **env("all")), "status": failed} for n in range(30))
    greedy = tuple(pod(f"p{n}", **env("all")) for n in range(30))

    stuck = list(refused_pods.refused(around(its_pods=many)))
    found = list(refused_pods.around(around(vendor(), its_pods=greedy)))

    assert len(stuck) == len(found) == refused_pods.MAX_SHOWN
    assert "20 more" in stuck[-1].what
    assert "20 more" in found[-1].what
    assert all(len(it.what) < 600 for it in stuck)


@pytest.mark.parametrize(("words", "advice"), refused_pods.ADVICE)
def test_what_the_kubelet_said_of_a_pod_decides_what_to_do(words: str, advice: str) -> None:
    said = {"reason": "UnexpectedAdmissionError", "message": f"Allocate failed due to {words} x"}

    (found,) = refused_pods.refused(around(its_pods=({**pod(), "status": said},)))

    assert found.remedy == f"{advice}; then kubectl -n b delete pod a"


#: Refusals, each with the beginning of its advice. A type that comes in two texts stands here twice.
REFUSALS: dict[AgentError, str] = {
    CordonedDevice("r", "x", "alice", ""): "uncordon the card",
    UnhealthyDevice("r", "x", "xid-79"): "see what the card has",
    UnknownDevice("r", "x"): "look for another plugin",
    StillHeld("r", "x", "ns/web"): "delete the pod that holds the device",
    GivenTwice("r", "x", "ns", "web"): "the next pod of its controller gets another card",
    InOtherMode("r", "x", "s", "ns/web"): "the next pod of its controller gets another card",
    PromisedElsewhere("r", ("x",), "y is held by ns/web"): "the scheduler chooses again",
    RetiredResource("r", ()): "ask for a resource of the current configuration",
    OutdatedDevice("r", "x"): "the next pod of its controller gets another card",
    ClosedDevice("r", "x", "slices of others lie on its card"): "see what the message waits for",
    NotPromised("r", "no pod is known", ""): "give the pod a schedulerName",
    PromisedMoreCards("r", "ns/web", 1, ("x", "y"), "less"): "ask for as many of the resource",
    UnknownResource("r"): "ask for a resource that the agent serves",
    InvalidRequest("r", "it names no device"): "change the pod's request as the message says",
    InvalidRequest("r", "maximum request size for shared resources is 1; found 2"): "ask for one",
    NotServable("r", "9g.90gb is held by no card"): "change the pod's request as the message says",
    InsufficientRoom("r", "half a card is asked for"): "ask for less, or wait until a card has as much room",
    InsufficientMemory("r", "insufficient memory", 5, "1", None): "ask for less memory",
    InsufficientShares("r", 5, ("x", 4)): "ask for fewer shares",
    UnusableEdits("acme", "env", 1, "a mapping"): "correct the vendor's plugin",
    VendorError("acme: its plugin fails to choose a card"): "see that the agent is ready",
    VendorAbsent("acme: there is no card"): "see that the agent is ready",
    VendorTimeout("acme", "prepare", 5.0): "see that the agent is ready",
    VendorCrashed("acme", "signal 9"): "see that the agent is ready",
    CallRefused("acme", "prepare", BackendFailure("failed", "OSError", "")): "see that the agent is ready",
}
#: Refused starts of containers: their pods were admitted.
AT_START = {NotAllocated, StartRefused, LimitsUnread}
#: A resource name as long as Kubernetes takes one: before "/" a DNS name, after that a label.
LONG_NAME = f"{'.'.join(['r' * 49] * 5)}.com/{'s' * 63}"


def on_pod(refusal: Exception) -> str:
    """The message that the kubelet writes on the pod whose Allocate is refused so."""
    status = as_status(refusal)
    return f"Allocate failed due to {RpcError(status.status, status.message or '')}, which is unexpected"


def kinds_of(kind: type[Exception]) -> Iterator[type[Exception]]:
    """The type with all its subtypes in the agent's own modules, as far as they are loaded."""
    if kind.__module__.startswith("agent."):
        yield kind
    for below in kind.__subclasses__():
        yield from kinds_of(below)


@pytest.mark.parametrize(("refusal", "advice"), REFUSALS.items(), ids=lambda it: type(it).__name__)
def test_each_refusal_of_the_agent_has_its_own_advice_and_costs_no_other_pod(
    refusal: AgentError, advice: str
) -> None:
    said = {"reason": "UnexpectedAdmissionError", "message": on_pod(refusal)}

    (found,) = refused_pods.refused(around(its_pods=({**pod(), "status": said},)))

    assert found.remedy.startswith(advice)


def test_every_refusal_that_an_allocate_can_give_is_in_that_table() -> None:
    for room in (core, daemon, isolation, kubelet):
        for module in walk_packages(room.__path__, f"{room.__name__}."):
            import_module(module.name)

    # A sample of use is no part of an Allocate.
    known = {*kinds_of(AllocationError), *kinds_of(VendorError)} - {AllocationError, SamplingEnded}

    assert {type(it) for it in REFUSALS} | AT_START == known


@pytest.mark.parametrize(
    ("failure", "advice"),
    [
        (TimeoutError("not done within 10 s"), "look in the agent's log for what took so long"),
        (OSError("no space left on device"), "look in the agent's log for the error"),
    ],
)
def test_a_failure_of_an_allocate_that_is_no_refusal_leads_to_the_log(
    failure: Exception, advice: str
) -> None:
    said = {"reason": "UnexpectedAdmissionError", "message": on_pod(failure)}

    (found,) = refused_pods.refused(around(its_pods=({**pod(), "status": said},)))

    assert found.remedy.startswith(advice)


def test_words_that_are_too_far_behind_to_be_shown_decide_what_to_do() -> None:
    said = {"reason": "UnexpectedAdmissionError", "message": on_pod(RetiredResource(LONG_NAME, ()))}

    (found,) = refused_pods.refused(around(its_pods=({**pod(), "status": said},)))

    assert "the config no longer has" not in found.what
    assert found.remedy.startswith("ask for a resource of the current configuration")
