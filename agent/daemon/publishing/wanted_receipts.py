"""The annotations that tell schedulers that their pods have devices."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from agent.core.allocation.known_pods import KnownPods
from agent.core.allocation.ledger import Ledger
from agent.core.cell import Cell
from agent.core.publishing.receipt_rules import OwedReceipt, PodReceipts, owed_receipts
from agent.daemon.publishing.debounce import Debounced
from agent.scheduler_api import Dialect, Scheduler
from agent.scheduler_api.scheduler import AnnotationFilter, common_dialects
from agent.vendor_api.agent import Vendor

#: How many errors a log line names.
NAMED_ERRORS = 3


class WantedReceipts(Debounced[tuple[OwedReceipt, ...]]):
    """Follows pods, allocations and dialects. The value has the receipts that pods should have and lack."""

    fails = "receipts not made"
    again = "receipts are made again"

    def __init__(
        self,
        pods: Cell[KnownPods],
        ledger: Ledger,
        configured: Cell[AnnotationFilter],
        vendors: Callable[[], Iterable[Vendor]],
        schedulers: Iterable[Scheduler] = (),
        *,
        settle: float = 0.02,
    ) -> None:
        """`configured` changes with the vendors' dialects. `schedulers`: the registered ones.

        `settle`: seconds from a change to the computation.
        """
        super().__init__((pods, ledger.changes, configured), settle, ())
        self._pods = pods
        self._ledger = ledger
        self._vendors = vendors
        self._common = common_dialects(schedulers)
        self._dialects: Mapping[tuple[str, str], Dialect] = {}
        #: Receipts by pod, as last computed: of a hundred pods one or two change at a time.
        self._known: dict[str, PodReceipts] = {}

    async def _computed(self) -> tuple[tuple[OwedReceipt, ...], str]:
        # A vendor's own dialect replaces a common one of the same name.
        dialects = {
            (vendor.name, dialect.name): dialect
            for vendor in self._vendors()
            for dialect in (*self._common, *vendor.dialects)
        }
        if dialects != self._dialects:
            self._dialects, self._known = dialects, {}
        pods, allocations = self._pods.value, self._ledger.in_use()
        found = owed_receipts(pods, allocations, lambda *name: dialects.get(name), self._known)
        more = len(found.wrong) - NAMED_ERRORS
        named = (*found.wrong[:NAMED_ERRORS], *([f"and {more} more"] if more > 0 else []))
        return found.owed, "; ".join(named)
