"""What vendors want of the Node under keys of their own: config and devices in, one value out."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, ClassVar, Generic, TypeVar

from agent.config import Config, ConfigState
from agent.core.cell import Cell
from agent.core.errors import VendorError
from agent.core.model import DeviceStatus, NodeSnapshot, VendorState
from agent.core.publishing.vendor_key_rules import WantedKeys
from agent.daemon.publishing.debounce import Debounced
from agent.vendor_api.agent import Device, Fault, Vendor
from agent.vendor_api.text import shorten

T = TypeVar("T")


class WantedVendorKeys(Debounced, Generic[T]):
    """Keeps `wanted` as config and devices are. Whoever writes the Node reads it."""

    #: What the log says where something is wrong, and once it is no more.
    fails: ClassVar[str]
    again: ClassVar[str]

    def __init__(
        self,
        config: Cell[ConfigState],
        snapshot: Cell[NodeSnapshot],
        vendors: Callable[[], Mapping[str, Vendor]],
        more: Iterable[Cell[Any]] = (),
        *,
        settle: float = 0.05,
    ) -> None:
        """`more`: cells that decide, too. `settle`: seconds after a change, so that many at once are one."""
        super().__init__((config, snapshot, *more), settle, fails=self.fails, again=self.again)
        self._config = config
        self._snapshot = snapshot
        self._vendors = vendors
        #: None while nobody knows what is wanted.
        self.wanted: Cell[WantedKeys[T] | None] = Cell(None)

    async def once(self) -> None:
        """Look at all that decides, and say what follows."""
        if self._config.value.waiting:
            return  # nobody knows yet which vendors are wanted
        values: dict[str, T | None] = {}
        awaited: set[str] = set()
        trouble: list[str] = []
        owners: dict[str, str] = {}
        for status in self._snapshot.value.vendors:
            vendor = self._vendors().get(status.name)
            if vendor is None or not self._keys(vendor):
                continue
            its = {key for key in self._keys(vendor) if owners.setdefault(key, vendor.name) == vendor.name}
            trouble += _anothers(self._keys(vendor), owners, vendor.name)
            try:
                found = self._of(vendor, self._config.value.config, opened=status.state is VendorState.OPEN)
            except VendorError as exc:
                trouble.append(str(exc))
                found = None
            values |= {key: value for key, value in (found or {}).items() if key in its}
            awaited |= set() if found is not None else its
        self.wanted.set(WantedKeys(values, frozenset(awaited)))
        self._tell("; ".join(trouble))

    def _of(self, vendor: Vendor, config: Config, *, opened: bool) -> Mapping[str, T | None] | None:
        """None while it has not listed its devices."""
        its = (it for it in self._snapshot.value.of(vendor.name) if not it.gone)
        devices = tuple(replace(it.device, fault=_fault(it)) for it in its)
        return self._made(vendor, config, devices) if devices or opened else None

    @abstractmethod
    def _keys(self, vendor: Vendor) -> tuple[str, ...]:
        """The vendor's own."""

    @abstractmethod
    def _made(self, vendor: Vendor, config: Config, devices: tuple[Device, ...]) -> Mapping[str, T | None]:
        """What the vendor makes of these devices.

        Raises:
            VendorError: It cannot, or may not.
        """


def _anothers(keys: Iterable[str], owners: Mapping[str, str], vendor: str) -> list[str]:
    """A sentence for each key that a vendor which comes first has as its own, too."""
    return [
        f"{vendor}: {shorten(key)} is {owners[key]}'s, and is not written for {vendor}"
        for key in keys
        if owners[key] != vendor
    ]


def _fault(it: DeviceStatus) -> Fault | None:
    """Why nobody new gets it; None where the kubelet may give it out: both shall schedule alike."""
    if not it.told_healthy:
        return Fault(it.health.reason, it.health.message, it.health.state)
    return Fault("cordoned", it.cordon.reason) if it.cordon is not None else None
