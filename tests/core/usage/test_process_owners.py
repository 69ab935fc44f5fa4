"""The names of the pods and containers that have processes."""

from __future__ import annotations

from agent.core.allocation.known_pods import KnownPods
from agent.core.usage.cgroup_paths import CgroupOwner, Kind
from agent.core.usage.process_owners import PodNames, holder_names, pods_of_log_directories
from agent.scheduler_api import Claim

from .cards_in_use import HEX, held, pod

OWNER = CgroupOwner(Kind.POD, "uid-p", HEX)


def names(*pods: object, holders: object = None, logs: object = None) -> PodNames:
    return PodNames(KnownPods.of(pods), holders or {}, logs or {})  # type: ignore[arg-type]


def test_a_pod_is_named_by_the_api_server_then_by_the_ledger_then_by_its_logs() -> None:
    ledger, logs = {"uid-p": ("ns", "of-ledger")}, {"uid-p": ("ns", "of-logs")}
    assert names(pod("p"), holders=ledger, logs=logs).of("uid-p") == ("ns", "p")
    assert names(holders=ledger, logs=logs).of("uid-p") == ("ns", "of-ledger")
    assert names(logs=logs).of("uid-p") == ("ns", "of-logs")
    assert names().of("uid-p") is None


def test_the_ledger_names_a_pod_by_owner_and_claim() -> None:
    claim = Claim("uid-c", "ns", "c", "main")
    assert holder_names([held("p"), held("q", named=False, claim=claim)]) == {
        "uid-p": ("ns", "p"),
        "uid-c": ("ns", "c"),
    }


def test_log_directories_name_static_pods_by_the_uid_of_their_manifest() -> None:
    static = "0123456789abcdef0123456789abcdef"
    found = pods_of_log_directories(
        [f"kube-system_etcd-n1_{static}", "ns_p_uid-p", "x", "a_b", "a__c", "a_b_c_d"]
    )
    assert found == {static: ("kube-system", "etcd-n1"), "uid-p": ("ns", "p")}


def test_the_container_is_named_by_the_runtimes_id_before_all_else() -> None:
    several = names(pod("p", "a", "b", ids={HEX: "b"}))
    assert several.container(OWNER, ["a"]) == "b"
    assert several.container(CgroupOwner(Kind.POD, "uid-p", "ef" * 32), ["a"]) == "a"
    assert several.container(CgroupOwner(Kind.POD, "uid-p"), ["a", "b"]) == ""


def test_without_a_known_pod_only_the_holder_can_be_meant() -> None:
    assert names().container(OWNER, ["a"]) == "a"
    assert names().container(OWNER, ["a", "b"]) == ""
    assert names().container(OWNER, []) == ""


def test_a_pod_of_one_container_has_no_other() -> None:
    assert names(pod("p", "only")).container(OWNER, []) == "only"
