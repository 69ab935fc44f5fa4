"""The names, labels and units of other exporters, as their boards ask for them."""

from __future__ import annotations

import itertools
import math
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs
from prometheus_client.parser import text_string_to_metric_families
from structlog.testing import capture_logs
from support.used_views import (
    CARD,
    INFER,
    NOTEBOOK,
    REPORT,
    SHARED,
    WORKED,
    allocated,
    lines,
    listed,
    shared,
    used,
    with_exporters,
    with_report,
)

from agent.core.model import Resource
from agent.core.publishing.agent_status import AgentStatus
from agent.core.usage.usage_report import ContainerUse
from agent.http.usage import exporters
from agent.http.usage.series import usage_page
from agent.schedulers.hami import plugin as hami_plugin
from agent.vendor_api.agent import ContainerEdits, Exporter, ResourceRule, Usage, Vendor
from agent.vendor_api.metric_families import MetricFamily, labels
from agent.vendor_api.node_usage import ContainerUsage, NodeUsage

ALL = ("dcgm", "hami", "gpu-manager")

_DCGM = ("gpu", "UUID", "pci_bus_id", "device", "modelName", "hostname", "DCGM_FI_DRIVER_VERSION")
_DCGM_POD = (*_DCGM, "pod", "namespace", "container")
_HAMI_HOST = ("node", "device_index", "device_uuid", "device_type")
_HAMI_HOST_OF_OLD = ("nodeid", "deviceidx", "deviceuuid", "devicetype")
_HAMI = ("namespace", "pod", "container", "vdevice_index", "device_uuid")
_HAMI_OF_OLD = ("podnamespace", "podname", "ctrname", "vdeviceid", "deviceuuid")
_GPU_MANAGER = ("pod_name", "namespace", "node", "container_name")

#: Dialect, name, labels, and the value that the pod infer-0, or its card, has in the exporter's unit.
TABLE = (
    ("dcgm", "DCGM_FI_DEV_GPU_UTIL", _DCGM_POD, 41),  # %
    ("dcgm", "DCGM_FI_DEV_FB_USED", _DCGM_POD, 12288),  # MiB
    ("dcgm", "DCGM_FI_DEV_FB_FREE", _DCGM, 59416),
    ("dcgm", "DCGM_FI_DEV_FB_RESERVED", _DCGM, 638),
    ("dcgm", "DCGM_FI_DEV_MEM_COPY_UTIL", _DCGM, 20),
    ("dcgm", "DCGM_FI_DEV_ENC_UTIL", _DCGM, 1),
    ("dcgm", "DCGM_FI_DEV_DEC_UTIL", _DCGM, 2),
    ("dcgm", "DCGM_FI_DEV_GPU_TEMP", _DCGM, 51),  # degrees Celsius
    ("dcgm", "DCGM_FI_DEV_MEMORY_TEMP", _DCGM, 60),
    ("dcgm", "DCGM_FI_DEV_POWER_USAGE", _DCGM, 301.5),  # W
    ("dcgm", "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", _DCGM, 1234500),  # mJ
    ("dcgm", "DCGM_FI_DEV_SM_CLOCK", _DCGM, 1980),  # MHz
    ("dcgm", "DCGM_FI_DEV_MEM_CLOCK", _DCGM, 2619),
    ("dcgm", "DCGM_FI_DEV_XID_ERRORS", _DCGM, 31),
    ("dcgm", "DCGM_FI_DEV_ECC_SBE_VOL_TOTAL", _DCGM, 3),
    ("dcgm", "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", _DCGM, 0),
    ("dcgm", "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", _DCGM, 0.125),  # 0..1
    ("hami", "hami_host_gpu_memory_used_bytes", _HAMI_HOST, 22548578304 + 669515776),
    ("hami", "hami_host_gpu_utilization_ratio", _HAMI_HOST, 55),  # 0..100
    ("hami", "hami_host_gpu_memory_controller_utilization_ratio", _HAMI_HOST, 20),
    ("hami", "HostGPUMemoryUsage", _HAMI_HOST_OF_OLD, 22548578304 + 669515776),
    ("hami", "HostCoreUtilization", _HAMI_HOST_OF_OLD, 55),
    ("hami", "hami_vgpu_memory_used_bytes", _HAMI, 12884901888),
    ("hami", "hami_vgpu_memory_limit_bytes", _HAMI, 21474836480),
    ("hami", "hami_container_device_memory_bytes", _HAMI, 12884901888),
    ("hami", "hami_container_device_utilization_ratio", _HAMI, 41),
    ("hami", "hami_container_last_kernel_elapsed_seconds", _HAMI, 1),
    ("hami", "vGPU_device_memory_usage_in_bytes", _HAMI_OF_OLD, 12884901888),
    ("hami", "vGPU_device_memory_limit_in_bytes", _HAMI_OF_OLD, 21474836480),
    ("hami", "Device_memory_desc_of_container", _HAMI_OF_OLD, 12884901888),
    ("hami", "Device_utilization_desc_of_container", _HAMI_OF_OLD, 41),
    ("hami", "Device_last_kernel_of_container", _HAMI_OF_OLD, 1),
    ("gpu-manager", "container_gpu_utilization", ("gpu", *_GPU_MANAGER), 41),  # %
    ("gpu-manager", "container_gpu_memory_total", ("gpu_memory", *_GPU_MANAGER), 12288),  # MiB
    ("gpu-manager", "container_request_gpu_utilization", ("req_of_gpu", *_GPU_MANAGER), 0.25),  # cards
    ("gpu-manager", "container_request_gpu_memory", ("req_of_gpu_memory", *_GPU_MANAGER), 20480),
)
_SLICE = ("mig_uuid", "profile", "gpu_instance_id", "compute_instance_id")
#: The series of slices alone.
OF_SLICES = {"hami_mig_device_info": (*_HAMI, *_SLICE), "MigInfo": _HAMI_OF_OLD}


