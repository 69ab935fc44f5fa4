"""What is kept on disk is torn, old, or gone; or there is no room for it."""

from __future__ import annotations

import asyncio
import resource
import shutil
from abc import abstractmethod
from contextlib import suppress
from pathlib import Path
from random import Random

from ..bed import Bed
from ..enflame import EnflameCards
from ..process import children
from ..traffic import Traffic
from .fault import Fault, Kind, Unreached, appends

#: Parts of the file, each of which is to be torn now and then.
REGIONS = 16


class _WhileAway(Fault):
    """Something happens to the checkpoint while no agent runs."""

    #: The file that is spoilt.
    what = "checkpoint"

    async def strike(self, bed: Bed, traffic: Traffic) -> None:
        await self.before(bed, traffic)
        await bed.agent.kill()
        if not self.path(bed).exists():
            raise Unreached(f"there is no {self.what}")
        self.spoil(bed)
        bed.forgetful = True
        if self.rng.random() < 0.3 and bed.pods:
            await bed.delete(self.rng.choice(sorted(bed.pods)))

    def path(self, bed: Bed) -> Path:
        return bed.checkpoint

    async def before(self, bed: Bed, traffic: Traffic) -> None:
        """Have the agent write the file."""

    @abstractmethod
    def spoil(self, bed: Bed) -> None: ...

    async def mend(self, bed: Bed) -> None:
        await bed.revive()


class Torn(_WhileAway):
    """Cut at a byte."""

    def spoil(self, bed: Bed) -> None:
        content = self.path(bed).read_bytes()
        at = self.rng.randrange(len(content)) if content else 0
        region = REGIONS * at // max(len(content), 1)
        self.detail = f"at byte {at} of {len(content)}, {self.what} region {region}"
        self.path(bed).write_bytes(content[:at])


class Edited(_WhileAway):
    """One byte is another one."""

    def spoil(self, bed: Bed) -> None:
        content = bytearray(self.path(bed).read_bytes())
        at = self.rng.randrange(len(content))
        content[at] ^= 1 << self.rng.randrange(8)
        self.detail = f"byte {at} of {len(content)}, {self.what} region {REGIONS * at // len(content)}"
        self.path(bed).write_bytes(content)


class _OfJournal(_WhileAway):
    """The same of the journal of changes since the checkpoint, which a pod is admitted for."""

    what = "journal"

    def path(self, bed: Bed) -> Path:
        return bed.journal

    async def before(self, bed: Bed, traffic: Traffic) -> None:
        async def is_there() -> bool:
            return bed.journal.exists()

        for _ in range(3):  # a change of a card's health may take the journal away again
            offer = self.rng.choice(bed.hardware.appended)
            await bed.make_room(offer)
            if await bed.admit(traffic.single(offer)) and await bed.comes(is_there, 1.0):
                return


class JournalTorn(_OfJournal, Torn):
    """Cut at a byte."""


class JournalEdited(_OfJournal, Edited):
    """One byte is another one."""


class Older(_WhileAway):
    """Replaced by a copy of some faults ago."""

    def spoil(self, bed: Bed) -> None:
        at = self.rng.randrange(len(bed.copies))
        self.detail = f"{len(bed.copies) - at} settlements old"
        bed.checkpoint.write_bytes(bed.copies[at])


class Deleted(_WhileAway):
    """The checkpoint is gone, or the whole state directory's content."""

    def spoil(self, bed: Bed) -> None:
        everything = self.rng.random() < 0.3
        self.detail = "with all of the state directory" if everything else ""
        for path in bed.state.iterdir() if everything else (bed.checkpoint,):
            if path.is_dir():
                shutil.rmtree(path)  # what vendors keep there
            else:
                path.unlink()
        self._strange = _strange(bed)

    async def mend(self, bed: Bed) -> None:
        await super().mend(bed)
        if (
            self._strange
        ):  # what nobody knows any more a person takes away, once containers have their own anew
            await bed.starts_all()
            for its, name in self._strange:
                its.take(name)
            bed.takes_stock()


