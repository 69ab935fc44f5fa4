"""The container of a process by its /proc/PID/cgroup."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.core.usage.cgroup_paths import HOST, UNKNOWN, CgroupOwner, Kind, owner

UID = "0f0e1d2c-3b4a-5968-7786-95a4b3c2d1e0"
WITH_LOW_LINES = UID.replace("-", "_")
OUTER = "ffffffff-3b4a-5968-7786-95a4b3c2d1e0"
HASH = "0123456789abcdef0123456789abcdef"
ID = "ab" * 32
OTHER_ID = "cd" * 32
POD_SLICE = f"kubepods-burstable-pod{WITH_LOW_LINES}.slice"

IN_CONTAINER = CgroupOwner(Kind.POD, UID, ID)
IN_POD = CgroupOwner(Kind.POD, UID)

FORMS = {
    "version 2, systemd, containerd": (
        f"0::/kubepods.slice/kubepods-burstable.slice/{POD_SLICE}/cri-containerd-{ID}.scope",
        IN_CONTAINER,
    ),
    "version 2, systemd, guaranteed": (
        f"0::/kubepods.slice/kubepods-pod{WITH_LOW_LINES}.slice/cri-containerd-{ID}.scope",
        IN_CONTAINER,
    ),
    "version 2, cgroupfs": (f"0::/kubepods/besteffort/pod{UID}/{ID}", IN_CONTAINER),
    "version 2, CRI-O with a cgroup of the container's own below": (
        f"0::/kubepods.slice/kubepods-pod{WITH_LOW_LINES}.slice/crio-{ID}.scope/container",
        IN_CONTAINER,
    ),
    "version 2, docker": (
        f"0::/kubepods.slice/kubepods-besteffort.slice/{POD_SLICE}/docker-{ID}.scope",
        IN_CONTAINER,
    ),
    "version 1, cgroupfs": (
        f"12:cpuset:/\n11:memory:/kubepods/besteffort/pod{UID}/{ID}\n4:pids:/kubepods/besteffort/pod{UID}/{ID}",
        IN_CONTAINER,
    ),
    "version 1, where the container was put deeper for one controller": (
        f"13:devices:/kubepods/pod{OUTER}/{OTHER_ID}\n11:cpu,memory:/kubepods/pod{UID}/{ID}",
        IN_CONTAINER,
    ),
    "version 1 and 2 together": (
        f"11:memory:/kubepods/besteffort/pod{UID}/{ID}\n1:name=systemd:/\n0::/system.slice/containerd.service",
        IN_CONTAINER,
    ),
    "containerd without the systemd driver beside a kubelet with it": (
        f"0::/system.slice/containerd.service/{POD_SLICE}:cri-containerd:{ID}",
        IN_CONTAINER,
    ),
    "kind: the kubelet has a root of its own": (
        f"0::/system.slice/kubelet-kubepods.slice/kubelet-{POD_SLICE}/cri-containerd-{ID}.scope",
        IN_CONTAINER,
    ),
    "kind: a node in a container": (
        f"0::/docker/{OTHER_ID}/kubelet.slice/kubelet-{POD_SLICE}/cri-containerd-{ID}.scope",
        IN_CONTAINER,
    ),
    "a node in a pod: the last pod counts": (
        f"0::/kubepods/pod{OUTER}/{OTHER_ID}/kubelet/kubepods/burstable/pod{UID}/{ID}",
        IN_CONTAINER,
    ),
    "a container that a container of the pod started": (
        f"0::/kubepods/burstable/pod{UID}/{ID}/docker/{OTHER_ID}",
        IN_CONTAINER,
    ),
    "seen from another cgroup namespace": (
        f"0::/../../kubepods.slice/kubepods-burstable.slice/{POD_SLICE}/cri-containerd-{ID}.scope",
        IN_CONTAINER,
    ),
    "seen from another pod's cgroup namespace": (
        f"0::/../../{POD_SLICE}/cri-containerd-{ID}.scope",
        IN_CONTAINER,
    ),
    "a static pod": (f"0::/kubepods/pod{HASH}/{ID}", CgroupOwner(Kind.POD, HASH, ID)),
    "a static pod, systemd": (
        f"0::/kubepods.slice/kubepods-pod{HASH}.slice/cri-containerd-{ID}.scope",
        CgroupOwner(Kind.POD, HASH, ID),
    ),
    "a sandbox that shows only the pod": (f"0::/kubepods/burstable/pod{UID}", IN_POD),
    "a process whose container was removed": (
        f"0::/kubepods/burstable/pod{UID}/{ID} (deleted)",
        IN_CONTAINER,
    ),
    "CRI-O's monitor of a container": (
        f"0::/kubepods.slice/kubepods-pod{WITH_LOW_LINES}.slice/crio-conmon-{ID}.scope",
        HOST,
    ),
    "a user's session": ("0::/user.slice/user-1000.slice/session-3.scope", HOST),
    "a container outside of pods": (f"0::/system.slice/docker-{ID}.scope", HOST),
    "a service seen from another cgroup namespace": ("0::/../../system.slice/nvidia-mps.service", HOST),
    "the cgroup namespace of the reader itself": ("0::/", UNKNOWN),
    "version 1 in the cgroup namespace of the reader": ("11:memory:/\n4:pids:/", UNKNOWN),
    "a cgroup above the reader's": ("0::/../..", HOST),
    "a container beside the reader's": (f"0::/../cri-containerd-{ID}.scope", UNKNOWN),
    "nothing": ("", UNKNOWN),
    "no line of a cgroup file": ("garbage\n::\nkubepods", UNKNOWN),
}


@pytest.mark.parametrize(("text", "expected"), FORMS.values(), ids=FORMS)
def test_each_form_of_a_cgroup_path_names_the_owner(text: str, expected: CgroupOwner) -> None:
    assert owner(text) == expected
    assert owner(text + "\n") == expected


@pytest.mark.parametrize(
    "part",
    [f"pod{UID[:-1]}", f"pod{UID}0", f"podcast{UID}", f"pod{HASH}0", f"pod{UID}.slice.d", "pod", f"x{UID}"],
)
def test_a_name_that_only_resembles_a_pod_is_none(part: str) -> None:
    assert owner(f"0::/kubepods/{part}/{ID}") == HOST


def test_a_name_that_only_resembles_a_container_is_none() -> None:
    assert owner(f"0::/kubepods/pod{UID}/{ID}0") == IN_POD
    assert owner(f"0::/kubepods/pod{UID}/{ID[:-1]}") == IN_POD


WORDS = ("0::", "/", ":", "..", f"pod{UID}", f"{ID}", "kubepods.slice", "crio-conmon-", "memory", "\n", "-")


@given(st.one_of(st.text(), st.lists(st.sampled_from(WORDS)).map("".join)))
def test_no_text_raises_an_error_and_only_a_pod_has_a_uid(text: str) -> None:
    found = owner(text)
    assert (found.kind is Kind.POD) == bool(found.uid)
    assert found.uid or not found.container
