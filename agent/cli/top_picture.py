"""What one picture of `top` is made of: cards with their use, and containers, also without sampling."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from agent.cli.inspect_cells import place, pod
from agent.core.errors import AgentError
from agent.http.admin_client import ask, fetch_document
from agent.http.inspect_document import InspectDocument, InspectedDevice
from agent.http.usage.usage_document import UsageDocument, UsedCard, UsingContainer, decode


@dataclass(frozen=True, slots=True)
class ShownCard:
    """A card, or slice, and its use where that is known."""

    device: InspectedDevice
    use: UsedCard | None = None

    @property
    def place(self) -> str:
        return f"{self.device.vendor} {place(self.device)}"


@dataclass(frozen=True, slots=True)
class ShownContainer:
    """A container, or what is no container's, on one card. None: not known."""

    name: str
    card: str
    container: str = ""
    memory: int | None = None
    memory_limit: int | None = None
    utilization: float | None = None
    compute_limit: float | None = None
    idle: float | None = None  # seconds
    processes: int | None = None
    #: Names of the processes, each once.
    programs: tuple[str, ...] = ()
    is_container: bool = True


@dataclass(frozen=True, slots=True)
class Picture:
    """The agent's documents at one moment."""

    document: InspectDocument
    #: None where use is not sampled.
    usage: UsageDocument | None = None
    #: Why there is no use, or what is wrong with the sampling of vendors.
    remarks: tuple[str, ...] = ()

    @property
    def cards(self) -> Sequence[ShownCard]:
        """All cards with their use."""
        uses = {it.uuid: it for it in self.usage.cards} if self.usage else {}
        return [ShownCard(device, uses.get(device.uuid)) for device in self.document.devices]

    def containers(self, sort: str = "card") -> Sequence[ShownContainer]:
        """The containers that use cards or have allocations, then what no container is charged for."""
        places = {card.device.uuid: card.place for card in self.cards}
        order = {place: number for number, place in enumerate(places.values())}
        found = [*self._using(places), *self._without_use(places)]
        found.sort(key=lambda it: (order.get(it.card, len(order)), it.name, it.container))
        if sort != "card":
            found.sort(key=_BY[sort], reverse=True)
        return [*found, *self._unattributed()]

    def _using(self, places: Mapping[str, str]) -> Iterator[ShownContainer]:
        if self.usage is None:
            return
        programs: dict[tuple[str, ...], dict[str, None]] = {}
        for process in self.usage.processes or ():
            key = (process.namespace, process.pod, process.container, process.uuid)
            programs.setdefault(key, {})[process.name] = None
        for use in self.usage.containers:
            key = (use.namespace, use.pod, use.container, use.uuid)
            yield _shown(use, places.get(use.uuid, use.uuid), tuple(filter(None, programs.get(key, ()))))

    def _without_use(self, places: Mapping[str, str]) -> Iterator[ShownContainer]:
        """The allocations with no known use: their vendors do not tell processes, or nothing is sampled.

        The use in the other document is of another moment: by that one a container may be shown twice.
        """
        containers = self.usage.containers if self.usage else ()
        known = {(it.uid, it.container, it.resource) for it in containers}
        for allocation in self.document.in_use:
            owner = allocation.owner
            if owner and (owner.uid, owner.container, allocation.resource) in known:
                continue
            name, container = pod(owner) or "owner not known yet", owner.container if owner else ""
            for uuid in allocation.devices:
                yield ShownContainer(name, places.get(uuid, uuid), container)

    def _unattributed(self) -> Iterable[ShownContainer]:
        for card in self.cards:
            for kind, count in sorted(card.use.unattributed_bytes.items()) if card.use else ():
                if count:
                    yield ShownContainer(f"({kind})", card.place, memory=count, is_container=False)


_BY: Mapping[str, Callable[[ShownContainer], float]] = {
    "memory": lambda it: -1 if it.memory is None else it.memory,
    "utilization": lambda it: -1 if it.utilization is None else it.utilization,
    "idle": lambda it: -1 if it.idle is None else it.idle,
}


def _shown(use: UsingContainer, place: str, programs: tuple[str, ...]) -> ShownContainer:
    return ShownContainer(
        name="/".join(filter(None, (use.namespace, use.pod))) or use.uid,
        card=place,
        container=use.container,
        memory=use.memory_bytes,
        memory_limit=use.memory_limit_bytes,
        utilization=use.utilization,
        compute_limit=use.compute_limit,
        idle=use.idle_seconds,
        processes=use.processes,
        programs=programs,
    )


def take(socket: Path) -> Picture:
    """A picture of the agent behind the admin socket.

    Raises:
        CannotAsk: No agent answers.
    """
    document = fetch_document(socket)
    try:
        usage = decode(fetch_use(socket))
    except NoUse as refused:
        return Picture(document, remarks=(str(refused),))
    except msgspec.MsgspecError as exc:
        raise UnreadableUsage(f"/inspect/usage was answered with something else: {exc}") from exc
    return Picture(document, usage, tuple(_remarks(usage)))


def fetch_use(socket: Path) -> bytes:
    """The document of use of the agent behind the admin socket.

    Raises:
        CannotAsk: No agent answers.
        NoUse: The agent has no such document.
    """
    status, body = ask(socket, "GET", "/inspect/usage")
    if status != 200:
        raise NoUse(" ".join(body.decode("utf-8", "replace").split()) or f"/inspect/usage: {status}")
    return body


class NoUse(AgentError):
    """Raised when the agent answers that there is no document of use; the text is the agent's."""


class UnreadableUsage(AgentError):
    """Raised when the answer of the agent is no document of use."""


def _remarks(usage: UsageDocument) -> Iterator[str]:
    for vendor in usage.sampling:
        if vendor.error or not vendor.up:
            error = vendor.error.removeprefix(f"{vendor.vendor}: ")  # many errors begin with the vendor
            is_said = not vendor.ended or "sampling has ended" in error
            why = "; ".join(filter(None, ("" if is_said else "the sampling has ended", error)))
            state = "" if vendor.up else "no new sample"
            yield f"{vendor.vendor}: {': '.join(filter(None, (state, why)))}"
    lacking = [f"{what} of {_processes(count)}" for what, count in sorted(usage.unknown.items()) if count]
    if lacking:
        yield f"not known: {', '.join(lacking)}"


def _processes(count: int) -> str:
    return f"{count} process" if count == 1 else f"{count} processes"