def series(status: AgentStatus, *dialects: str) -> dict[str, list[tuple[dict[str, str], float]]]:
    """Name to the labels and values of its series, of these dialects alone; no series is there twice."""
    found: dict[str, list[tuple[dict[str, str], float]]] = {}
    page = usage_page(with_exporters(status, *dialects)).decode()
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            if not sample.name.startswith("xpu_"):
                # The parser gives every counter the ending of OpenMetrics, which DCGM's do not have.
                name = sample.name.removesuffix("_total") if family.type == "counter" else sample.name
                found.setdefault(name, []).append((dict(sample.labels), sample.value))
    for name, rows in found.items():
        assert len({tuple(sorted(it.items())) for it, _ in rows}) == len(rows), name
    return found


@pytest.mark.parametrize("dialect", sorted(ALL))
def test_a_dialect_has_its_series_with_their_labels_and_no_others(dialect: str) -> None:
    names = {name: labels for of, name, labels, _ in TABLE if of == dialect}

    found = {name: tuple(rows[0][0]) for name, rows in series(WORKED, dialect).items()}
    assert found == names


@pytest.mark.parametrize(("dialect", "name", "labels", "value"), TABLE, ids=[it[1] for it in TABLE])
def test_a_value_is_in_the_unit_of_its_exporter(
    dialect: str, name: str, labels: tuple[str, ...], value: float
) -> None:
    assert series(WORKED, dialect)[name][0][1] == value


def test_without_a_switch_there_is_no_series_of_another_exporter() -> None:
    assert series(WORKED) == {}


def test_the_worked_sample_of_all_three_has_exactly_these_lines() -> None:
    found = lines(with_exporters(WORKED, *ALL))

    card = (
        'gpu="0",UUID="GPU-a",pci_bus_id="00000000:01:00.0",device="nvidia0",modelName="NVIDIA H100",'
        'hostname="n1",DCGM_FI_DRIVER_VERSION="580.65.06"'
    )
    of_old = 'podnamespace="a",podname="infer-0",ctrname="main",vdeviceid="0",deviceuuid="GPU-a"'
    in_cards = 'gpu_memory="gpu0",pod_name="infer-0",namespace="a",node="n1",container_name="main"'
    for line in (
        f'DCGM_FI_DEV_GPU_UTIL{{{card},pod="infer-0",namespace="a",container="main"}} 41',
        f'DCGM_FI_DEV_FB_USED{{{card},pod="nb-3",namespace="b",container="nb"}} 8192',
        f"vGPU_device_memory_usage_in_bytes{{{of_old}}} 12884901888",
        f"container_gpu_memory_total{{{in_cards}}} 12288",
    ):
        assert line in found


