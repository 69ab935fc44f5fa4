"""The annotations that vendors want on the Node."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from agent.config import Config, ConfigState
from agent.core.allocation.known_pods import KnownPods
from agent.core.allocation.ledger import Ledger
from agent.core.cell import Cell
from agent.core.model import NodeSnapshot
from agent.core.publishing.node_annotation_rules import annotations_of, grants
from agent.daemon.publishing.wanted_vendor_keys import WantedVendorKeys
from agent.vendor_api.agent import Device, Vendor


class WantedNodeAnnotations(WantedVendorKeys[str]):
    """Keeps what `NodeFacts.annotations` of the vendors computes: key to text."""

    fails = "annotations not made"
    again = "annotations are made again"

    def __init__(
        self,
        config: Cell[ConfigState],
        snapshot: Cell[NodeSnapshot],
        ledger: Ledger,
        pods: Cell[KnownPods],
        vendors: Callable[[], Mapping[str, Vendor]],
        *,
        settle: float = 0.05,
    ) -> None:
        """Also computed again when allocations change, or the pods that have them."""
        super().__init__(config, snapshot, vendors, (ledger.changes, pods), settle=settle)
        self._ledger = ledger
        self._pods = pods

    def _keys(self, vendor: Vendor) -> tuple[str, ...]:
        return vendor.publishes.annotation_keys

    def _made(self, vendor: Vendor, config: Config, devices: tuple[Device, ...]) -> Mapping[str, str | None]:
        granted = grants(self._ledger.in_use(), vendor.name, self._pods.value)
        return annotations_of(vendor, config.vendor(vendor.name).resources, devices, granted)
