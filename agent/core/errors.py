"""All errors of the agent. Each error makes its own message from its arguments."""

from __future__ import annotations

from collections.abc import Sequence

from agent.core.named_list import named_list
from agent.vendor_api.text import shorten

#: Cards or devices that a text names; the others are counted.
MAX_NAMED = 8


class AgentError(Exception):
    """Base class of all errors that the agent raises on purpose."""


class ConfigError(AgentError):
    """Raised when a configuration cannot be used. The text says where, and which value would work."""


class UsageError(AgentError):
    """Raised when a command is called in a way that cannot work. The text says which way would work."""


class AllocationError(AgentError):
    """Raised when an Allocate is refused; the kubelet shows the text on the pod."""


class UnknownResource(AllocationError):
    """Raised when the agent does not serve the resource."""

    def __init__(self, resource: str) -> None:
        super().__init__(f'invalid allocation request for "{resource}": the resource is not served here')


class RetiredResource(AllocationError):
    """Raised when the config no longer has the resource. `successors` are the resources with its cards."""

    def __init__(self, resource: str, successors: Sequence[str]) -> None:
        instead = (
            f"; ask for {' or '.join(successors)}, which gets its cards as they become free"
            if successors
            else ""
        )
        super().__init__(
            f'invalid allocation request for "{resource}": the config no longer has this resource, which is '
            f"listed only for the pods that hold it{instead}"
        )


class OutdatedDevice(AllocationError):
    """Raised for an ID that is listed only until its pod ends, because its card is shared otherwise now."""

    def __init__(self, resource: str, device_id: str) -> None:
        super().__init__(
            f'invalid allocation request for "{resource}": device {shorten(device_id)} is listed only for '
            "the pod that held it: the config shares its card in another way now"
        )


class UnknownDevice(AllocationError):
    """Raised when no card has this ID."""

    def __init__(self, resource: str, device_id: str) -> None:
        super().__init__(
            f'invalid allocation request for "{resource}": '
            f"invalid request: unknown device: {shorten(device_id)}"
        )


class CordonedDevice(AllocationError):
    """Raised when an operator has cordoned the card."""

    def __init__(self, resource: str, device_id: str, author: str, reason: str) -> None:
        by = f"{author}: {reason}" if reason else author
        super().__init__(
            f'invalid allocation request for "{resource}": device {shorten(device_id)} is cordoned by {by}'
        )


class UnhealthyDevice(AllocationError):
    """Raised when the card of the ID is unhealthy."""

    def __init__(self, resource: str, device_id: str, reason: str) -> None:
        super().__init__(
            f'invalid allocation request for "{resource}": device {shorten(device_id)} is unhealthy: {reason}'
        )


class ClosedDevice(AllocationError):
    """Raised when no new pod gets the card of the ID, though the card is healthy; `why` says until when."""

    def __init__(self, resource: str, device_id: str, why: str) -> None:
        super().__init__(
            f'invalid allocation request for "{resource}": device {shorten(device_id)} is closed to new '
            f"pods: {why}"
        )


class InOtherMode(AllocationError):
    """Raised when a pod has the card by another resource `mode`, and the kubelet does not know this yet."""

    def __init__(self, resource: str, uuid: str, mode: str, holder: str = "") -> None:
        to = f" to {holder}" if holder else ""
        super().__init__(
            f'invalid allocation request for "{resource}": card {shorten(uuid)} is in-other-mode: it is '
            f"given out as {mode}{to} until that use ends; create the pod again to get another card"
        )


class InvalidRequest(AllocationError):
    """Raised when a request breaks a rule of the resource; `why` is the rule."""

    def __init__(self, resource: str, why: str) -> None:
        super().__init__(f'invalid allocation request for "{resource}": invalid request: {why}')


class NotAllocated(AllocationError):
    """Raised at PreStartContainer for IDs that no allocation in the ledger has."""

    def __init__(self, resource: str, ids: Sequence[str]) -> None:
        shown = ", ".join(shorten(it) for it in ids[:3]) + (", ..." if len(ids) > 3 else "")
        super().__init__(
            f"{resource}: no allocation on this node has {shown}; "
            "if this stays so, delete the pod: its controller creates it again"
        )


