"""Which labels the node is to have, and how they are told: config and devices in, one value out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import anyio.to_thread

from agent.config import Config, ConfigState
from agent.core.cell import Cell
from agent.core.errors import VendorError
from agent.core.model import NodeSnapshot, VendorState
from agent.core.publishing.label_rules import NodeStamp, VendorLabels, WantedFeatures, labels_of
from agent.daemon.publishing.debounce import Debounced
from agent.host import files
from agent.vendor_api.agent import Vendor
from agent.vendor_api.label_values import label_value

MAX_MACHINE = 4096
UNKNOWN_MACHINE = "unknown"


def machine(file: str) -> str:
    """The model of the machine, `unknown` as GPU feature discovery says it where the file cannot be read."""
    try:
        return label_value(files.read(Path(file), MAX_MACHINE).decode(errors="replace"))
    except (OSError, ValueError):
        return UNKNOWN_MACHINE


def heard(
    config: Config, snapshot: NodeSnapshot, vendors: Mapping[str, Vendor], stamp: NodeStamp | None = None
) -> VendorLabels:
    """The labels of the vendors that have listed their devices since the agent started."""
    labels: dict[str, str] = {}
    awaited, trouble = set(), []
    for status in snapshot.vendors:
        vendor = vendors.get(status.name)
        if vendor is None or vendor.publishes.labels is None:
            continue
        devices = snapshot.present(status.name)
        try:
            if devices or status.state is VendorState.OPEN:
                labels |= labels_of(
                    vendor, config.vendor(status.name).resources, devices, stamp or NodeStamp()
                )
                continue
        except VendorError as exc:
            trouble.append(str(exc))
        awaited.add(vendor.resource.partition("/")[0])
    return VendorLabels(labels, frozenset(awaited), "; ".join(trouble))


def untold(config: Config) -> str:
    """Why the labels get nowhere where there is no API server; empty where nobody asked for one."""
    report = config.report
    if not report.labels or report.labels_as not in ("node", "nodeFeature"):
        return ""
    why = "is told to the API server, and none is known here"
    remedy = "run with a service account, give --kubeconfig, or set it to file"
    return config.told(("report", "labelsAs"), f"'{report.labels_as}' {why}; {remedy}")


class WantedLabels(Debounced):
    """Keeps `wanted` as config and devices are. Whoever tells the labels reads it."""

    def __init__(
        self,
        config: Cell[ConfigState],
        snapshot: Cell[NodeSnapshot],
        vendors: Callable[[], Mapping[str, Vendor]],
        clock: Callable[[], float],
        *,
        api: bool = True,
        settle: float = 0.1,
    ) -> None:
        """`api`: whether there is an API server to tell labels to. `settle`: seconds after a change,
        for the vendors take in the same config first, and a storm of health is one look.
        """
        super().__init__((config, snapshot), settle, fails="labels not told", again="labels are told again")
        self._config = config
        self._snapshot = snapshot
        self._vendors = vendors
        self._clock = clock
        self._api = api
        self._loaded: Config | None = None
        self._timestamp = 0.0
        #: None while nobody knows what is wanted.
        self.wanted: Cell[WantedFeatures | None] = Cell(None)

    async def once(self) -> None:
        """Look at config and devices, and say what follows."""
        if self._config.value.waiting:
            return  # nobody knows yet which labels are wanted
        config = self._config.value.config
        report = config.report
        if config != self._loaded:
            # GPU feature discovery takes the time once for each load of its config, too.
            self._loaded, self._timestamp = config, self._clock()
        known = await self._heard(config) if report.published_as else VendorLabels({})
        file = report.features_file if report.published_as == "file" else ""
        self.wanted.set(WantedFeatures(report.published_as, known, report.namespace, file))
        self._tell("; ".join(it for it in (known.trouble, "" if self._api else untold(config)) if it))

    async def _heard(self, config: Config) -> VendorLabels:
        report = config.report
        # A disk that hangs must not hold up the end of the agent.
        read = partial(machine, report.machine_file)
        model = await anyio.to_thread.run_sync(read, abandon_on_cancel=True)
        stamp = NodeStamp(model, self._timestamp if report.timestamp else None)
        return heard(config, self._snapshot.value, self._vendors(), stamp)
