"""What can be refused, as a tree. Each error words itself from what it was given.

AgentError
├── ConfigError
├── AllocationError
│   ├── UnknownResource
│   ├── UnknownDevice
│   ├── CordonedDevice
│   ├── FormerDevice
│   ├── UnhealthyDevice
│   ├── GivenTwice
│   ├── InOtherMode
│   ├── InsufficientMemory
│   ├── InsufficientRoom
│   ├── InsufficientShares
│   ├── InvalidRequest
│   ├── LimitsUnread
│   ├── NotAllocated
│   ├── NotPromised
│   ├── NotServable
│   ├── PromisedElsewhere
│   ├── PromisedMoreCards
│   ├── RetiredResource
│   ├── StartRefused
│   └── StillHeld
├── ListTooLong
├── NoSuchDevice
├── NotOnDisk
├── NotServing
├── StateError
├── UsageError
└── VendorError
    ├── VendorTimeout
    └── VendorCrashed
"""

from __future__ import annotations

from collections.abc import Sequence

from agent.vendor_api.text import shorten


class AgentError(Exception):
    """Base of everything the agent refuses or fails at on purpose."""


class ConfigError(AgentError):
    """Raised when a configuration cannot be used; the text says where and what would work."""


class UsageError(AgentError):
    """Raised when a verb is called in a way that cannot work; the text says what would."""


class AllocationError(AgentError):
    """Raised when an Allocate is refused; the kubelet shows the text on the pod."""


class UnknownResource(AllocationError):
    def __init__(self, resource: str) -> None:
        super().__init__(f'invalid allocation request for "{resource}": the resource is not served here')


class RetiredResource(AllocationError):
    def __init__(self, resource: str, successors: Sequence[str]) -> None:
        instead = (
            f"; ask for {' or '.join(successors)}, which has its cards as they get free" if successors else ""
        )
        super().__init__(
            f'invalid allocation request for "{resource}": the config has it no more, '
            f"it is listed only for the pods that hold it{instead}"
        )


class FormerDevice(AllocationError):
    def __init__(self, resource: str, device_id: str) -> None:
        super().__init__(
            f'invalid allocation request for "{resource}": {shorten(device_id)} is listed only for the pod '
            f"that held it: its card is given out in another way once no pod has it like that"
        )


class UnknownDevice(AllocationError):
    def __init__(self, resource: str, device_id: str) -> None:
        super().__init__(
            f'invalid allocation request for "{resource}": '
            f"invalid request: unknown device: {shorten(device_id)}"
        )


class CordonedDevice(AllocationError):
    def __init__(self, resource: str, device_id: str, author: str, reason: str) -> None:
        told = f"{author}: {reason}" if reason else author
        super().__init__(
            f'invalid allocation request for "{resource}": device {shorten(device_id)} is cordoned by {told}'
        )


class UnhealthyDevice(AllocationError):
    def __init__(self, resource: str, device_id: str, reason: str) -> None:
        super().__init__(
            f'invalid allocation request for "{resource}": device {shorten(device_id)} is unhealthy: {reason}'
        )


class InOtherMode(AllocationError):
    """Raised when the kubelet has not heard yet that a card went to another resource that offers it, too."""

    def __init__(self, resource: str, uuid: str, mode: str, holder: str = "") -> None:
        whose = f" to {holder}" if holder else ""
        super().__init__(
            f'invalid allocation request for "{resource}": card {shorten(uuid)} is in-other-mode: it is '
            f"given out as {mode}{whose}, until nobody has it so; create this pod anew to get another card"
        )


class InvalidRequest(AllocationError):
    def __init__(self, resource: str, why: str) -> None:
        super().__init__(f'invalid allocation request for "{resource}": invalid request: {why}')


class NotAllocated(AllocationError):
    def __init__(self, resource: str, ids: Sequence[str]) -> None:
        shown = ", ".join(shorten(it) for it in ids[:3]) + (", ..." if len(ids) > 3 else "")
        super().__init__(
            f"{resource}: no allocation here holds {shown}; "
            "if this stays so, delete the pod: its controller creates it anew"
        )


class StillHeld(AllocationError):
    def __init__(self, resource: str, device_id: str, namespace: str, pod: str) -> None:
        super().__init__(
            f'invalid allocation request for "{resource}": device {shorten(device_id)} is held by '
            f"{namespace}/{pod}, of which the kubelet has lost its record; delete that pod to free it"
        )


class GivenTwice(AllocationError):
    def __init__(self, resource: str, device_id: str, namespace: str, pod: str) -> None:
        super().__init__(
            f'invalid allocation request for "{resource}": device {shorten(device_id)} is held by '
            f"{namespace}/{pod}, as the kubelet's PodResources shows; create this pod anew to get another"
        )


class NotPromised(AllocationError):
    """`such_as`: a scheduler that chooses cards, as a clause; empty where none is known."""

    def __init__(self, resource: str, why: str, such_as: str) -> None:
        example = f", such as {such_as}" if such_as else ""
        super().__init__(
            f'invalid allocation request for "{resource}": no scheduler has chosen a card for it: {why}; '
            f"the resource's placement is 'claim': create this pod anew with a schedulerName that chooses"
            f"{example}"
        )


