"""The labels that the Node should have, and the way in which they are published."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import anyio.to_thread

from agent.config import Config, ConfigState
from agent.core.cell import Cell
from agent.core.errors import VendorError
from agent.core.model import NodeSnapshot, VendorState
from agent.core.publishing.label_rules import NodeStamp, VendorLabels, WantedFeatures, vendor_labels
from agent.daemon.publishing.debounce import Debounced
from agent.host import files
from agent.vendor_api.agent import Vendor
from agent.vendor_api.label_values import label_value

MAX_MACHINE = 4096
UNKNOWN_MACHINE = "unknown"


def machine(file: str) -> str:
    """The model of the machine; `unknown`, as in GPU feature discovery, where the file cannot be read."""
    try:
        return label_value(files.read(Path(file), MAX_MACHINE).decode(errors="replace"))
    except (OSError, ValueError):
        return UNKNOWN_MACHINE


def labels_of(
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
                labels |= vendor_labels(
                    vendor, config.vendor(status.name).resources, devices, stamp or NodeStamp()
                )
                continue
        except VendorError as exc:
            trouble.append(str(exc))
        awaited.add(vendor.resource.partition("/")[0])
    return VendorLabels(labels, frozenset(awaited), "; ".join(trouble))


def unpublished(config: Config) -> str:
    """Why labels are not published without an API server; empty where the config needs none."""
    report = config.report
    if not report.labels or report.labels_as not in ("node", "nodeFeature"):
        return ""
    why = "is published through the API server, and none is known here"
    remedy = "run with a service account, give --kubeconfig, or set it to file"
    return config.with_place(("report", "labelsAs"), f"'{report.labels_as}' {why}; {remedy}")


class WantedLabels(Debounced[WantedFeatures | None]):
    """Follows config and devices. The value is None until the first config is in force."""

    fails = "labels not published"
    again = "labels are published again"

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
        """`api`: there is an API server. `settle`: seconds from a change to the computation.

        The vendors take in a new config in that time, and a storm of health events costs one computation.
        """
        super().__init__((config, snapshot), settle, None)
        self._config = config
        self._snapshot = snapshot
        self._vendors = vendors
        self._clock = clock
        self._api = api
        #: The config of the timestamp label, and the time at which it was loaded.
        self._loaded: Config | None = None
        self._timestamp = 0.0

    async def _computed(self) -> tuple[WantedFeatures, str] | None:
        if self._config.value.waiting:
            return None
        config = self._config.value.config
        report = config.report
        if config != self._loaded:
            # GPU feature discovery takes the time once for each load of its config, too.
            self._loaded, self._timestamp = config, self._clock()
        known = await self._labels(config) if report.published_as else VendorLabels({})
        file = report.features_file if report.published_as == "file" else ""
        errors = (known.trouble, "" if self._api else unpublished(config))
        wanted = WantedFeatures(report.published_as, known, report.namespace, file)
        return wanted, "; ".join(it for it in errors if it)

    async def _labels(self, config: Config) -> VendorLabels:
        report = config.report
        # A disk that hangs must not hold up the end of the agent.
        read = partial(machine, report.machine_file)
        model = await anyio.to_thread.run_sync(read, abandon_on_cancel=True)
        stamp = NodeStamp(model, self._timestamp if report.timestamp else None)
        return labels_of(config, self._snapshot.value, self._vendors(), stamp)
