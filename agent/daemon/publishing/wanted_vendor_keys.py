"""What vendors want on the Node under keys of their own: annotations and extended resources."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, TypeVar

from agent.config import Config, ConfigState
from agent.core.cell import Cell
from agent.core.errors import VendorError
from agent.core.model import DeviceStatus, NodeSnapshot, VendorState
from agent.core.publishing.vendor_key_rules import WantedKeys
from agent.daemon.publishing.debounce import Debounced
from agent.vendor_api.agent import Device, Fault, Vendor
from agent.vendor_api.text import shorten

T = TypeVar("T")


class WantedVendorKeys(Debounced[WantedKeys[T] | None]):
    """Follows config and devices. The value is None until the first config is in force."""

    def __init__(
        self,
        config: Cell[ConfigState],
        snapshot: Cell[NodeSnapshot],
        vendors: Callable[[], Mapping[str, Vendor]],
        more: Iterable[Cell[Any]] = (),
        *,
        settle: float = 0.05,
    ) -> None:
        """`more`: other cells that the value depends on. `settle`: seconds from change to computation."""
        super().__init__((config, snapshot, *more), settle, None)
        self._config = config
        self._snapshot = snapshot
        self._vendors = vendors

    async def _computed(self) -> tuple[WantedKeys[T], str] | None:
        if self._config.value.waiting:
            return None
        values: dict[str, T | None] = {}
        awaited: set[str] = set()
        trouble: list[str] = []
        owners: dict[str, str] = {}
        for status in self._snapshot.value.vendors:
            vendor = self._vendors().get(status.name)
            if vendor is None or not self._keys(vendor):
                continue
            keys = self._keys(vendor)
            own = {key for key in keys if owners.setdefault(key, vendor.name) == vendor.name}
            trouble += _taken(keys, owners, vendor.name)
            try:
                found = self._of(vendor, self._config.value.config, opened=status.state is VendorState.OPEN)
            except VendorError as exc:
                trouble.append(str(exc))
                found = None
            values |= {key: value for key, value in (found or {}).items() if key in own}
            awaited |= set() if found is not None else own
        return WantedKeys(values, frozenset(awaited)), "; ".join(trouble)

    def _of(self, vendor: Vendor, config: Config, *, opened: bool) -> Mapping[str, T | None] | None:
        """The vendor's values by key; None while the vendor has not listed its devices."""
        present = (it for it in self._snapshot.value.of(vendor.name) if not it.gone)
        devices = tuple(replace(it.device, fault=_fault(it)) for it in present)
        return self._made(vendor, config, devices) if devices or opened else None

    @abstractmethod
    def _keys(self, vendor: Vendor) -> tuple[str, ...]:
        """The keys that the vendor may write."""

    @abstractmethod
    def _made(self, vendor: Vendor, config: Config, devices: tuple[Device, ...]) -> Mapping[str, T | None]:
        """The vendor's values for these devices by key; None removes a key.

        Raises:
            VendorError: The vendor failed, or returned what it may not write.
        """


def _taken(keys: Iterable[str], owners: Mapping[str, str], vendor: str) -> list[str]:
    """A sentence for each of the keys that an earlier vendor has, too."""
    return [
        f"{vendor}: {shorten(key)} is {owners[key]}'s, and is not written for {vendor}"
        for key in keys
        if owners[key] != vendor
    ]


def _fault(status: DeviceStatus) -> Fault | None:
    """Set exactly for devices that new pods cannot get, so that schedulers and the kubelet agree."""
    if not status.told_healthy:
        return Fault(status.health.reason, status.health.message, status.health.state)
    return Fault("cordoned", status.cordon.reason) if status.cordon is not None else None
