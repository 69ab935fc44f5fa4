"""Which annotations pods are to have for their schedulers: pods and allocations in, what is owed out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from agent.core.allocation.ledger import Ledger
from agent.core.cell import Cell
from agent.core.publishing.receipt_rules import OwedReceipt, PodReceipts, owed_receipts
from agent.daemon.publishing.debounce import Debounced
from agent.scheduler_api import AnnotationFilter, Candidate, Dialect, Scheduler, common_dialects
from agent.vendor_api.agent import Vendor

#: What is wrong with receipts, of as many pods as are named.
SAID = 3


class WantedReceipts(Debounced):
    """Keeps `owed` as pods, allocations and vendors are. Whoever writes to pods reads it."""

    def __init__(
        self,
        pods: Cell[tuple[Candidate, ...]],
        ledger: Ledger,
        configured: Cell[AnnotationFilter],
        vendors: Callable[[], Iterable[Vendor]],
        schedulers: Iterable[Scheduler] = (),
        *,
        settle: float = 0.02,
    ) -> None:
        """`configured` changes with the vendors' dialects. `schedulers`: the registered ones.

        `settle`: seconds after a change, so that many are one.
        """
        super().__init__(
            (pods, ledger.changes, configured),
            settle,
            fails="receipts not made",
            again="receipts are made again",
        )
        self._pods = pods
        self._ledger = ledger
        self._vendors = vendors
        self._common = common_dialects(schedulers)
        self._dialects: Mapping[tuple[str, str], Dialect] = {}
        #: Of the hundred pods of a node one or two change at a time.
        self._known: dict[str, PodReceipts] = {}
        self.owed: Cell[tuple[OwedReceipt, ...]] = Cell(())

    async def once(self) -> None:
        """Look, and say what follows."""
        # Of one name it is the vendor's own, which is heard first.
        its = {
            (vendor.name, it.name): it
            for vendor in self._vendors()
            for it in (*self._common, *vendor.schedulers)
        }
        if its != self._dialects:
            self._dialects, self._known = its, {}
        found = owed_receipts(
            self._pods.value, self._ledger.in_use(), lambda *name: its.get(name), self._known
        )
        self.owed.set(found.owed)
        more = len(found.wrong) - SAID
        self._tell("; ".join((*found.wrong[:SAID], *([f"and {more} more"] if more > 0 else []))))