def test_cards_of_other_vendors_are_not_shown_as_nvidias() -> None:
    other = replace(WORKED.snapshot.devices[0], vendor="metax")
    status = structs.replace(
        WORKED,
        snapshot=replace(WORKED.snapshot, devices=(other,)),
        usage=structs.replace(
            REPORT,
            sampling=(structs.replace(REPORT.sampling[0], vendor="metax"),),
            cards=(structs.replace(CARD, vendor="metax"),),
            containers=(structs.replace(INFER, vendor="metax"),),
        ),
    )

    assert series(status, *ALL) == {}


def test_what_is_not_known_is_absent_in_every_dialect() -> None:
    silent = with_report(
        cards=(structs.replace(CARD, usage=Usage("GPU-a")),), containers=(used("infer-0", "a", "main"),)
    )

    assert [*series(silent, *ALL)] == ["DCGM_FI_DEV_XID_ERRORS"]  # 0: no error came


#: Makes a page of use, and prints which of the modules of exporters were loaded for it.
SCRAPE = """
import sys
from support.used_views import WORKED, with_exporters
from agent.http.usage.series import usage_page
usage_page(with_exporters(WORKED, *sys.argv[1:]))
print(*sorted(it for it in sys.modules if it.endswith(("_metrics", "node_usage", "usage.exporters"))))
"""


@pytest.mark.parametrize(
    ("names", "modules"),
    [
        ((), []),
        (
            ("dcgm",),
            [
                "agent.http.usage.exporters",
                "agent.vendor_api.node_usage",
                "agent.vendors.nvidia.agent.dcgm_metrics",
            ],
        ),
    ],
)
def test_only_what_is_switched_on_is_loaded(names: Sequence[str], modules: Sequence[str]) -> None:
    paths = os.pathsep.join(sys.path)
    done = subprocess.run(
        [sys.executable, "-c", SCRAPE, *names],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": paths},
    )

    assert done.stdout.split() == modules


# Exporters of other vendors


def serving(exporters: Mapping[str, Sequence[Exporter]]) -> AgentStatus:
    """A card of each of these vendors, which have these exporters, all switched on."""
    devices = tuple(replace(listed(f"card-{name}", n), vendor=name) for n, name in enumerate(exporters))
    cards = (structs.replace(CARD, vendor=name, usage=Usage(f"card-{name}")) for name in exporters)
    status = structs.replace(
        WORKED,
        snapshot=replace(WORKED.snapshot, devices=devices),
        vendors={
            name: Vendor(name, "a.b:C", "a.com/x", lambda *_: ContainerEdits(), exporters=tuple(known))
            for name, known in exporters.items()
        },
        exporters=frozenset(it.name for known in exporters.values() for it in known),
        allocations=(),
    )
    return with_report(status, cards=tuple(cards), containers=())


def acme_families(usage: NodeUsage) -> Iterator[MetricFamily]:
    """One series of each card."""
    named = [labels(("card",), (card.uuid,)) for card in usage.cards]
    yield MetricFamily("acme_cards", "Cards.", [(it, 1) for it in named])


def test_an_exporter_of_a_vendor_of_another_distribution_has_the_cards_of_that_vendor() -> None:
    found = lines(serving({"acme": (Exporter("acme-exporter", acme_families),), "other": ()}))

    assert [line for line in found if not line.startswith("xpu_")] == ['acme_cards{card="card-acme"} 1']


def test_what_two_vendors_have_under_one_name_is_one_metric() -> None:
    exporter = Exporter("acme-exporter", acme_families)
    page = usage_page(serving({"acme": (exporter,), "other": (exporter,)})).decode()

    assert page.count("# TYPE acme_cards gauge") == 1
    assert page.endswith('acme_cards{card="card-acme"} 1\nacme_cards{card="card-other"} 1\n')


