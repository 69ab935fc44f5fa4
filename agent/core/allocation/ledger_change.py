"""What became of one allocation between two writes of the ledger, and how that is written."""

from __future__ import annotations

from dataclasses import fields

from msgspec import Struct
from msgspec.structs import replace

from agent.core.model import Allocation, AllocationSource, AllocationState

_FIELDS = fields(Allocation)
_OF_OWNER = frozenset({"owner", "life"})
_OF_RELEASE = frozenset({"state", "since", "reason", "forgotten", "rebooted"})


class LedgerChange(Struct, frozen=True):
    """The allocation as it was written last, and as it is now; None where the ledger has none."""

    id: str
    before: Allocation | None
    after: Allocation | None
    #: Whether the allocation was dropped and recorded again, which makes it the newest one.
    is_moved: bool = False

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to write."""
        return self.before == self.after and not (self.is_moved and self.after)

    def since(self, earlier: LedgerChange) -> LedgerChange:
        """This change and an earlier one of the same allocation as one."""
        return replace(self, before=earlier.before, is_moved=self.is_moved or earlier.is_moved)

    @property
    def fields(self) -> tuple[str, ...]:
        """The fields of the allocation that differ; all of a new allocation that are not empty."""
        before, after = self.before, self.after
        if before is None:
            return tuple(it.name for it in _FIELDS if getattr(after, it.name) != it.default)
        return tuple(it.name for it in _FIELDS if getattr(before, it.name) != getattr(after, it.name))

    @property
    def is_short(self) -> bool:
        """Whether the change is an Allocate without made hardware, a confirmation, or a release.

        These follow from what the kubelet knows, too: an agent that does not read them can find them again.
        Any other change is written with the whole state.
        """
        before, after = self.before, self.after
        if before is not None and _has_hardware(before):
            return after is not None and self._changes_only(_OF_OWNER)
        if after is None:
            return True
        if _has_hardware(after):
            return False
        if before is None:
            is_answer = after.source is AllocationSource.ALLOCATE and not self.is_moved
            return is_answer or after.state is AllocationState.RELEASED
        if after.state is AllocationState.RELEASED:
            return self._changes_only(_OF_RELEASE)
        return not self.is_moved and self._changes_only(_OF_OWNER)

    def _changes_only(self, names: frozenset[str]) -> bool:
        return names.issuperset(self.fields)


def _has_hardware(allocation: Allocation) -> bool:
    """Whether the allocation has made hardware, or hardware is being made for it."""
    if allocation.state is AllocationState.RELEASED:
        return False
    return bool(allocation.partitions) or allocation.state is not AllocationState.DONE
