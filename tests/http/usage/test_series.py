"""The series of use: what is known of cards and containers, no series for what is not, and few enough."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from core.usage import cards_in_use as account_of
from core.usage.cards_in_use import GIB
from msgspec import structs
from prometheus_client.parser import text_string_to_metric_families
from support.http_views import HOSTILE, VIEW
from support.used_views import (
    CARD,
    INFER,
    NOTEBOOK,
    NOW,
    REPORT,
    SHARED,
    WORKED,
    allocated,
    crowded,
    lines,
    listed,
    shared,
    used,
    with_report,
)

from agent.core.model import NodeSnapshot
from agent.core.publishing.agent_status import AgentStatus
from agent.core.usage.usage_report import SamplingStatus, Unattributed, VendorSample
from agent.http.metrics import metrics
from agent.http.usage.series import usage_page
from agent.scheduler_api import Claim
from agent.vendor_api import metric_families
from agent.vendor_api.agent import ContainerEdits, Request, Usage, Vendor

INFER_LABELS = 'namespace="a",pod="infer-0",container="main",uuid="GPU-a",resource="nvidia.com/gpu.shared"'
NOTEBOOK_LABELS = 'namespace="b",pod="nb-3",container="nb",uuid="GPU-a",resource="nvidia.com/gpu.shared"'


def of(status: AgentStatus, name: str) -> list[str]:
    """The lines of one metric."""
    return [line for line in lines(status) if line.startswith((f"{name}{{", f"{name} "))]


def values(status: AgentStatus, name: str, most: int = 20_000) -> dict[tuple[str, ...], float]:
    """The values of the labels of one metric, in their order, to the value of the series."""
    families = text_string_to_metric_families(usage_page(status, most).decode())
    samples = (sample for family in families for sample in family.samples if sample.name == name)
    return {tuple(it.labels.values()): it.value for it in samples}


def test_the_worked_sample_has_exactly_these_lines() -> None:
    found = lines(WORKED)

    for line in (
        'xpu_device_memory_bytes{vendor="nvidia",uuid="GPU-a",kind="total"} 85520809984',
        'xpu_device_memory_bytes{vendor="nvidia",uuid="GPU-a",kind="reserved"} 669515776',
        'xpu_device_memory_bytes{vendor="nvidia",uuid="GPU-a",kind="used"} 22548578304',
        f"xpu_container_memory_used_bytes{{{INFER_LABELS}}} 12884901888",
        f"xpu_container_memory_used_bytes{{{NOTEBOOK_LABELS}}} 8589934592",
        f"xpu_container_utilization_ratio{{{INFER_LABELS}}} 0.41",
        'xpu_unattributed_memory_bytes{uuid="GPU-a",kind="host"} 536870912',
        'xpu_unattributed_memory_bytes{uuid="GPU-a",kind="driver"} 536870912',
    ):
        assert line in found


def test_containers_and_what_is_unattributed_less_what_counts_twice_is_the_memory_in_use() -> None:
    over = structs.replace(CARD, unattributed={Unattributed.HOST: 1 << 30}, overcounted=0)
    used_memory = 12884901888 + 8589934592 + (1 << 30) - (1 << 20)
    over = structs.replace(over, usage=replace(over.usage, memory_used=used_memory), overcounted=1 << 20)
    for status in (WORKED, with_report(cards=(over,))):
        sums = {
            name: sum(values(status, name).values())
            for name in (
                "xpu_container_memory_used_bytes",
                "xpu_unattributed_memory_bytes",
                "xpu_overcounted_memory_bytes",
            )
        }
        containers, unattributed, overcounted = sums.values()

        used_bytes = values(status, "xpu_device_memory_bytes")["nvidia", "GPU-a", "used"]
        assert containers + unattributed - overcounted == used_bytes


def on_each(status: AgentStatus, name: str, place: int = 0) -> Counter[str]:
    """Uuid to the sum of a metric; `place`: that of the uuid among the labels."""
    found: Counter[str] = Counter()
    for key, value in values(status, name).items():
        found[key[place]] += int(value)
    return found


def test_on_a_card_with_slices_the_series_add_up_card_by_card_and_slice_by_slice() -> None:
    sample = VendorSample(
        (
            account_of.card(8 * GIB),
            account_of.card(4 * GIB, "MIG-1"),
            replace(account_of.card(GIB, "MIG-2"), parent="GPU-a"),
            account_of.card(0, "GPU-b"),
        ),
        (
            account_of.process(1, 3 * GIB, uuid="MIG-1"),
            account_of.process(2, 2 * GIB, uuid="MIG-2"),
            account_of.process(3, GIB),
        ),
    )
    devices = (account_of.device("GPU-a"), account_of.device("MIG-1", parent="GPU-a"))
    found = account_of.account(
        sample,
        {1: account_of.in_pod("p"), 2: account_of.in_pod("q"), 3: account_of.ON_HOST},
        account_of.moment(account_of.held("p", "MIG-1"), account_of.held("q"), devices=devices),
    )
    status = structs.replace(
        with_report(cards=found.cards, containers=found.containers),
        snapshot=NodeSnapshot(devices=devices),
    )
    memory = values(status, "xpu_device_memory_bytes")
    of_kind = {
        kind: {key[1]: it for key, it in memory.items() if key[2] == kind} for kind in ("used", "slices")
    }
    parents = {key[1]: key[6] for key in values(status, "xpu_device_info")}

    assert parents == {"GPU-a": "", "MIG-1": "GPU-a", "MIG-2": "GPU-a", "GPU-b": ""}
    assert of_kind["slices"] == {"GPU-a": 5 * GIB}
    containers = on_each(status, "xpu_container_memory_used_bytes", place=3)
    unattributed = on_each(status, "xpu_unattributed_memory_bytes")
    over = on_each(status, "xpu_overcounted_memory_bytes")
    assert (containers["MIG-1"], unattributed["GPU-a"], over["MIG-2"]) == (3 * GIB, 3 * GIB, GIB)
    for uuid, used_bytes in of_kind["used"].items():
        in_slices = of_kind["slices"].get(uuid, 0)
        assert containers[uuid] + unattributed[uuid] + in_slices - over[uuid] == used_bytes
    cards = sum(it for uuid, it in of_kind["used"].items() if not parents[uuid])
    assert containers.total() + unattributed.total() - over.total() == cards == 8 * GIB


def test_every_series_has_the_labels_that_others_join_by() -> None:
    names = {
        "xpu_device_info": ("vendor", "uuid", "index", "model", "pci", "driver", "parent"),
        "xpu_device_memory_bytes": ("vendor", "uuid", "kind"),
        "xpu_device_utilization_ratio": ("vendor", "uuid"),
        "xpu_device_power_watts": ("vendor", "uuid"),
        "xpu_device_temperature_celsius": ("vendor", "uuid", "kind"),
        "xpu_device_energy_joules_total": ("vendor", "uuid"),
        "xpu_device_ecc_errors_total": ("vendor", "uuid", "kind"),
        "xpu_device_xid_total": ("vendor", "uuid", "kind"),
        **dict.fromkeys(
            (
                "xpu_container_memory_used_bytes",
                "xpu_container_utilization_ratio",
                "xpu_container_processes",
                "xpu_container_memory_limit_bytes",
                "xpu_container_compute_limit_ratio",
                "xpu_container_idle_seconds",
            ),
            ("namespace", "pod", "container", "uuid", "resource"),
        ),
        "xpu_allocation_info": ("namespace", "pod", "container", "uuid", "resource", "share", "limits"),
        "xpu_unattributed_memory_bytes": ("uuid", "kind"),
        "xpu_overcounted_memory_bytes": ("uuid",),
        "xpu_usage_up": ("vendor",),
        "xpu_usage_age_seconds": ("vendor",),
        "xpu_usage_unknown_processes": ("what",),
        "xpu_usage_series_reduced": (),
        "xpu_usage_series_left_out": (),
    }
    families = text_string_to_metric_families(usage_page(WORKED).decode())

    found = {it.name: tuple(it.labels) for family in families for it in family.samples}
    assert found == names


def test_what_a_library_does_not_say_has_no_series() -> None:
    silent = with_report(
        cards=(structs.replace(CARD, usage=Usage("GPU-a"), unattributed={}),),
        containers=(used("infer-0", "a", "main"),),
    )

    assert values(silent, "xpu_device_memory_bytes") == {}
    assert values(silent, "xpu_device_utilization_ratio") == {}
    assert values(silent, "xpu_container_memory_used_bytes") == {}
    assert values(silent, "xpu_container_idle_seconds") == {}
    assert values(silent, "xpu_overcounted_memory_bytes") == {}
    assert values(silent, "xpu_container_processes") == {("a", "infer-0", "main", "GPU-a", SHARED): 1}


def test_what_is_not_known_of_processes_is_counted() -> None:
    unknown = values(WORKED, "xpu_usage_unknown_processes")

    assert unknown == {("owner",): 0, ("memory",): 0, ("utilization",): 1}


@pytest.mark.parametrize(
    "sampling",
    [
        SamplingStatus("nvidia", at=NOW - 16, error="no answer within 2 s"),
        SamplingStatus("nvidia", at=NOW - 1, error="three answers were late", ended=True),
        SamplingStatus("nvidia", error="not asked yet"),
    ],
    ids=["late", "ended", "before-the-first"],
)
def test_a_vendor_that_is_not_sampled_is_down_and_others_are_not(sampling: SamplingStatus) -> None:
    status = with_report(sampling=(sampling, SamplingStatus("metax", at=NOW - 15)))

    assert values(status, "xpu_usage_up") == {("nvidia",): 0, ("metax",): 1}


def test_a_sample_says_how_old_it_is_and_one_that_comes_meanwhile_is_not_from_later() -> None:
    later = with_report(sampling=(SamplingStatus("nvidia", at=NOW + 60),))

    assert values(WORKED, "xpu_usage_age_seconds") == {("nvidia",): 2}
    assert values(later, "xpu_usage_age_seconds") == {("nvidia",): 0}


@pytest.mark.parametrize("step", [-86400.0, 86400.0], ids=["back", "ahead"])
def test_a_step_of_the_nodes_clock_changes_no_series(monkeypatch: pytest.MonkeyPatch, step: float) -> None:
    monkeypatch.setattr("time.time", lambda: NOW + step)
    page = metrics(WORKED).body.decode()

    for line in (
        'xpu_usage_up{vendor="nvidia"} 1',
        'xpu_usage_age_seconds{vendor="nvidia"} 2',
        f"xpu_container_idle_seconds{{{NOTEBOOK_LABELS}}} 3600",
    ):
        assert line in {it.replace(".0", "") for it in page.splitlines()}


def test_the_series_of_a_container_end_with_it() -> None:
    without = with_report(containers=(NOTEBOOK,))

    assert not [line for line in of(without, "xpu_container_memory_used_bytes") if "infer-0" in line]


def test_a_pod_and_the_one_of_its_name_that_follows_are_one_series() -> None:
    follower = structs.replace(INFER, uid="uid-new", memory=1 << 30, utilization=0.25, active_at=NOW)
    status = with_report(containers=(INFER, follower, NOTEBOOK))

    key = ("a", "infer-0", "main", "GPU-a", SHARED)
    assert values(status, "xpu_container_memory_used_bytes")[key] == 12884901888 + (1 << 30)
    assert values(status, "xpu_container_utilization_ratio")[key] == pytest.approx(0.66)
    assert values(status, "xpu_container_processes")[key] == 4
    assert values(status, "xpu_container_idle_seconds")[key] == 0
    assert len(of(status, "xpu_container_memory_used_bytes")) == 2


# The allocation


def shares(status: AgentStatus) -> dict[str, tuple[str, str]]:
    """Pod to its share and to what keeps it to the share."""
    return {key[1]: (key[5], key[6]) for key in values(status, "xpu_allocation_info")}


def test_an_allocation_has_its_share_and_no_id() -> None:
    assert of(WORKED, "xpu_allocation_info") == [
        f'xpu_allocation_info{{{INFER_LABELS},share="1/4",limits="none"}} 1',
        f'xpu_allocation_info{{{NOTEBOOK_LABELS},share="1/4",limits="none"}} 1',
    ]


def claimed(pod: str, **parameters: str) -> Claim:
    return Claim(f"uid-{pod}", "a", pod, "main", ("GPU-a",), parameters)


def with_preload(devices: object, request: Request) -> ContainerEdits:
    return ContainerEdits(env={"LD_PRELOAD": "/libvgpu.so"} if request.parameters else {})


def test_what_keeps_a_container_to_its_share_is_said_as_it_is() -> None:
    slice_of = listed("MIG-1", parent="GPU-a", slice=1)
    status = structs.replace(
        WORKED,
        snapshot=replace(WORKED.snapshot, devices=(*WORKED.snapshot.devices, slice_of)),
        allocations=(
            allocated("whole", "a", "main", resource="nvidia.com/gpu"),
            allocated("made", "a", "main", partitions=("7",)),
            allocated("found", "a", "main", uuid="MIG-1"),
            allocated("units", "a", "main", unit="1", ids=("0::1", "0::2")),
            allocated("share", "a", "main", claim=claimed("share", core="50", memory="1073741824")),
        ),
    )

    assert shares(status) == {
        "whole": ("1", "none"),
        "made": ("slice", "enforced"),
        "found": ("slice", "enforced"),
        "units": ("2x1Gi", "observed"),
        "share": ("core=50,memory=1073741824", "observed"),
    }
    vendor = Vendor("nvidia", "a:B", "nvidia.com/gpu", with_preload)
    assert shares(structs.replace(status, vendors={"nvidia": vendor}))["share"][1] == "cooperative"
    unseen = structs.replace(status, usage=structs.replace(REPORT, sampling=()))
    assert shares(unseen)["units"] == ("2x1Gi", "none")


def test_a_plugin_that_fails_on_a_share_does_not_end_a_scrape() -> None:
    def fail(devices: object, request: Request) -> ContainerEdits:
        raise RuntimeError("no")

    status = structs.replace(
        WORKED,
        vendors={"nvidia": Vendor("nvidia", "a:B", "nvidia.com/gpu", fail)},
        allocations=(allocated("share", "a", "main", claim=claimed("share", core="50")),),
    )

    assert shares(status) == {"share": ("core=50", "observed")}


def test_an_allocation_on_several_cards_has_its_share_of_each() -> None:
    status = structs.replace(
        WORKED,
        resources={SHARED: shared("GPU-a", "GPU-b")},
        allocations=(
            allocated(
                "two",
                "a",
                "main",
                ids=("GPU-a::0", "GPU-a::1", "GPU-a::2", "GPU-b::0"),
                devices=("GPU-a", "GPU-b"),
            ),
        ),
    )

    found = {(key[3], key[5]) for key in values(status, "xpu_allocation_info")}
    assert found == {("GPU-a", "3/4"), ("GPU-b", "1/4")}


# How many


def test_too_many_series_of_containers_become_series_of_pods() -> None:
    sidecar = structs.replace(INFER, container="sidecar", memory=1 << 30)
    status = with_report(containers=(INFER, sidecar, NOTEBOOK))
    most = len(lines(status)) - 1

    found = values(status, "xpu_container_memory_used_bytes", most)

    assert found == {
        ("a", "infer-0", "", "GPU-a", SHARED): 12884901888 + (1 << 30),
        ("b", "nb-3", "", "GPU-a", SHARED): 8589934592,
    }
    assert values(status, "xpu_usage_series_reduced", most) == {(): 1}
    assert values(status, "xpu_usage_series_left_out", most) == {(): 0}
    assert values(status, "xpu_usage_series_reduced") == {(): 0}


@pytest.mark.parametrize("most", [2_000, 500, 1])
def test_a_node_never_has_more_series_than_it_may_and_says_what_is_left_out(most: int) -> None:
    status = crowded(cards=4, containers=400)

    found = lines(status, most)
    bare = with_report(structs.replace(status, allocations=()), containers=())
    smallest = len(lines(bare))
    assert len(found) <= max(most, smallest)
    assert values(status, "xpu_usage_series_left_out", most)[()] > 0
    assert values(status, "xpu_usage_series_reduced", most) == {(): 1}


def test_a_thousand_containers_keep_their_names() -> None:
    found = values(crowded(cards=16, containers=1000), "xpu_container_memory_used_bytes")

    assert len(found) == 1000
    assert {key[2] for key in found} == {"main"}


def test_texts_of_others_break_no_line() -> None:
    hostile = used(HOSTILE, HOSTILE, HOSTILE, HOSTILE, memory=1)
    status = with_report(
        structs.replace(WORKED, allocations=(allocated(HOSTILE, HOSTILE, HOSTILE, HOSTILE),)),
        containers=(hostile,),
        cards=(structs.replace(CARD, usage=replace(CARD.usage, uuid=HOSTILE, ecc_errors={HOSTILE: 1})),),
    )

    assert len(values(status, "xpu_container_memory_used_bytes")) == 1
    assert len(values(status, "xpu_device_ecc_errors_total")) == 1
    assert len(values(status, "xpu_allocation_info")) == 1


def test_a_scrape_without_sampling_has_no_series_of_use() -> None:
    assert b"xpu_device_" not in metrics(VIEW).body
    assert b"xpu_usage_" not in metrics(VIEW).body
    assert usage_page(VIEW) == b""


def test_a_scrape_with_sampling_has_them_behind_the_others() -> None:
    page = metrics(WORKED).body

    assert b"xpu_agent_ready" in page
    assert b"\nxpu_usage_up{" in page
    assert [*text_string_to_metric_families(page.decode())]


def test_a_device_is_described_once() -> None:
    named = 'vendor="nvidia",uuid="GPU-a",index="0",model="NVIDIA H100"'

    info = of(WORKED, "xpu_device_info")
    assert info == [f'xpu_device_info{{{named},pci="0000:01:00.0",driver="580.65.06",parent=""}} 1']
    bare = replace(WORKED.snapshot, devices=(listed("GPU-a", pci=None, attributes={}),))
    info = of(structs.replace(WORKED, snapshot=bare), "xpu_device_info")
    assert info == [f'xpu_device_info{{{named},pci="",driver="",parent=""}} 1']


def test_labels_are_written_once_for_the_series_that_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[str] = []

    def counted(value: str) -> str:
        written.append(value)
        return value

    monkeypatch.setattr(metric_families, "bounded_value", counted)
    crowd = crowded(cards=4, containers=400)
    assert crowd.usage is not None
    odd = tuple(structs.replace(it, pod=f"{it.pod}é") for it in crowd.usage.containers)
    found = lines(structs.replace(with_report(crowd, containers=odd), allocations=()), 1_000)

    pods = [line for line in found if line.startswith("xpu_container_processes{")]
    assert 0 < len(pods) < 400
    assert len(written) == len(pods)