def failing(usage: NodeUsage) -> Iterator[MetricFamily]:
    yield MetricFamily("half", "Half.", [("", 1)])
    raise KeyError("no such card")


def leaving(usage: NodeUsage) -> Iterator[MetricFamily]:
    yield MetricFamily("half", "Half.", [("", 1)])
    raise SystemExit(3)


def one(
    series: Any = (("", 1),), name: str = "acme_other", help: str = "One.", type: Any = "gauge"
) -> Callable[[NodeUsage], list[MetricFamily]]:
    """The function of an exporter with one good metric, and this one behind it."""
    return lambda usage: [MetricFamily("half", "Half.", [("", 1)]), MetricFamily(name, help, series, type)]


@pytest.mark.parametrize(
    "families",
    [
        failing,
        leaving,
        lambda usage: 5,
        lambda usage: ["acme_cards 1"],
        one(name="xpu_device_info"),
        one(name="process_cards"),
        one(name="two words"),
        one(name=cast("Any", 5)),
        one(help="Two\nlines"),
        one(help="A half letter: \ud800"),
        one(type="untyped"),
        one([(5, 1)]),
        one([5]),
        one([("", "many")]),
        one([("", True)]),
        one([("", None)]),
        one([("", math.nan)]),
        one([("", math.inf)]),
        one([("", 10**5000)]),
        one(("", value) for value in (1, 2)),
        one({("", 1): 2}),
        one([('card="a"} 1\nxpu_up{card="a"', 1)]),
        one([('card="a\nb"', 1)]),
        one([('card="a"b"', 1)]),
        one([('card="a', 1)]),
        one([('card="\\d"', 1)]),
        one([('card="\\"', 1)]),
        one([("card=a", 1)]),
        one([('card="a",', 1)]),
        one([('card="a"}', 1)]),
        one([('card="a",card="b"', 1)]),
        one([('__name__="a"', 1)]),
        one([('card="\ud800"', 1)]),
    ],
)
def test_an_exporter_that_fails_costs_the_scrape_no_other_series(families: Any) -> None:
    broken = serving({"acme": (Exporter("broken", families), Exporter("good", acme_families))})
    good = serving({"acme": (Exporter("good", acme_families),)})

    assert usage_page(broken) == usage_page(good)


@given(value=st.text(), name=st.from_regex(r"[a-z][a-z0-9_]*", fullmatch=True))
def test_what_labels_writes_is_on_the_page(value: str, name: str) -> None:
    named = labels((name, "z9"), (value, '\\"\n'))
    found = usage_page(serving({"acme": (Exporter("good", one([(named, 1.5)])),)})).decode()

    assert found.endswith(f"acme_other{{{named}}} 1.5\n") == (name != "z9")


@given(named=st.text(alphabet='ab_="\\,\n{} n', max_size=12))
def test_labels_of_a_plugin_stand_on_a_page_that_can_be_read_or_not_at_all(named: str) -> None:
    found = usage_page(serving({"acme": (Exporter("odd", one([(named, 1)])),)})).decode()

    samples = [it for family in text_string_to_metric_families(found) for it in family.samples]
    assert [it.value for it in samples if it.name == "acme_other"] in ([], [1])
    assert {it.name for it in samples} <= {it.partition("{")[0].partition(" ")[0] for it in found.split("\n")}


