"""The kubelet's book of devices: what each list says, who holds what, and the file that outlives it.

As pkg/kubelet/cm/devicemanager has it: IDs are counted by resource name alone, those of pods that have ended
are free at the next admission, and the file is written at each list and after each answer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from agent.kubelet.container_edit_messages import response
from agent.kubelet.pb.deviceplugin.v1beta1 import ContainerAllocateResponse
from agent.testing.simkubelet.checkpoint_bytes import Checkpoint, encode
from agent.testing.simkubelet.holdings import NO_NODE, Holding
from agent.vendor_api.agent import ContainerEdits


@dataclass(frozen=True, slots=True)
class Entry:
    """What a container holds of a resource, and what its plugin answered."""

    uid: str
    container: str
    resource: str
    ids: tuple[str, ...]
    answer: ContainerEdits

    @property
    def place(self) -> tuple[str, str, str]:
        return self.uid, self.container, self.resource

    @property
    def holding(self) -> Holding:
        answer = ContainerAllocateResponse.parse(response(self.answer))
        return Holding(self.uid, self.container, self.resource, {NO_NODE: [*self.ids]}, answer)


@dataclass
class Kubelet:
    """`lists`: resource to device ID to whether it is healthy, as the last list said."""

    life: int = 1
    #: When this life served its socket, and listed its pods.
    began: float = 0.0
    books: list[Entry] = field(default_factory=list)
    lists: dict[str, Mapping[str, bool]] = field(default_factory=dict)
    disk: bytes = b""
    #: Each file that it wrote, and what it held then.
    written: list[tuple[bytes, tuple[Entry, ...]]] = field(default_factory=list)
    #: Since when a plugin is registered; None while none is.
    registered: float | None = None

    def write(self) -> None:
        healthy = {name: [it for it, well in ids.items() if well] for name, ids in self.lists.items()}
        self.disk = encode(Checkpoint([it.holding for it in self.books], healthy))
        self.written.append((self.disk, tuple(self.books)))

    def hears(self, resource: str, ids: Mapping[str, bool], now: float) -> None:
        """Take in a list."""
        if self.lists.get(resource) != ids:
            self.lists[resource] = ids
            self.write()
        self.registered = now if self.registered is None else self.registered

    def frees(self, living: frozenset[str]) -> None:
        self.books = [it for it in self.books if it.uid in living]

    def free(self, resource: str) -> list[str]:
        """Healthy IDs that nobody holds, in an order that says nothing."""
        taken = {one for it in self.books if it.resource == resource for one in it.ids}
        return sorted(it for it, well in self.lists.get(resource, {}).items() if well and it not in taken)

    def gives(self, entry: Entry) -> None:
        self.books.append(entry)
        self.write()

    def begins(self, books: Sequence[Entry], now: float) -> None:
        """A new life, with what the file said."""
        self.life += 1
        self.began = now
        self.books = [*books]
        self.lists = {}
        self.registered = None