class StillHeld(AllocationError):
    """Raised for an ID that the kubelet regards as free while the pod that has it, `holder`, still runs."""

    def __init__(self, resource: str, device_id: str, holder: str) -> None:
        super().__init__(
            f'invalid allocation request for "{resource}": device {shorten(device_id)} is held by {holder}, '
            "and the kubelet has lost its record of that; delete that pod to free it"
        )


class GivenTwice(AllocationError):
    """Raised when the kubelet assigns an ID that, by its own PodResources, another pod has."""

    def __init__(self, resource: str, device_id: str, namespace: str, pod: str) -> None:
        super().__init__(
            f'invalid allocation request for "{resource}": device {shorten(device_id)} is held by '
            f"{namespace}/{pod}, as the kubelet's PodResources shows; create the pod again to get another "
            "device"
        )


class NotPromised(AllocationError):
    """Raised when no scheduler has chosen a card for the pod, and the resource's placement demands one.

    `such_as`: a scheduler that chooses cards, as a clause; empty where none is known.
    """

    def __init__(self, resource: str, why: str, such_as: str) -> None:
        example = f", such as {such_as}" if such_as else ""
        super().__init__(
            f'invalid allocation request for "{resource}": no scheduler has chosen a card for this pod: '
            f"{why}; the resource's placement is 'claim': create the pod again with a schedulerName that "
            f"chooses{example}"
        )


class NotServable(AllocationError):
    """Raised when a vendor refuses a request for good. `why` is the vendor's own text."""

    def __init__(self, resource: str, why: str) -> None:
        super().__init__(
            f'invalid allocation request for "{resource}": the vendor refuses the request: {why}'
        )
        self.why = why


class PromisedElsewhere(AllocationError):
    """Raised when the kubelet assigned other cards than the scheduler chose, and no swap can mend this."""

    def __init__(self, resource: str, cards: Sequence[str], why: str) -> None:
        super().__init__(
            f'invalid allocation request for "{resource}": the kubelet gave {_shortened(cards)}, {why}; '
            "create the pod again to let the scheduler choose its card again"
        )


class PromisedMoreCards(AllocationError):
    """Raised when a scheduler chose more cards than the pod requests IDs.

    `fewer` says which request would make the scheduler choose fewer cards.
    """

    def __init__(self, resource: str, pod: str, wanted: int, cards: Sequence[str], fewer: str) -> None:
        chosen = f"{len(cards)} cards were chosen for {pod} ({_shortened(cards)})"
        super().__init__(
            f'invalid allocation request for "{resource}": {wanted} requested, but {chosen}, and each card '
            f"needs one ID: create the pod again with {len(cards)} of {resource}, or with {fewer}"
        )


class InsufficientMemory(AllocationError):
    """Raised when no card has enough free memory units.

    `shortage` is the vendor's own term for this. `largest`: the card with most free units, and their number.
    """

    def __init__(
        self, resource: str, shortage: str, wanted: int, unit: str, largest: tuple[str, int] | None
    ) -> None:
        asked = "1 unit" if wanted == 1 else f"{wanted} units"
        super().__init__(
            f'invalid allocation request for "{resource}": {shortage}: {asked} of {unit} GiB asked for, '
            f"{_largest(largest)}; units of one container lie on one card"
        )


class InsufficientRoom(AllocationError):
    """Raised when slices on a card leave no room for the request. `why` is the vendor's own text.

    The slices may belong to allocations that have ended and can be released, so a second try can succeed.
    """

    def __init__(self, resource: str, why: str) -> None:
        super().__init__(f'invalid allocation request for "{resource}": no room for the request: {why}')
        self.why = why


