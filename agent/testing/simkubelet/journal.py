"""The record of what a simulated kubelet saw and did, for tests and the demo."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from agent.kubelet.pb.deviceplugin.v1beta1 import RegisterRequest


@dataclass(frozen=True, slots=True)
class AllocateCall:
    """One Allocate: the IDs as sent, and the environment that came back (None: the plugin refused)."""

    resource: str
    ids: tuple[str, ...]
    env: Mapping[str, str] | None
    error: str = ""


@dataclass(frozen=True, slots=True)
class PreferredCall:
    resource: str
    available: frozenset[str]
    must_include: frozenset[str]
    size: int
    answer: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PreStartCall:
    resource: str
    ids: tuple[str, ...]


@dataclass(slots=True)
class Journal:
    """Events so far, over all restarts. `note` wakes every task that waits in `next_note`."""

    #: Every Register call as it came, refused ones included.
    register_requests: list[RegisterRequest] = field(default_factory=list)
    #: Registrations that ended well, by resource.
    registrations: Counter[str] = field(default_factory=Counter)
    #: Device lists taken in, and the length of the last one in bytes, by resource.
    lists: Counter[str] = field(default_factory=Counter)
    list_bytes: dict[str, int] = field(default_factory=dict)
    #: ListAndWatch streams that began, and the error that each ended with ("" for a plain end).
    streams: Counter[str] = field(default_factory=Counter)
    stream_ends: dict[str, list[str]] = field(default_factory=dict)
    allocations: list[AllocateCall] = field(default_factory=list)
    preferences: list[PreferredCall] = field(default_factory=list)
    pre_starts: list[PreStartCall] = field(default_factory=list)
    #: Sets of pod uids: the kubelet would update the status of these pods because a device changed.
    status_updates: list[frozenset[str]] = field(default_factory=list)
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    def note(self) -> None:
        """Wake the waiting: something in or around the journal changed."""
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def next_note(self) -> None:
        await self._changed.wait()

    def stream_ended(self, resource: str, error: str) -> None:
        self.stream_ends.setdefault(resource, []).append(error)
        self.note()
