"""All that others are told of this node: the values, who keeps them, and what is wrong with them."""

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
    """What the API server is told lies in cells, for those who write there; files are written here."""

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
        """`reads` changes with the dialects. `specs`, `infos`: seconds after which a file of labels, and one
        of Koordinator's, is looked at again. `api`: whether there is an API server to tell things to.
        """
        self._labelling = WantedLabels(config, node.snapshot, lambda: node.vendors, time.time, api=api)
        self._annotating = WantedNodeAnnotations(
            config, node.snapshot, ledger, pod_state.pods, lambda: node.vendors
        )
        self._extending = WantedExtendedResources(config, node.snapshot, lambda: node.vendors)
        self._receipting = WantedReceipts(
            pod_state.pods, ledger, reads, lambda: node.vendors.values(), node.schedulers
        )
        self._reporting = Reporting(
            config,
            node.snapshot,
            node.plan,
            api=api,
            every=intervals.device_infos,
            withheld=lambda: node.withheld,
        )
        self._features = FeaturesFile(
            self._labelling.wanted,
            intervals.specs,
            note=record.note_features,
            noted=record.features,
            forget=record.forget_features,
        )
        #: What goes to and fro between who chooses how the cards are told and the API server.
        self.exchange = self._reporting.exchange
        self._infos = DeviceInfosFile(
            self.exchange.telling,
            intervals.device_infos,
            note=record.note,
            noted=record.all,
            elsewhere=self.exchange.elsewhere,
        )
        #: Labels, and vendors' annotations and extended resources, that the Node is to have; None while
        #: nobody knows.
        self.labels = self._labelling.wanted
        self.annotations = self._annotating.wanted
        self.extended = self._extending.wanted
        #: The annotations by which pods are to tell their schedulers that they have their devices.
        self.receipts = self._receipting.owed

    async def run(self) -> None:
        """Keep all of it, for ever."""
        async with anyio.create_task_group() as group:
            for it in (self._labelling, self._annotating, self._extending, self._receipting, self._reporting):
                group.start_soon(for_ever, it.run)
            for file in (self._features, self._infos):
                group.start_soon(for_ever, file.run)

    @property
    def reported(self) -> SchedulerReport:
        """What Koordinator is told, and which way."""
        return self._reporting.seen(self._infos.error, self._infos.left_out)

    @property
    def device_infos_writes(self) -> int:
        return self._infos.writes

    def seen(self, view: AgentStatus) -> AgentStatus:
        """The view with what is wrong."""
        return replace(
            view,
            labels_error="; ".join(it for it in (self._labelling.error, self._features.error) if it),
            annotations_error=self._annotating.error,
            extended_error=self._extending.error,
            receipts_error=self._receipting.error,
            reported=self.reported,
        )
