"""Joins the samples of one vendor with what the node, the ledger and the kubelet say of their processes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from msgspec import Struct

from agent.core.attribution.scheduler_promises import Promises
from agent.core.usage.card_accounts import KnownSample
from agent.core.usage.card_holdings import Holdings, holdings
from agent.core.usage.process_owners import PodName, PodNames, holder_names, pods_of_log_directories
from agent.core.usage.unlisted_devices import listed
from agent.core.usage.usage_report import VendorSample
from agent.host.node_processes import ProcessReader


class JoinedSample(Struct, frozen=True):
    """A sample with all that is known of the processes in it."""

    known: KnownSample
    #: By the allocations as of the sample.
    holdings: Holdings
    #: What cannot be read of the processes; empty where all can.
    trouble: str = ""


class SampleJoiner:
    """Keeps what one sample and the next have in common. One call at a time, in a thread: it reads files."""

    def __init__(
        self, vendor: str, reader: ProcessReader, log_directories: Callable[[], Collection[str]]
    ) -> None:
        """`log_directories`: the names of the kubelet's directories of logs."""
        self._vendor = vendor
        self._reader = reader
        self._log_directories = log_directories
        self._holdings: Holdings | None = None
        #: What the last sample named that is no device of the vendor.
        self._unlisted: frozenset[str] = frozenset()
        #: Pods that only their log directories name, and those for which these were read without success.
        self._logs: Mapping[str, PodName] = {}
        self._nameless: frozenset[str] = frozenset()

    def join(self, sample: VendorSample, promises: Promises) -> JoinedSample:
        """The sample with its processes, by the devices, allocations and pods of `promises`."""
        found = listed(self._vendor, sample, promises, self._unlisted)
        sample, self._unlisted = found.sample, found.unlisted
        pids = {it.pid for it in sample.processes or ()}
        read = self._reader.read(pids)
        self._name_pods({it.owner.uid for it in read.processes.values()} - {""}, promises)
        trouble = read.trouble
        if pids and not read.processes:
            trouble = (
                f"none of the processes is in {self._reader.proc}: the agent does not see the host's pids"
            )
        held = self._holdings = holdings(self._vendor, sample, promises, self._holdings)
        known = KnownSample(sample, read.processes, self._logs, held.places, found.processes)
        return JoinedSample(known, held, trouble)

    def _name_pods(self, uids: Collection[str], promises: Promises) -> None:
        """Read the log directories if neither the API server nor the ledger names a pod."""
        names = PodNames(promises.scene.candidates, holder_names(promises.in_use), self._logs)
        nameless = frozenset(uid for uid in uids if names.of(uid) is None)
        if nameless - self._nameless:
            named = pods_of_log_directories(self._log_directories())
            self._logs = {uid: named[uid] for uid in uids if uid in named}
        self._nameless = nameless
