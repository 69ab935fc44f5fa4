"""What must hold whatever happened: checked on one look at both sides. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

#: A pod's container and resource.
Place = tuple[str, str, str]
Counts = Mapping[str, tuple[int, int]]


@dataclass(frozen=True, slots=True)
class Violation:
    kind: str
    text: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.text}"


@dataclass(frozen=True, slots=True)
class Look:
    """Both sides and the truth at one moment."""

    #: The kubelet's: who holds which IDs, of the pods that live; capacity and allocatable.
    held: Mapping[Place, frozenset[str]] = field(default_factory=dict)
    counts: Counts = field(default_factory=dict)
    #: Ours, as `inspect` shows it; empty while nobody answers.
    document: Mapping[str, Any] = field(default_factory=dict)
    #: The truth: containers that were admitted with how many of what, capacity and allocatable, cards that
    #: are broken or cordoned, and slices that others made.
    admitted: Mapping[Place, int] = field(default_factory=dict)
    expected: Counts = field(default_factory=dict)
    broken: frozenset[str] = frozenset()
    cordoned: frozenset[str] = frozenset()
    foreign: frozenset[str] = frozenset()
    #: What is made on the hardware.
    slices: Sequence[Mapping[str, Any]] = ()
    #: Resources whose hardware is made.
    prepared: frozenset[str] = frozenset()

    @property
    def in_use(self) -> list[Mapping[str, Any]]:
        return [it for it in self.document.get("allocations", ()) if it["state"] != "released"]


@dataclass(frozen=True, slots=True)
class Told:
    """What a container that starts now is told: its allocation and its cards."""

    place: Place
    allocation: str
    cards: frozenset[str]


def violations(look: Look) -> list[Violation]:
    """Everything that does not hold."""
    if not look.document:
        return [Violation("away", "the agent shows nothing")]
    return [
        *_doubled(look),
        *_shared(look),
        *_lost(look),
        *_leaked(look),
        *_slices(look),
        *_view(look),
        *_forgotten(look),
    ]


def swapped(look: Look, told: Sequence[Told]) -> Iterator[Violation]:
    """A container is told of what is not its own."""
    by_id = {it["id"]: it for it in look.in_use}
    for one in told:
        uid, container, resource = one.place
        it = by_id.get(one.allocation)
        if it is None:
            yield Violation(
                "swapped",
                f"{_where(one.place)} starts with {one.allocation or 'no mark'}, which is not in use",
            )
            continue
        owner = it["owner"] or {}
        if (owner.get("uid"), owner.get("container"), it["resource"]) != (uid, container, resource):
            yield Violation(
                "swapped", f"{_where(one.place)} starts with {one.allocation} of {owner or 'nobody'}"
            )
        if frozenset(it["devices"]) != one.cards:
            yield Violation("swapped", f"{_where(one.place)} sees {sorted(one.cards)}, not {it['devices']}")


def _doubled(look: Look) -> Iterator[Violation]:
    """A device ID with two living owners, on either side."""
    holders: dict[tuple[str, str], set[str]] = defaultdict(set)
    for (uid, _, resource), ids in look.held.items():
        for it in ids:
            holders[resource, it].add(uid)
    for (resource, it), uids in holders.items():
        if len(uids) > 1:
            yield Violation("doubled", f"the kubelet: {resource} {it} is held by {sorted(uids)}")
    living = {uid for uid, _, _ in look.admitted}
    owners: dict[tuple[str, str], set[str]] = defaultdict(set)
    for allocation in look.in_use:
        owner = (allocation["owner"] or {}).get("uid")
        if owner in living:
            for it in allocation["ids"]:
                owners[allocation["resource"], it].add(owner)
    for (resource, it), uids in owners.items():
        if len(uids) > 1:
            yield Violation("doubled", f"ours: {resource} {it} is held by {sorted(uids)}")


def _shared(look: Look) -> Iterator[Violation]:
    """A card that two resources have given out."""
    living = {uid for uid, _, _ in look.admitted}
    resources: dict[str, set[str]] = defaultdict(set)
    for it in look.in_use:
        if (it["owner"] or {}).get("uid") in living:
            for card in it["devices"]:
                resources[card].add(it["resource"])
    for card, names in resources.items():
        if len(names) > 1:
            yield Violation("doubled", f"ours: {card} is given out as {sorted(names)}")


def _lost(look: Look) -> Iterator[Violation]:
    """A living owner without its devices."""
    ours: dict[Place, list[Mapping[str, Any]]] = defaultdict(list)
    for it in look.in_use:
        owner = it["owner"] or {}
        ours[owner.get("uid") or "", owner.get("container") or "", it["resource"]].append(it)
    for place, count in look.admitted.items():
        held = look.held.get(place, frozenset())
        if len(held) != count:
            yield Violation("lost", f"the kubelet: {_where(place)} has {len(held)} of its {count}")
        found = ours.get(place, [])
        if len(found) != 1:
            yield Violation("lost", f"ours: {_where(place)} has {len(found)} allocations in use, not one")
        for it in found:
            if frozenset(it["ids"]) != held:
                yield Violation(
                    "swapped", f"{_where(place)} has {it['ids']} with us, {sorted(held)} with the kubelet"
                )
            if it["state"] != "done":
                yield Violation("lost", f"ours: {_where(place)}: {it['id']} is {it['state']}")


def _leaked(look: Look) -> Iterator[Violation]:
    """An allocation in use without a living pod."""
    for it in look.in_use:
        owner = it["owner"] or {}
        if (owner.get("uid"), owner.get("container"), it["resource"]) not in look.admitted:
            yield Violation("leaked", f"{it['id']} ({it['state']}) of {owner or 'nobody'} is in use")


def _slices(look: Look) -> Iterator[Violation]:
    """Slices of ours without an allocation, allocations without their slices, foreign ones touched."""
    there = {it["id"] for it in look.slices}
    for missing in sorted(look.foreign - there):
        yield Violation("foreign", f"the slice {missing} of somebody else is gone")
    in_use = {it["id"]: it for it in look.in_use}
    for it in look.slices:
        if it["allocation"] is None and it["id"] not in look.foreign:
            yield Violation("leaked", f"the slice {it['id']} on {it['uuid']} has no mark, and is nobody's")
        if it["allocation"] is not None and it["allocation"] not in in_use:
            yield Violation("leaked", f"the slice {it['id']} on {it['uuid']} has no allocation")
    for allocation in in_use.values():
        if allocation["resource"] in look.prepared:
            made = Counter(it["uuid"] for it in look.slices if it["allocation"] == allocation["id"])
            if made != Counter(allocation["devices"]):
                yield Violation(
                    "lost", f"{allocation['id']} has slices on {dict(made)}, not {allocation['devices']}"
                )


def _view(look: Look) -> Iterator[Violation]:
    """The kubelet's view, ours and the truth are one."""
    ours = {it["name"]: (it["capacity"], it["allocatable"]) for it in look.document["resources"]}
    for name, wanted in look.expected.items():
        if look.counts.get(name) != wanted:
            yield Violation("view", f"the kubelet counts {look.counts.get(name)} of {name}, true is {wanted}")
        if ours.get(name) != wanted:
            yield Violation("view", f"we count {ours.get(name)} of {name}, true is {wanted}")
    for name in ours.keys() - look.expected.keys():
        yield Violation("view", f"we offer {name}, which nobody configured")
    if not look.document["ready"]:
        yield Violation("view", f"not ready: {look.document['troubles']}")


def _forgotten(look: Look) -> Iterator[Violation]:
    """A fault that only a reset clears is over without one."""
    for it in look.document["devices"]:
        if it["uuid"] in look.broken and it["health"]["state"] != "unhealthy":
            yield Violation("forgotten", f"{it['uuid']} is {it['health']['state']}, nobody reset it")
        if (it["uuid"] in look.cordoned) != bool(it["cordon"]):
            yield Violation("forgotten", f"{it['uuid']}: cordon is {it['cordon']}")


def _where(place: Place) -> str:
    uid, container, resource = place
    return f"{uid}/{container} ({resource})"
