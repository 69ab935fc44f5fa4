"""Publishes what this node is: to the API server by values that its writers follow, and in files."""

from __future__ import annotations

import time

import anyio
from msgspec import Struct
from msgspec.structs import replace

from agent.cluster.pod_state import PodState
from agent.cluster.scheduler_report_state import SchedulerReportState
from agent.config import ConfigState
from agent.core.allocation.ledger import Ledger
from agent.core.cell import Cell
from agent.core.endless_tasks import for_ever
from agent.core.publishing.agent_status import AgentStatus, SchedulerReport
from agent.daemon.agent_timing import AgentTiming
from agent.daemon.node_state import NodeState
from agent.daemon.publishing.wanted_extended_resources import WantedExtendedResources
from agent.daemon.publishing.wanted_labels import WantedLabels
from agent.daemon.publishing.wanted_node_annotations import WantedNodeAnnotations
from agent.daemon.publishing.wanted_receipts import WantedReceipts
from agent.daemon.publishing.wanted_scheduler_report import WantedSchedulerReport, WantedSchedulerReportTiming
from agent.host.nfd_features import FeaturesFile
from agent.host.scheduler_report_file import ReportFileWriter
from agent.scheduler_api.scheduler import AnnotationFilter, reporting
from agent.state.uninstall_record import UninstallRecord


class _KeptReport(Struct, frozen=True):
    """The report of the cards to a scheduler, and the file by which it may be published."""

    wanted: WantedSchedulerReport
    file: ReportFileWriter


class Publisher:
    """Keeps every wanted value, the file of labels, and the file of cards for a scheduler."""

    def __init__(
        self,
        config: Cell[ConfigState],
        node: NodeState,
        ledger: Ledger,
        pod_state: PodState,
        reads: Cell[AnnotationFilter],
        record: UninstallRecord,
        timing: AgentTiming,
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
        self._features = FeaturesFile(
            self._labels.wanted,
            timing.specs,
            note=record.note_features,
            noted=record.features,
            forget=record.forget_features,
        )
        #: The report of the cards to the scheduler that gets one; None without such a scheduler.
        self._report: _KeptReport | None = None
        if (kind := reporting(node.schedulers)) is not None:
            every = timing.device_infos
            state = SchedulerReportState(kind)
            wanted = WantedSchedulerReport(
                state,
                config,
                node.snapshot,
                node.plan,
                api=api,
                withheld=lambda: node.withheld,
                timing=WantedSchedulerReportTiming(every=every),
            )
            file = ReportFileWriter(
                kind, state.published, every, note=record.note, noted=record.all, elsewhere=state.elsewhere
            )
            self._report = _KeptReport(wanted, file)
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
            for value in (self._labels, self._annotations, self._extended, self._receipts):
                group.start_soon(for_ever, value.run)
            group.start_soon(for_ever, self._features.run)
            if self._report is not None:
                group.start_soon(for_ever, self._report.wanted.run)
                group.start_soon(for_ever, self._report.file.run)

    @property
    def report_state(self) -> SchedulerReportState | None:
        """The report as the API connection follows and writes it; None where no scheduler gets one."""
        return self._report.wanted.state if self._report is not None else None

    @property
    def reported(self) -> SchedulerReport:
        """The report of the cards to a scheduler, for people."""
        if self._report is None:
            return SchedulerReport()
        return self._report.wanted.seen(self._report.file.error, self._report.file.left_out)

    @property
    def device_infos_writes(self) -> int:
        return self._report.file.writes if self._report is not None else 0

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
