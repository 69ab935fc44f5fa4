"""The account of each card: which containers use how much of its memory, and what is left. Pure.

The account joins three things: what the vendors' processes said, what the node says of the processes on the
cards, and the allocations as of now. So the account of an old sample is made again when an allocation ends.
Figures that cannot be true are left out where the vendor's answer is decoded (`isolation/sample_answers.py`).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from msgspec import Struct, field, structs

from agent.core.attribution.scheduler_promises import Promises
from agent.core.usage.card_holdings import Holdings, Place
from agent.core.usage.cgroup_paths import Kind
from agent.core.usage.known_sums import sum_of, sum_of_parts
from agent.core.usage.process_owners import NodeProcess, PodName, PodNames, holder_names
from agent.core.usage.usage_report import (
    CardUse,
    ContainerUse,
    ProcessUse,
    Unattributed,
    VendorSample,
)
from agent.vendor_api.agent import ProcessUsage, Usage


class Accounts(Struct, frozen=True):
    """The accounts of all cards at one moment, as `UsageReport` has them."""

    cards: tuple[CardUse, ...] = ()
    containers: tuple[ContainerUse, ...] = ()
    processes: tuple[ProcessUse, ...] = ()
    unknown: Mapping[str, int] = field(default_factory=dict)


class KnownSample(Struct, frozen=True):
    """A sample of one vendor, with what the node says of its processes."""

    sample: VendorSample
    #: By pid. A process that has ended is not there.
    processes: Mapping[int, NodeProcess] = field(default_factory=dict)
    #: The pods that have a directory of logs, by uid.
    logs: Mapping[str, PodName] = field(default_factory=dict)
    #: Where containers had an allocation when the sample was taken.
    held: frozenset[Place] = frozenset()
    #: How many processes were left out because the vendor lists no such device.
    unlisted: int = 0


def accounts(
    samples: Mapping[str, KnownSample], promises: Promises, held: Mapping[str, Holdings]
) -> Accounts:
    """The accounts by the last sample of each vendor, and by the allocations as of now.

    `held`: the holdings of each vendor by this sample and these promises.
    """
    holders = holder_names(promises.in_use)
    found = [
        _VendorAccount(
            vendor,
            known,
            held[vendor],
            PodNames(promises.scene.candidates, holders, known.logs),
        ).made()
        for vendor, known in samples.items()
    ]
    unknown = Counter({"card": 0, "owner": 0, "memory": 0, "utilization": 0})
    for account in found:
        unknown.update(account.unknown)
    positions = {it.uuid: n for n, it in enumerate(promises.scene.snapshot.devices)}

    def position(card: CardUse) -> tuple[int, bool, int]:
        """As the cards are listed, each before its slices; what is listed no more is last."""
        own = positions.get(card.usage.uuid, len(positions))
        return own if card.parent is None else positions.get(card.parent, own), card.parent is not None, own

    return Accounts(
        tuple(sorted((it for account in found for it in account.cards), key=position)),
        tuple(it for account in found for it in account.containers),
        tuple(it for account in found for it in account.processes),
        dict(unknown),
    )


class _VendorAccount:
    """The account of one vendor's cards."""

    def __init__(self, vendor: str, known: KnownSample, holdings: Holdings, names: PodNames) -> None:
        self._vendor = vendor
        self._known = known
        self._holdings = holdings
        self._names = names
        #: Pod uid and card to the containers whose allocation there ended after the sample.
        self._over: dict[tuple[str, str], list[str]] = defaultdict(list)
        for uid, container, uuid in known.held - holdings.places:
            self._over[uid, uuid].append(container)
        self._usages = {it.uuid: it for it in reversed(known.sample.usages or ())}
        processes = known.sample.processes
        self._tells_processes = processes is not None
        self._unknown: Counter[str] = Counter(card=known.unlisted)
        self._on_card = _by_card(processes or (), holdings)

    def made(self) -> Accounts:
        charged = {uuid: _Charged() for uuid in (*self._usages, *self._on_card)}
        listed = [
            use for uuid, here in self._on_card.items() for use in self._charge(uuid, charged[uuid], here)
        ]
        containers = [*self._containers(charged)]
        by_card: Counter[str] = Counter()
        for use in containers:
            by_card[use.uuid] += use.memory or 0
        return Accounts(tuple(self._cards(charged, by_card)), tuple(containers), tuple(listed), self._unknown)

    def _charge(self, uuid: str, card: _Charged, processes: Iterable[ProcessUsage]) -> Iterator[ProcessUse]:
        """Charge the owner of each process on one card."""
        for process in processes:
            known = self._known.processes.get(process.pid)
            if known is None:  # it ended after the sample
                card.is_measured = False
                continue
            if process.utilization is None:
                self._unknown["utilization"] += 1
            if process.memory is None:
                self._unknown["memory"] += 1
                card.is_measured = False
            namespace, pod, container = "", "", ""
            if known.owner.kind is Kind.HOST:
                card.host += process.memory or 0
            elif (place := self._place(known, uuid)) is None:
                self._unknown["owner"] += 1
                card.unknown_pod += process.memory or 0
            else:
                card.containers.setdefault(place[:2], []).append(process)
                namespace, pod = self._names.of(place[0]) or ("", "")
                container = place[1]
            yield ProcessUse(
                process.pid,
                uuid,
                known.name,
                namespace,
                pod,
                container,
                process.memory,
                process.utilization,
            )

    def _place(self, process: NodeProcess, uuid: str) -> Place | None:
        """The container that is charged for the process; None where it is not known."""
        uid = process.owner.uid
        if process.owner.kind is not Kind.POD or self._names.of(uid) is None:
            return None
        holders = self._holdings.by_pod.get((uid, uuid), ())
        container = self._names.container(process.owner, holders)
        if container in holders:
            return uid, container, uuid
        # The allocation by which it got the card is over, so the container is shown no more.
        over = self._over.get((uid, uuid), ())
        is_over = container in over or (not container and not holders and over)
        return None if is_over else (uid, container, uuid)

    def _containers(self, charged: Mapping[str, _Charged]) -> Iterator[ContainerUse]:
        """The use of each container that has an allocation or a process on a card."""
        using = ((*key, uuid) for uuid, card in charged.items() for key in card.containers)
        for place in dict.fromkeys((*self._holdings.by_place, *using)):
            uid, container, uuid = place
            name = self._names.of(uid)
            if name is None:
                continue
            card = charged.get(uuid) or _Charged()
            processes = card.containers.get((uid, container), [])
            # A process of the pod whose container is not known may be this one's.
            is_known = self._tells_processes and (bool(processes) or (uid, "") not in card.containers)
            allocations = self._holdings.by_place.get(place, ())
            limits = self._holdings.limits(place)
            yield ContainerUse(
                *name,
                uid,
                container,
                self._vendor,
                uuid,
                allocations[0].resource if allocations else "",
                len(processes),
                self._memory(processes) if is_known else None,
                self._utilization(uuid, processes) if is_known else None,
                limits.memory,
                limits.compute,
            )

    @staticmethod
    def _memory(processes: Sequence[ProcessUsage]) -> int | None:
        return sum_of(it.memory for it in processes) if processes else 0

    def _utilization(self, uuid: str, processes: Sequence[ProcessUsage]) -> float | None:
        """The part of the card that these processes use; where none is there, 0 if it can be told."""
        if not processes:
            on_card = self._on_card.get(uuid, ())
            return 0.0 if not on_card or any(it.utilization is not None for it in on_card) else None
        return sum_of_parts(it.utilization for it in processes)

    def _cards(self, charged: Mapping[str, _Charged], by_card: Mapping[str, int]) -> Iterator[CardUse]:
        known = ((uuid, self._holdings.parents.get(uuid, uuid)) for uuid in charged)
        parents = {uuid: parent for uuid, parent in known if parent != uuid}
        in_slices: Counter[str] = Counter()
        for uuid, parent in parents.items():
            if parent in charged:
                card = charged[uuid]
                used = self._usage(uuid).memory_used
                if used is None:
                    used = by_card[uuid] + card.host + card.unknown_pod
                    charged[parent].is_measured = False
                in_slices[parent] += used
        for uuid, card in charged.items():
            account = self._card(self._usage(uuid), card, by_card[uuid], in_slices[uuid])
            yield structs.replace(account, parent=parents.get(uuid))

    def _card(self, usage: Usage, card: _Charged, containers: int, in_slices: int) -> CardUse:
        unattributed: dict[Unattributed, int] = {}
        overcounted = 0
        if self._tells_processes:
            unattributed = {Unattributed.HOST: card.host, Unattributed.UNKNOWN_POD: card.unknown_pod}
        if usage.memory_used is not None:
            rest = usage.memory_used - containers - in_slices - sum(unattributed.values())
            overcounted = max(0, -rest)
            is_measured = card.is_measured and self._tells_processes
            kind = Unattributed.DRIVER if is_measured else Unattributed.UNMEASURED
            unattributed[kind] = max(0, rest)
        return CardUse(self._vendor, usage, None, unattributed, overcounted, in_slices)

    def _usage(self, uuid: str) -> Usage:
        return self._usages.get(uuid) or Usage(uuid)


class _Charged:
    """What the processes on one card are charged to, so far."""

    def __init__(self) -> None:
        #: Pod uid and container to its processes.
        self.containers: dict[tuple[str, str], list[ProcessUsage]] = {}
        self.host = 0
        self.unknown_pod = 0
        #: Whether the memory of each process is known.
        self.is_measured = True


def _by_card(processes: Iterable[ProcessUsage], holdings: Holdings) -> Mapping[str, Collection[ProcessUsage]]:
    """The processes on each card, each once there: a process can be in several lists."""
    by_pid: dict[str, dict[int, ProcessUsage]] = defaultdict(dict)
    for process in processes:
        uuid = holdings.card_of(process.uuid)
        here = by_pid[uuid]
        same = here.get(process.pid)
        here[process.pid] = process if same is None else _merged(process, same)
    return {uuid: here.values() for uuid, here in by_pid.items()}


def _merged(process: ProcessUsage, same: ProcessUsage) -> ProcessUsage:
    """One process by two lists."""
    memory = max((it for it in (process.memory, same.memory) if it is not None), default=None)
    parts = (it for it in (process.utilization, same.utilization) if it is not None)
    return ProcessUsage(process.uuid, process.pid, memory, max(parts, default=None))
