"""Publishes what this node is: to the API server by values that its writers follow, and in files."""

from __future__ import annotations

import time
from dataclasses import replace

import anyio

from agent.cluster.pod_state import PodState
from agent.config import ConfigState
from agent.core.allocation.ledger import Ledger
from agent.core.cell import Cell
from agent.core.endless_tasks import for_ever
from agent.core.publishing.agent_status import AgentStatus, SchedulerReport
from agent.daemon.intervals import Intervals
from agent.daemon.node_state import NodeState
from agent.daemon.publishing.koordinator_report import Reporting
from agent.daemon.publishing.wanted_extended_resources import WantedExtendedResources
from agent.daemon.publishing.wanted_labels import WantedLabels
from agent.daemon.publishing.wanted_node_annotations import WantedNodeAnnotations
from agent.daemon.publishing.wanted_receipts import WantedReceipts
from agent.host.device_infos_directory import DeviceInfosFile
from agent.host.nfd_features import FeaturesFile
from agent.scheduler_api import AnnotationFilter
from agent.state.uninstall_record import UninstallRecord


class Publisher:
    """Keeps every wanted value, and the files of labels and of Koordinator."""

    def __init__(
        self,
        config: Cell[ConfigState],
        node: NodeState,
        ledger: Ledger,
        pod_state: PodState,
        reads: Cell[AnnotationFilter],
        record: UninstallRecord,
        intervals: Intervals,
        *,
        api: bool,
    ) -> None:
        """`reads` changes with the vendors' dialects. `record` is for `uninstall`.

        `api`: whether there is an API server.
        """
        self._labels = WantedLabels(config, node.snapshot, lambda: node.vendors, time.time, api=api)
        self._annotations = WantedNodeAnnotations(
            config, node.snapshot, ledger, pod_state.pods, lambda: node.vendors
        )
        self._extended = WantedExtendedResources(config, node.snapshot, lambda: node.vendors)
        self._receipts = WantedReceipts(pod_state.pods, ledger, reads, node.all_vendors, node.schedulers)
        self._report = Reporting(
            config,
            node.snapshot,
            node.plan,
            api=api,
            every=intervals.device_infos,
            withheld=lambda: node.withheld,
        )
        self._features = FeaturesFile(
            self._labels.wanted,
            intervals.specs,
            note=record.note_features,
            noted=record.features,
            forget=record.forget_features,
        )
        #: State shared by the Koordinator report policy and the API-server client.
        self.exchange = self._report.exchange
        self._infos = DeviceInfosFile(
            self.exchange.telling,
            intervals.device_infos,
            note=record.note,
            noted=record.all,
            elsewhere=self.exchange.elsewhere,
        )
        #: Labels, and vendors' annotations and extended resources, that the Node should have; None until the
        #: first config is in force.
        self.labels = self._labels.wanted
        self.annotations = self._annotations.wanted
        self.extended = self._extended.wanted
        #: The annotations that tell schedulers that their pods have devices.
        self.receipts = self._receipts.wanted

    async def run(self) -> None:
        """Keep all values and files, for ever."""
        async with anyio.create_task_group() as group:
            for value in (self._labels, self._annotations, self._extended, self._receipts, self._report):
                group.start_soon(for_ever, value.run)
            for file in (self._features, self._infos):
                group.start_soon(for_ever, file.run)

    @property
    def reported(self) -> SchedulerReport:
        """What is reported to Koordinator, and in which way."""
        return self._report.seen(self._infos.error, self._infos.left_out)

    @property
    def device_infos_writes(self) -> int:
        return self._infos.writes

    def seen(self, status: AgentStatus) -> AgentStatus:
        """The status with the errors of all values and files."""
        return replace(
            status,
            labels_error="; ".join(it for it in (self._labels.error, self._features.error) if it),
            annotations_error=self._annotations.error,
            extended_error=self._extended.error,
            receipts_error=self._receipts.error,
            reported=self.reported,
        )
