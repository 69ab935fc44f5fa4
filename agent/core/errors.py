"""What can be refused, as a tree. Each error words itself from what it was given.

AgentError
├── ConfigError
├── AllocationError
│   ├── UnknownResource
│   ├── UnknownDevice
│   ├── UnhealthyDevice
│   └── InvalidRequest
├── ListTooLong
├── StateError
└── VendorError
    ├── VendorTimeout
    └── VendorCrashed
"""

from __future__ import annotations

from agent.core.text import shorten


class AgentError(Exception):
    """Base of everything the agent refuses or fails at on purpose."""


class ConfigError(AgentError):
    """Raised when a configuration can not be used; the text says where and what would work."""


class AllocationError(AgentError):
    """Raised when an Allocate is refused; the kubelet shows the text on the pod."""


class UnknownResource(AllocationError):
    def __init__(self, resource: str) -> None:
        super().__init__(f'invalid allocation request for "{resource}": the resource is not served here')


class UnknownDevice(AllocationError):
    def __init__(self, resource: str, device_id: str) -> None:
        super().__init__(
            f'invalid allocation request for "{resource}": '
            f"invalid request: unknown device: {shorten(device_id)}"
        )


class UnhealthyDevice(AllocationError):
    def __init__(self, resource: str, device_id: str, reason: str) -> None:
        super().__init__(
            f'invalid allocation request for "{resource}": device {shorten(device_id)} is unhealthy: {reason}'
        )


class InvalidRequest(AllocationError):
    def __init__(self, resource: str, why: str) -> None:
        super().__init__(f'invalid allocation request for "{resource}": invalid request: {why}')


class ListTooLong(AgentError):
    """Raised when a device list would not fit into what the kubelet receives."""

    def __init__(self, resource: str, ids: int, size: int, limit: int, remedy: str) -> None:
        super().__init__(
            f"{resource}: {ids} IDs make a list of {size} bytes, the kubelet takes {limit}; {remedy}"
        )


class StateError(AgentError):
    """Raised when what the agent saved can not be read; a person must mend it or move it away."""

    def __init__(self, path: object, found: str) -> None:
        super().__init__(f"{path}: {found}; mend it, or move it away to start without it")


class VendorError(AgentError):
    """Raised when a vendor's process could not answer."""


class VendorTimeout(VendorError):
    def __init__(self, vendor: str, call: str, seconds: float) -> None:
        super().__init__(f"{vendor}: {call} did not return within {seconds:g} s")


class VendorCrashed(VendorError):
    def __init__(self, vendor: str, how: str) -> None:
        super().__init__(f"{vendor}: the vendor's process ended: {how}")
