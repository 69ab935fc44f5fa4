"""What a pod's own limits and annotation ask for of MetaX's cards."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from agent.daemon.scheduler_parts import with_named_parts
from agent.scheduler_api import Candidate, PodContainer
from agent.schedulers.hami.metax_claims import APP_CLASS
from agent.schedulers.hami.metax_claims import limits as of_limits
from agent.vendor_api.agent import Request, RequestRefused
from agent.vendors.metax.plugin import register_backend
from agent.vendors.metax.shared.qos_policy import ANNOTATION
from agent.vendors.metax.shared.slice_request import slices

SGPU = "metax-tech.com/sgpu"
CORE, MEMORY, RATIO, SHARED = (
    f"koordinator.sh/{it}" for it in ("gpu-core", "gpu-memory", "gpu-memory-ratio", "gpu.shared")
)
VCORE, VMEMORY = "metax-tech.com/vcore", "metax-tech.com/vmemory"
GIB = 1 << 30


def asked(limits: Mapping[str, int], **annotations: str) -> Mapping[str, str]:
    """The parameters of the claim of a container with these limits, beside those of its policy."""
    (claim,) = of_limits(pod(limits, **annotations), SGPU, {"GPU-0": 0})
    assert claim.devices == ()
    return claim.parameters


def pod(*limits: Mapping[str, int], **annotations: str) -> Candidate:
    containers = tuple(PodContainer(f"c{n}", its) for n, its in enumerate(limits))
    return Candidate("uid", "default", "web", containers, annotations)


PLAIN = {"qos": "best-effort"}


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        pytest.param(
            {SHARED: 1, CORE: 10, MEMORY: GIB}, {"core": "10", "memory": str(GIB)}, id="document 001"
        ),
        pytest.param({CORE: 10, MEMORY: GIB}, {"core": "10", "memory": str(GIB)}, id="without gpu.shared"),
        pytest.param({CORE: 25, RATIO: 25}, {"core": "25", "ratio": "25"}, id="a ratio"),
        pytest.param({"koordinator.sh/gpu": 30}, {"core": "30", "ratio": "30"}, id="both in one"),
        pytest.param({MEMORY: GIB}, {"memory": str(GIB)}, id="memory alone"),
        pytest.param({CORE: 100, RATIO: 100}, {"core": "100"}, id="a whole card"),
        pytest.param({VCORE: 30, VMEMORY: 4}, {"core": "30", "memory": str(4 * GIB)}, id="HAMi's words"),
        pytest.param(
            {VCORE: 30, VMEMORY: 4 * GIB}, {"core": "30", "memory": str(4 * GIB)}, id="HAMi's in bytes"
        ),
        pytest.param({VMEMORY: 4}, {"core": "100", "memory": str(4 * GIB)}, id="HAMi's memory alone"),
        pytest.param({VCORE: 30}, {"core": "30", "ratio": "100"}, id="HAMi's cores alone"),
        pytest.param({}, {}, id="nothing"),
        pytest.param({SHARED: 1}, {}, id="a count of cards alone"),
        pytest.param({"nvidia.com/gpu": 1}, {}, id="another vendor's card"),
        pytest.param({"koordinator.sh/rdma": 100}, {}, id="another device of Koordinator's"),
    ],
)
def test_what_a_container_asks_for_is_read_from_its_own_limits(
    limits: Mapping[str, int], expected: Mapping[str, str]
) -> None:
    assert asked({SGPU: 1, **limits}) == {**expected, **PLAIN}


def test_each_container_is_asked_for_its_own() -> None:
    its = pod({SGPU: 1, CORE: 10, MEMORY: GIB}, {}, {SGPU: 1}, {CORE: 50, MEMORY: GIB})

    found = {it.container: it.parameters for it in of_limits(its, SGPU, {})}

    assert found == {"c0": {"core": "10", "memory": str(GIB), **PLAIN}, "c2": PLAIN}


@pytest.mark.parametrize(
    ("annotations", "expected"),
    [
        ({ANNOTATION: "fixed-share"}, {"qos": "fixed-share"}),
        ({APP_CLASS: "online"}, {"any-qos": "true"}),
        ({}, PLAIN),
    ],
)
@pytest.mark.parametrize("amounts", [{}, {CORE: 10}], ids=["no amounts", "amounts"])
def test_its_policy_is_that_of_the_pod(
    annotations: Mapping[str, str], expected: Mapping[str, str], amounts: Mapping[str, int]
) -> None:
    found = asked({SGPU: 1, **amounts}, **annotations)

    assert {key: it for key, it in found.items() if key.endswith("qos")} == expected


@pytest.mark.parametrize(
    ("limits", "annotations", "says"),
    [
        (
            {SGPU: 1, CORE: 10},
            {ANNOTATION: "gold"},
            "'gold'; there are best-effort, fixed-share, burst-share",
        ),
        ({SGPU: 1}, {ANNOTATION: "gold"}, "'gold'; there are best-effort, fixed-share, burst-share"),
        (
            {SGPU: 1, SHARED: 2, CORE: 20},
            {},
            "asks for 1 of metax-tech.com/sgpu, and by its other limits for parts of 2 cards",
        ),
        ({SGPU: 2, SHARED: 2, CORE: 20, MEMORY: GIB}, {}, "the limit is one partial sGPU per container"),
    ],
)
def test_what_can_not_be_had_is_refused(
    limits: Mapping[str, int], annotations: Mapping[str, str], says: str
) -> None:
    ids = tuple(f"{n}" for n in range(limits[SGPU]))
    request = Request("a", SGPU, ids, asked(limits, **annotations))

    with pytest.raises(RequestRefused, match=says):
        slices(request, {f"GPU-{it}": 64 * GIB for it in ids})


def test_they_count_in_mode_sgpu_alone() -> None:
    sliced = with_named_parts(register_backend({"mode": "sgpu"})).pod_limits
    assert sliced is not None
    assert sliced.name == "metax-limits"
    assert with_named_parts(register_backend({})).pod_limits is None
    assert register_backend({}).offers.cards_with_room is None