class StartRefused(AllocationError):
    """Raised at PreStartContainer when a container cannot start with what its pod requests."""

    def __init__(self, resource: str, uid: str, namespace: str, pod: str, container: str, why: str) -> None:
        self.uid, self.namespace, self.pod = uid, namespace, pod
        super().__init__(
            f"{resource}: container {shorten(container)} of {namespace}/{pod} cannot start on the card that "
            f"the pod was admitted to: {why}; delete the pod: its controller creates it again"
        )


class LimitsUnread(AllocationError):
    """Raised at PreStartContainer when a start depends on the pod's limits and the pod is not known yet."""

    def __init__(self, resource: str, uid: str, container: str) -> None:
        super().__init__(
            f"{resource}: the limits of container {shorten(container)} are not known: the API server has not "
            f"shown its pod ({shorten(uid)}) yet; the kubelet tries again"
        )


class InsufficientShares(AllocationError):
    """Raised when no card has enough free shares. `largest` is the card with most, and their number."""

    def __init__(self, resource: str, wanted: int, largest: tuple[str, int] | None) -> None:
        super().__init__(
            f'invalid allocation request for "{resource}": {wanted} shares requested, '
            f"{_largest(largest)}; all shares of one container must be on one card"
        )


def _largest(card: tuple[str, int] | None) -> str:
    return f"the largest free card has {card[1]} ({shorten(card[0])})" if card else "no card is free"


class ListTooLong(AgentError):
    """Raised when a device list is longer than the message that the kubelet accepts; sizes in bytes."""

    def __init__(self, resource: str, ids: int, size: int, limit: int, remedy: str) -> None:
        super().__init__(
            f"{resource}: {ids} IDs make a list of {size} bytes, the kubelet takes {limit}; {remedy}"
        )


class NoSuchDevice(AgentError):
    """Raised when an operator names no known device, or a beginning that several uuids have."""

    def __init__(self, named: str, found: Sequence[str], known: Sequence[str]) -> None:
        begins = (
            f"'{shorten(named)}' is the beginning of several devices: {_shortened(found)}; give more of it"
        )
        unknown = f"this node has no device '{shorten(named)}'; it has {_shortened(known) or 'none'}"
        super().__init__(begins if found else unknown)


class NotServing(AgentError):
    """Raised when an operator's command reaches a standby agent, which knows no device."""

    def __init__(self, holder: str) -> None:
        super().__init__(f"standing by, {holder} serves this node")


class NotOnDisk(AgentError):
    """Raised when an operator's command took effect but could not be written to disk."""

    def __init__(self, done: str, error: str) -> None:
        super().__init__(f"{done}, but only until the agent ends: this is not on disk: {error}")


class StateError(AgentError):
    """Raised when a file that the agent saved cannot be read. A person must mend the file or move it away."""

    def __init__(self, path: object, found: str) -> None:
        super().__init__(f"{path}: {found}; mend it, or move it away to start without it")


class VendorError(AgentError):
    """Raised when a vendor's process, or its agent half, could not answer."""


class SchedulerError(AgentError):
    """Raised when a function of a scheduler's plugin failed, or returned what its contract does not allow."""

    def __init__(self, scheduler: str, function: str, what: str) -> None:
        super().__init__(f"{scheduler}: its plugin fails in {function}: {what}")


class VendorAbsent(VendorError):
    """Raised when this node has never shown hardware of the vendor."""


class VendorTimeout(VendorError):
    """Raised when a call into the vendor's process passed its deadline."""

    def __init__(self, vendor: str, call: str, seconds: float) -> None:
        super().__init__(f"{vendor}: {call} did not return within {seconds:g} s")


class SamplingEnded(VendorError):
    """Raised for a sample of use after samples that were late, or that cost the vendor's process."""

    def __init__(self, vendor: str, until: str, why: str) -> None:
        super().__init__(f"{vendor}: sampling has ended until {until}: {why}")


class VendorCrashed(VendorError):
    """Raised when the vendor's process ended during a call."""

    def __init__(self, vendor: str, how: str) -> None:
        super().__init__(f"{vendor}: the vendor's process ended: {how}")


def _shortened(names: Sequence[str]) -> str:
    return named_list([shorten(it) for it in names], MAX_NAMED)