class NotServable(AllocationError):
    """Raised when a vendor refuses a request as it is, in its own words; asking again does not change it."""

    def __init__(self, resource: str, why: str) -> None:
        super().__init__(f'invalid allocation request for "{resource}": {why}')
        self.why = why


class PromisedElsewhere(AllocationError):
    def __init__(self, resource: str, cards: Sequence[str], why: str) -> None:
        super().__init__(
            f'invalid allocation request for "{resource}": the kubelet gave {_some(cards)}, {why}; '
            "create this pod anew to have its card chosen again"
        )


class PromisedMoreCards(AllocationError):
    """Raised when a scheduler chose more cards than IDs are asked for; `fewer` is what would have it not."""

    def __init__(self, resource: str, pod: str, wanted: int, cards: Sequence[str], fewer: str) -> None:
        chosen = f"{len(cards)} cards were chosen for {pod} ({_some(cards)})"
        super().__init__(
            f'invalid allocation request for "{resource}": {wanted} asked for, and {chosen}, of which each '
            f"needs one of its own: create this pod anew with {len(cards)} of {resource}, or with {fewer}"
        )


class InsufficientMemory(AllocationError):
    """`shortage` is the vendor's own word for it; `largest` the card with most free units, and how many."""

    def __init__(
        self, resource: str, shortage: str, wanted: int, unit: str, largest: tuple[str, int] | None
    ) -> None:
        asked = "1 unit" if wanted == 1 else f"{wanted} units"
        super().__init__(
            f'invalid allocation request for "{resource}": {shortage}: {asked} of {unit} GiB asked for, '
            f"{_largest(largest)}; units of one container lie on one card"
        )


class InsufficientRoom(AllocationError):
    """Raised when slices on a card are in the way of a request, in its vendor's words; they may be over."""

    def __init__(self, resource: str, why: str) -> None:
        super().__init__(f'invalid allocation request for "{resource}": {why}')
        self.why = why


class StartRefused(AllocationError):
    """Raised when a container cannot start with what its pod asks for, which showed after its Allocate."""

    def __init__(self, resource: str, uid: str, namespace: str, pod: str, container: str, why: str) -> None:
        self.uid, self.namespace, self.pod = uid, namespace, pod
        super().__init__(
            f"{resource}: container {shorten(container)} of {namespace}/{pod} cannot start on the card that "
            f"the pod was admitted to: {why}; delete the pod: its controller creates it anew"
        )


class LimitsUnread(AllocationError):
    """Raised when a container starts whose limits decide what it gets, and whose pod is not known yet."""

    def __init__(self, resource: str, uid: str, container: str) -> None:
        super().__init__(
            f"{resource}: what container {shorten(container)} asks for is not known, for its pod "
            f"({shorten(uid)}) is not among those that the API server has told of; the kubelet tries again"
        )


class InsufficientShares(AllocationError):
    """`largest` is the card with most free shares, and how many."""

    def __init__(self, resource: str, wanted: int, largest: tuple[str, int] | None) -> None:
        super().__init__(
            f'invalid allocation request for "{resource}": {wanted} asked for, {_largest(largest)}; those of '
            "one container lie on one card"
        )


def _largest(card: tuple[str, int] | None) -> str:
    return f"the largest free card has {card[1]} ({shorten(card[0])})" if card else "no card is free"


class ListTooLong(AgentError):
    """Raised when a device list would not fit into what the kubelet receives."""

    def __init__(self, resource: str, ids: int, size: int, limit: int, remedy: str) -> None:
        super().__init__(
            f"{resource}: {ids} IDs make a list of {size} bytes, the kubelet takes {limit}; {remedy}"
        )


class NoSuchDevice(AgentError):
    """Raised when an operator names a device that is not known, or not clearly one."""

    def __init__(self, named: str, found: Sequence[str], known: Sequence[str]) -> None:
        begins = f"'{shorten(named)}' begins several devices: {_some(found)}; give more of it"
        unknown = f"no device '{shorten(named)}' here; there is {_some(known) or 'none'}"
        super().__init__(begins if found else unknown)


class NotServing(AgentError):
    """Raised when an operator's command comes to an agent that stands by: it knows no device."""

    def __init__(self, holder: str) -> None:
        super().__init__(f"standing by, {holder} serves this node")


class NotOnDisk(AgentError):
    """Raised when an operator's command holds and could not be written: it ends with the agent."""

    def __init__(self, done: str, error: str) -> None:
        super().__init__(f"{done}, but only until the agent ends: it is not on disk: {error}")


class StateError(AgentError):
    """Raised when what the agent saved cannot be read; a person must mend it or move it away."""

    def __init__(self, path: object, found: str) -> None:
        super().__init__(f"{path}: {found}; mend it, or move it away to start without it")


class VendorError(AgentError):
    """Raised when a vendor's process could not answer."""


class VendorAbsent(VendorError):
    """Raised when this node never showed anything of the vendor: there is no hardware to ask for."""


class VendorTimeout(VendorError):
    def __init__(self, vendor: str, call: str, seconds: float) -> None:
        super().__init__(f"{vendor}: {call} did not return within {seconds:g} s")


class VendorCrashed(VendorError):
    def __init__(self, vendor: str, how: str) -> None:
        super().__init__(f"{vendor}: the vendor's process ended: {how}")


def _some(names: Sequence[str]) -> str:
    return ", ".join(shorten(it) for it in names[:8]) + (", ..." if len(names) > 8 else "")
