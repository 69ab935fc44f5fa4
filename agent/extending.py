"""Which extended resources of vendors the node is to have: config and devices in, one value out."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from agent.config import Config, ConfigState
from agent.core.cell import Cell
from agent.core.extended import made
from agent.core.model import NodeSnapshot
from agent.core.vendor import Device, Vendor
from agent.owning import Owning


class Extending(Owning[int]):
    """Those of `Vendor.extended_resources`."""

    def __init__(
        self,
        config: Cell[ConfigState],
        snapshot: Cell[NodeSnapshot],
        vendors: Callable[[], Mapping[str, Vendor]],
        *,
        settle: float = 0.05,
    ) -> None:
        """`settle`: seconds after a change, so that many at once are one."""
        super().__init__(
            config,
            snapshot,
            vendors,
            settle=settle,
            fails="extended resources not counted",
            again="extended resources are counted again",
        )

    def _keys(self, vendor: Vendor) -> tuple[str, ...]:
        return vendor.extended_resource_keys

    def _made(self, vendor: Vendor, config: Config, devices: tuple[Device, ...]) -> Mapping[str, int | None]:
        return made(vendor, config.vendor(vendor.name).resources, devices)