def _strange(bed: Bed) -> list[tuple[EnflameCards, str]]:
    """Slices that were ours by what the vendor wrote down alone, which is gone: from now on nobody's."""
    its = next((it for it in bed.hardware.vendors.values() if isinstance(it, EnflameCards)), None)
    if its is None or any(it["allocation"] for it in its.there()):
        return []
    before = bed.foreign
    bed.takes_stock()
    return [(its, name) for name in sorted(bed.foreign - before)]


class Full(Fault):
    """The disk is full for a while, for new files or in the middle of one; the agent may die meanwhile."""

    def __init__(self, rng: Random) -> None:
        super().__init__(rng)
        self._where = rng.choice(("open", "write"))
        self._killed = rng.random() < 0.3
        self.detail = f"at {self._where}{', and killed' if self._killed else ''}"

    async def strike(self, bed: Bed, traffic: Traffic) -> None:
        bed.switches.fill(self._where)
        await traffic.some()
        if self._killed:
            await bed.agent.kill()
            bed.forgetful = True

    async def mend(self, bed: Bed) -> None:
        bed.switches.free()
        await bed.revive()


class FileLimit(Fault):
    """The process may write no byte into any file, its log included, for a while (RLIMIT_FSIZE)."""

    async def strike(self, bed: Bed, traffic: Traffic) -> None:
        self._pid = bed.agent.pid
        if self._pid is None:
            raise Unreached("no agent runs")
        _, self._hard = resource.prlimit(self._pid, resource.RLIMIT_FSIZE)
        resource.prlimit(self._pid, resource.RLIMIT_FSIZE, (0, self._hard))
        await traffic.some()

    async def mend(self, bed: Bed) -> None:
        if self._pid is not None and self._pid == bed.agent.pid:
            for pid in (self._pid, *children(self._pid)):  # who was born meanwhile has the limit, too
                with suppress(ProcessLookupError):
                    resource.prlimit(pid, resource.RLIMIT_FSIZE, (self._hard, self._hard))


class KubeletCheckpoint(Fault):
    """The kubelet's checkpoint cannot be read for a while."""

    async def strike(self, bed: Bed, traffic: Traffic) -> None:
        path = bed.kubelet.checkpoint
        if not path.exists():
            raise Unreached("the kubelet has no checkpoint")
        self._good = path.read_bytes()
        how = self.rng.choice(("garbage", "torn", "gone"))
        self.detail = how
        killed = self.rng.random() < 0.3
        if killed:
            self.detail += ", agent killed"
            await bed.agent.kill()
        self._spoilt = {"garbage": b"\x00 garbage", "torn": self._good[: len(self._good) // 2], "gone": b""}[
            how
        ]
        if how == "gone":
            path.unlink()
        else:
            path.write_bytes(self._spoilt)
        if killed:
            await bed.agent.start()
        await asyncio.sleep(self.rng.choice((0.1, 0.5, 1.0)))

    async def mend(self, bed: Bed) -> None:
        path = bed.kubelet.checkpoint
        with suppress(FileNotFoundError):
            if path.read_bytes() != self._spoilt:
                return  # the kubelet wrote it anew meanwhile
        fresh = path.with_name(".mended")
        fresh.write_bytes(self._good)
        fresh.replace(path)


KINDS = (
    Kind("checkpoint torn", Torn),
    Kind("checkpoint edited", Edited),
    Kind("journal torn", JournalTorn, appends, mixes=False),
    Kind("journal edited", JournalEdited, appends, mixes=False),
    Kind("checkpoint replaced by an older one", Older),
    Kind("checkpoint deleted", Deleted),
    Kind("disk full", Full),
    Kind("no byte can be written", FileLimit),
    Kind("kubelet's checkpoint unreadable", KubeletCheckpoint, mixes=False),
)