def test_the_trouble_of_an_exporter_is_logged_once_and_with_its_vendor(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(exporters, "_complaints", set())
    counted = itertools.count()

    def at_each_scrape(usage: NodeUsage) -> Iterator[MetricFamily]:
        raise KeyError(f"no card {next(counted)}")

    status = serving({name: (Exporter("broken", at_each_scrape),) for name in ("acme", "other")})
    with capture_logs() as logs:
        usage_page(status)
        usage_page(status)

    assert [(it["vendor"], it["exporter"]) for it in logs] == [("acme", "broken"), ("other", "broken")]


@pytest.mark.parametrize(("help", "type"), [("Other.", "gauge"), ("Cards.", "counter")])
def test_a_metric_that_a_vendor_before_has_otherwise_is_left_out(
    help: str, type: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exporters, "_complaints", set())
    first = (Exporter("acme-exporter", acme_families),)
    other = (Exporter("acme-exporter", one(name="acme_cards", help=help, type=type)),)
    with capture_logs() as logs:
        found = lines(serving({"acme": first, "other": other}))

    assert [it for it in found if not it.startswith("xpu_")] == ['acme_cards{card="card-acme"} 1', "half 1"]
    assert {it["vendor"] for it in logs} == {"other"}


def test_an_exporter_is_asked_once_for_the_cards_and_once_for_all() -> None:
    asked: list[int] = []

    def counting(usage: NodeUsage) -> Iterator[MetricFamily]:
        asked.append(len(usage.containers))
        return acme_families(usage)

    status = serving({"acme": (Exporter("acme-exporter", counting),)})
    usage_page(with_report(status, containers=(structs.replace(INFER, vendor="acme", uuid="card-acme"),)))

    assert asked == [0, 1]


# dcgm


def exclusive(*uuids: str) -> Resource:
    return Resource(SHARED, "nvidia", ResourceRule(SHARED), "packed", shared(*uuids).cards)


def test_the_figures_of_a_whole_card_have_the_pod_that_has_it() -> None:
    alone = with_report(structs.replace(WORKED, resources={SHARED: exclusive("GPU-a")}), containers=(INFER,))

    found = series(alone, "dcgm")

    assert {name for name, rows in found.items() if rows[0][0].get("pod") != "infer-0"} == set()
    assert found["DCGM_FI_DEV_GPU_UTIL"][0][1] == 55


def test_a_card_without_a_pod_has_no_labels_of_one() -> None:
    found = series(with_report(containers=()), "dcgm")

    assert [tuple(it) for it, _ in found["DCGM_FI_DEV_GPU_UTIL"]] == [_DCGM]
    assert found["DCGM_FI_DEV_FB_USED"][0][1] == 22548578304 >> 20


def test_a_pod_of_a_shared_card_without_processes_has_zero() -> None:
    idle = structs.replace(NOTEBOOK, memory=0, processes=0)
    found = series(with_report(containers=(INFER, idle)), "dcgm")

    assert {it["pod"]: value for it, value in found["DCGM_FI_DEV_FB_USED"]} == {"infer-0": 12288, "nb-3": 0}


def test_a_shared_card_of_which_no_split_is_known_keeps_its_own_figure() -> None:
    unknown = [structs.replace(it, utilization=None) for it in (INFER, NOTEBOOK)]
    found = series(with_report(containers=tuple(unknown)), "dcgm")

    assert [(tuple(it), value) for it, value in found["DCGM_FI_DEV_GPU_UTIL"]] == [(_DCGM, 55)]


def with_slice() -> AgentStatus:
    """One card with one slice, which a container has."""
    attributes = {"driver-version": "580.65.06", "gi": "9", "ci": "0", "mig-profile": "1g.10gb"}
    slice_of = listed("MIG-1", parent="GPU-a", slice=0, attributes=attributes)
    status = structs.replace(
        WORKED,
        snapshot=replace(WORKED.snapshot, devices=(*WORKED.snapshot.devices, slice_of)),
        resources={SHARED: exclusive("MIG-1")},
    )
    of_slice = Usage("MIG-1", memory_used=2 << 30, memory_total=10 << 30, utilization=0.5)
    return with_report(
        status,
        cards=(CARD, structs.replace(CARD, usage=of_slice, unattributed={})),
        containers=(used("train", "a", "main", "MIG-1", memory=2 << 30),),
    )


def test_a_slice_has_its_number_and_profile_beside_the_labels_of_its_card() -> None:
    found = series(with_slice(), "dcgm")

    ((labels, value),) = found["DCGM_FI_DEV_FB_USED"]
    assert value == 2048
    assert (labels["UUID"], labels["gpu"], labels["GPU_I_ID"]) == ("GPU-a", "0", "9")
    assert (labels["GPU_I_PROFILE"], labels["pod"]) == ("1g.10gb", "train")
    assert [it.get("GPU_I_ID") for it, _ in found["DCGM_FI_DEV_POWER_USAGE"]] == [None]


def with_compute_instances() -> AgentStatus:
    """One GPU instance with two compute instances; a container has one of them each."""
    slices = [
        listed(
            f"MIG-{number}",
            parent="GPU-a",
            slice=number,
            attributes={"gi": "2", "ci": str(number), "mig-profile": f"{number + 1}c.3g.40gb"},
        )
        for number in range(2)
    ]
    figures = Usage("", memory_used=3 << 30, memory_total=40 << 30, memory_reserved=0, utilization=0.5)
    cards = [CARD, *(structs.replace(CARD, usage=replace(figures, uuid=it.uuid)) for it in slices)]
    uses = [used(f"train-{number}", "a", "main", it.uuid, memory=1 << 30) for number, it in enumerate(slices)]
    status = structs.replace(
        WORKED,
        snapshot=replace(WORKED.snapshot, devices=(*WORKED.snapshot.devices, *slices)),
        resources={SHARED: exclusive("MIG-0", "MIG-1")},
    )
    return with_report(status, cards=tuple(cards), containers=tuple(uses))


def test_compute_instances_share_the_series_of_their_gpu_instance() -> None:
    found = series(with_compute_instances(), "dcgm")

    rows = found["DCGM_FI_DEV_FB_USED"]
    assert {it["pod"]: value for it, value in rows} == {"train-0": 1024, "train-1": 1024}
    assert {(it["GPU_I_ID"], it["GPU_I_PROFILE"]) for it, _ in rows} == {("2", "3g.40gb")}
    ((labels, value),) = found["DCGM_FI_DEV_FB_FREE"]
    assert (labels["GPU_I_ID"], labels.get("pod"), value) == ("2", None, 37 << 10)


def test_a_process_left_of_a_pod_is_one_with_the_pod_of_the_same_name() -> None:
    left = structs.replace(INFER, uid="uid-before", resource="", memory=1 << 30)
    found = series(with_report(containers=(INFER, left)), "dcgm")

    assert [(it["pod"], value) for it, value in found["DCGM_FI_DEV_FB_USED"]] == [("infer-0", 13 << 10)]
    assert len(found["DCGM_FI_DEV_GPU_UTIL"]) == 1


SLICES = [
    listed(uuid, parent="GPU-a", slice=number, attributes=attributes)
    for number, (uuid, attributes) in enumerate(
        {
            "MIG-1": {"gi": "1", "ci": "0", "mig-profile": "1c.3g.40gb"},
            "MIG-2": {"gi": "1", "ci": "1", "mig-profile": "2c.3g.40gb"},
            "MIG-3": {"gi": "2", "ci": "0", "mig-profile": "3g.40gb"},
            "OTHER-1": {},
            "OTHER-2": {},
        }.items()
    )
]
DEVICES = [listed("GPU-a"), listed("GPU-b", 1), *SLICES]
UUIDS = st.sampled_from([it.uuid for it in DEVICES])
USES = st.builds(
    lambda of_pod, **figures: structs.replace(INFER, uid=f"uid-{of_pod}", **figures),
    of_pod=st.integers(0, 2),
    pod=st.sampled_from(["web-0", "web-1"]),
    container=st.sampled_from(["", "main", "other"]),
    uuid=UUIDS,
    resource=st.sampled_from(["", SHARED, "nvidia.com/gpu"]),
    utilization=st.sampled_from([None, 0.5]),
)


@given(
    uses=st.lists(USES, max_size=8),
    cards=st.sets(UUIDS),
    shares=st.booleans(),
    most=st.sampled_from([20_000, 60, 1]),
)
def test_no_scrape_has_a_series_twice(
    uses: list[ContainerUse], cards: set[str], shares: bool, most: int
) -> None:
    resource = shared("GPU-a") if shares else exclusive("GPU-a")
    status = structs.replace(
        WORKED,
        snapshot=replace(WORKED.snapshot, devices=tuple(DEVICES)),
        resources={SHARED: resource},
        allocations=tuple(allocated(it.pod, it.namespace, it.container, it.uuid) for it in uses),
    )
    seen = tuple(structs.replace(CARD, usage=replace(CARD.usage, uuid=it)) for it in sorted(cards))
    found = lines(with_exporters(with_report(status, cards=seen, containers=tuple(uses)), *ALL), most)

    names = [line.rpartition(" ")[0] for line in found]
    assert len({*names}) == len(names)


# HAMi and gpu-manager


def test_a_slice_of_a_container_is_named_as_hami_does() -> None:
    found = series(with_slice(), "hami")

    assert {name: tuple(found[name][0][0]) for name in OF_SLICES} == OF_SLICES
    labels, value = found["hami_mig_device_info"][0]
    assert (labels["device_uuid"], labels["mig_uuid"], value) == ("GPU-a", "MIG-1", 1)
    assert (labels["profile"], labels["gpu_instance_id"]) == ("1g.10gb", "9")
    assert len(found["hami_host_gpu_memory_used_bytes"]) == 1


def test_a_slice_of_another_make_is_named_by_the_attributes_that_the_vendor_has() -> None:
    make = hami_plugin.SCHEDULER.vendor_exporters["hami"]
    slice_of = listed("S-1", parent="A", slice=0, attributes={"size": "half", "part": "3", "gi": "9"}).device
    usage = NodeUsage("n1", 0.0, {"S-1": slice_of}, containers=(ContainerUsage("a", "train", "main", "S-1"),))

    terms = {"make": "ACME", "profile": "size", "gpu_instance": "part"}
    found = {it.name: it.series for it in make(terms).families(usage)}
    ((named, _),) = found["hami_mig_device_info"]
    assert named.endswith(',profile="half",gpu_instance_id="3",compute_instance_id=""')
    with pytest.raises(ValueError, match="needed is make"):
        make({"profile": "size"})


def two_cards() -> AgentStatus:
    """A container that has two whole cards."""
    second = structs.replace(CARD, usage=replace(CARD.usage, uuid="GPU-b"))
    on_second = structs.replace(INFER, uuid="GPU-b", memory=1 << 30, utilization=0.5)
    plain = {"memory_limit": None, "compute_limit": None}
    uses = [structs.replace(it, **plain) for it in (on_second, INFER)]
    status = structs.replace(
        WORKED,
        snapshot=replace(WORKED.snapshot, devices=(listed("GPU-a"), listed("GPU-b", 1))),
        resources={SHARED: exclusive("GPU-a", "GPU-b")},
    )
    return with_report(status, cards=(CARD, second), containers=tuple(uses))


def test_the_cards_of_a_container_are_numbered_in_their_order() -> None:
    found = series(two_cards(), "hami")["hami_vgpu_memory_used_bytes"]

    assert {it["vdevice_index"]: it["device_uuid"] for it, _ in found} == {"0": "GPU-a", "1": "GPU-b"}


def test_gpu_manager_has_each_card_of_a_container_and_their_total() -> None:
    found = series(two_cards(), "gpu-manager")

    used_mib = {it["gpu_memory"]: value for it, value in found["container_gpu_memory_total"]}
    assert used_mib == {"gpu0": 12288, "gpu1": 1024, "total": 13312}
    busy = {it["gpu"]: value for it, value in found["container_gpu_utilization"]}
    assert busy == {"gpu0": 41, "gpu1": 50, "total": 91}
    assert [value for _, value in found["container_request_gpu_utilization"]] == [2]
    assert [value for _, value in found["container_request_gpu_memory"]] == [2 * (85520809984 >> 20)]


def test_gpu_manager_has_no_total_where_a_card_is_not_known() -> None:
    status = two_cards()
    assert status.usage is not None
    first, second = status.usage.containers
    found = series(
        with_report(status, containers=(structs.replace(first, memory=None), second)), "gpu-manager"
    )

    assert {it["gpu_memory"] for it, _ in found["container_gpu_memory_total"]} == {"gpu0"}
