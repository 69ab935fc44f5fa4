"""The use of containers with the same labels, and of all containers of a pod, as one series."""

from __future__ import annotations

from msgspec import structs

from agent.core.usage.usage_report import ContainerUse
from agent.core.usage.usage_series_rules import by_pod, distinct

MAIN = ContainerUse(
    "a",
    "infer-0",
    "uid",
    "main",
    "acme",
    "GPU-a",
    processes=1,
    memory=5,
    utilization=0.75,
    memory_limit=8,
    compute_limit=0.75,
    active_at=100.0,
)
SIDECAR = structs.replace(MAIN, container="sidecar", active_at=90.0)


def test_a_pod_has_what_its_containers_have_together_and_never_more_than_the_card() -> None:
    (pod,) = by_pod([MAIN, SIDECAR])
    assert (pod.container, pod.processes, pod.memory, pod.memory_limit) == ("", 2, 10, 16)
    assert (pod.utilization, pod.compute_limit, pod.active_at) == (1.0, 1.0, 100.0)


def test_what_is_not_known_of_one_container_is_not_known_of_the_pod() -> None:
    unknown = ContainerUse("a", "infer-0", "uid", "sidecar", "acme", "GPU-a", processes=1)
    for containers in ((MAIN, unknown), (unknown, MAIN)):
        (pod,) = by_pod(containers)
        assert pod == structs.replace(unknown, container="", processes=2)


def test_containers_with_other_labels_stay_apart() -> None:
    others = [structs.replace(MAIN, **{name: "x"}) for name in ("namespace", "pod", "uuid", "resource")]
    assert [*distinct([MAIN, SIDECAR, *others])] == [MAIN, SIDECAR, *others]
    assert len(by_pod([MAIN, SIDECAR, *others])) == 5
