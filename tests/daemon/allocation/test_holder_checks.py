"""A device that a pod has is not given to another, whatever the kubelet has lost or let go of."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

import pytest
from core.scenes import WHOLE, held
from core.values import allocation

from agent.core.allocation.current_holders import SHOWN_AFTER, owners_to_ask_about
from agent.core.allocation.ledger import Ledger
from agent.core.errors import GivenTwice, StillHeld
from agent.core.model import Allocation, Owner
from agent.core.reconciling.reconcile_evidence import CheckpointAnswer
from agent.daemon.allocation.holder_checks import refuse_held

GONE = Owner("uid-gone", "main", "default", "gone")


@dataclass
class Kubelet:
    """A kubelet that lists these pods and writes down what it is asked."""

    listed: frozenset[str] = frozenset()
    life: str = "k1"
    #: Device ID to the pod with which the kubelet lists it.
    shown: dict[str, tuple[str, str]] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)

    async def checkpoint_answers(self) -> Sequence[CheckpointAnswer] | None:
        raise AssertionError("the checkpoint is not read")

    async def existing_owners(self, owners: Collection[Owner]) -> Collection[Owner]:
        self.asked.append(f"pods {','.join(sorted(it.pod for it in owners))}")
        return {it for it in owners if it.pod in self.listed}

    async def ended_owners(self, owners: Collection[Owner]) -> Collection[Owner]:
        return {*owners} - {*await self.existing_owners(owners)}

    async def pods_with_ids(
        self, resource: str, ids: Collection[str], owners: Collection[Owner | None]
    ) -> Mapping[str, tuple[str, str]]:
        self.asked.append(
            f"ids {','.join(sorted(ids))} of {','.join(it.pod if it else '?' for it in owners)}"
        )
        return {it: self.shown[it] for it in ids if it in self.shown}


def since(life: str, owner: Owner | None = GONE, device_id: str = "c0") -> Allocation:
    """A device that is held since that life of the kubelet."""
    name = owner.pod if owner else "unknown"
    return allocation(name, [device_id], resource=WHOLE, owner=owner, life=life)


async def refuse(kubelet: Kubelet, ledger: Ledger, ids: Sequence[str]) -> None:
    """As the allocator does."""
    if holders := ledger.holders(WHOLE, ids):
        await refuse_held(kubelet, holders, WHOLE, ids)


async def still_there(
    kubelet: Kubelet, known: Sequence[Allocation], now: float, alive: Collection[str]
) -> list[Allocation]:
    """Those whose pods are not gone, as the kubelet says where it has to be asked."""
    asked = owners_to_ask_about(known, now, alive)
    gone = await kubelet.ended_owners(asked) if asked else ()
    return [it for it in known if it.owner not in gone]


async def test_a_device_of_a_pod_that_the_kubelet_forgot_is_refused_by_the_pods_name() -> None:
    with pytest.raises(StillHeld) as refused:
        await refuse(Kubelet(frozenset({"gone"})), Ledger([since("k0")]), ["c1", "c0"])

    assert str(refused.value) == (
        'invalid allocation request for "acme.com/whole": device c0 is held by default/gone, and the '
        "kubelet has lost its record of that; delete that pod to free it"
    )


async def test_a_forgotten_pod_without_name_is_refused_by_its_uid() -> None:
    """Its cgroup is there; PodResources hides a pod of which a plain init container alone has devices."""
    nameless = since("k0", Owner("uid-gone", "main"))

    with pytest.raises(StillHeld, match="device c0 is held by pod/uid-gone, and the kubelet"):
        await refuse(Kubelet(frozenset({""})), Ledger([nameless]), ["c0"])


@pytest.mark.parametrize(
    ("kubelet", "held_since"),
    [
        pytest.param(Kubelet(frozenset({"gone"})), "k1", id="same life: it gave the devices back"),
        pytest.param(Kubelet(frozenset({"gone"})), "", id="never seen in a checkpoint"),
        pytest.param(Kubelet(frozenset({"gone"}), life=""), "k0", id="no kubelet.sock: no other kubelet"),
    ],
)
async def test_a_device_that_the_kubelet_gives_out_again_is_given_where_it_lists_no_pod_with_it(
    kubelet: Kubelet, held_since: str
) -> None:
    await refuse(kubelet, Ledger([since(held_since)]), ["c0"])

    assert kubelet.asked == ["ids c0 of gone"]


async def test_a_device_with_which_the_kubelet_lists_a_pod_is_not_given_to_another() -> None:
    """The kubelet lets go of an ID while its Allocate is under way, if PodResources is listed just then."""
    kubelet = Kubelet(shown={"c0": ("default", "first")})

    for holder in (since("k1"), since("k1", None)):  # the owner of the last answer is known a moment later
        with pytest.raises(GivenTwice, match="device c0 is held by default/first, as the kubelet's PodRes"):
            await refuse(kubelet, Ledger([holder]), ["c1", "c0"])


async def test_a_device_of_a_pod_that_is_not_listed_is_given() -> None:
    kubelet = Kubelet()

    await refuse(kubelet, Ledger([since("k0")]), ["c0"])

    assert kubelet.asked == ["pods gone"]


@pytest.mark.parametrize(
    "known",
    [
        pytest.param([], id="no allocation"),
        pytest.param([replace(since("k0"), resource="acme.com/other")], id="of another resource"),
        pytest.param([since("k0", device_id="c1")], id="of another device"),
    ],
)
async def test_the_kubelet_is_not_asked_about_a_device_that_no_pod_is_known_to_hold(
    known: list[Allocation],
) -> None:
    kubelet = Kubelet(frozenset({"gone"}))

    await refuse(kubelet, Ledger(known), ["c0"])

    assert kubelet.asked == []


async def test_the_kubelet_is_asked_once_for_all_holders() -> None:
    """PodResources takes a call a second from the whole node."""
    kubelet = Kubelet(frozenset({"next"}))
    ledger = Ledger([since("k0"), since("k0", Owner("uid-next", "main", "default", "next"), "c1")])

    with pytest.raises(StillHeld, match="device c1 is held by default/next"):
        await refuse(kubelet, ledger, ["c0", "c1"])

    assert kubelet.asked == ["pods gone,next"]


async def test_ids_of_an_allocation_that_are_not_asked_for_refuse_nothing() -> None:
    both = replace(since("k0"), ids=("c0", "c1"))

    with pytest.raises(StillHeld, match="device c1 is held"):
        await refuse(Kubelet(frozenset({"gone"})), Ledger([both]), ["c1"])


@pytest.mark.parametrize(
    ("age", "owner", "listed", "there"),
    [
        pytest.param(SHOWN_AFTER, "web", {"web"}, True, id="listed"),
        pytest.param(SHOWN_AFTER, "web", set(), False, id="listed no more"),
        pytest.param(SHOWN_AFTER - 1, "web", set(), True, id="too young to be listed"),
        pytest.param(SHOWN_AFTER, "", set(), True, id="of a pod that is not known"),
    ],
)
async def test_a_pod_that_had_time_to_be_listed_and_is_not_is_gone(
    age: float, owner: str, listed: set[str], there: bool
) -> None:
    known = held("web", "c0") if owner else held("web", "c0", owner=None)

    assert await still_there(Kubelet(frozenset(listed)), [known], age, set()) == [known] * there


async def test_the_kubelet_is_not_asked_where_every_pod_is_young_unknown_or_the_api_servers() -> None:
    kubelet = Kubelet()
    young, unknown = held("web", "c0", since=90.0), held("job", "c1", owner=None)
    known = held("api", "c2")

    its = [young, unknown, known]
    assert await still_there(kubelet, its, 100.0, {"uid-api"}) == its

    assert kubelet.asked == []
