"""The numbered steps at which the agent's process can be made to die, put into it from outside.

Nothing in the agent knows of them: functions are wrapped where the agent looks them up.
"""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Callable
from contextvars import ContextVar
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar, cast

from agent.core.allocation.ledger import Ledger
from agent.core.model import Allocation
from agent.daemon.allocation import allocator
from agent.daemon.allocation.allocator import Allocator
from agent.daemon.vendors_in_service import VendorsInService
from agent.state.retried_writes import LedgerStore

from .switches import Switches

F = TypeVar("F", bound=Callable[..., Any])
Reach = Callable[[str], None]

#: Every resource comes by these, in this order ...
ALLOCATE = tuple(
    f"allocate/{name}"
    for name in ("received", "admitted", "edits-made", "done-recorded", "done-save", "done-saved", "answered")
)
#: ... those whose hardware is made come by these, too, between "admitted" and "edits-made" ...
PREPARE = tuple(
    f"allocate/{name}"
    for name in (
        "intent-recorded",
        "intent-save",
        "intent-saved",
        "prepare-called",
        "prepared",
        "prepared-recorded",
        "prepared-save",
        "prepared-saved",
    )
)
#: ... and these at each start of a container.
START = tuple(f"start/{name}" for name in ("received", "prepare-called", "prepared", "answered"))
#: What every write of the checkpoint comes by ...
CHECKPOINT = tuple(
    f"checkpoint/{name}"
    for name in ("before-open", "opened", "half-written", "written", "before-rename", "renamed")
)
#: ... what every change of the ledger comes by that is appended to its journal ...
JOURNAL = tuple(f"journal/{name}" for name in ("before-open", "opened", "half-written", "written"))
#: ... and what those writes of the checkpoint come by, too, that must survive a power cut.
DURABLE = tuple(f"checkpoint/{name}" for name in ("fsynced", "directory-fsynced"))

#: What the answer of this task is at: the call and the state last recorded.
_stage: ContextVar[tuple[str, str]] = ContextVar("stage", default=("", ""))


def install(switches: Switches, state: Path) -> None:
    """Put every failpoint into this process, whose state directory is `state`."""

    def reach(step: str) -> None:
        if switches.fires(step):
            os.kill(os.getpid(), signal.SIGKILL)

    _install_calls(reach)
    _install_steps(reach)
    _Disk(switches, state, reach).install()


def _install_calls(reach: Reach) -> None:
    Allocator.allocate = _entered(Allocator.allocate, "allocate", reach)  # type: ignore[method-assign]
    Allocator.pre_start = _entered(Allocator.pre_start, "start", reach)  # type: ignore[method-assign]


def _entered(call: F, name: str, reach: Reach) -> F:
    @wraps(call)
    async def entered(*args: Any) -> Any:
        _stage.set((name, ""))
        reach(f"{name}/received")
        answer = await call(*args)
        reach(f"{name}/answered")
        return answer

    return cast("F", entered)


def _install_steps(reach: Reach) -> None:
    for function, step in (("admit", "admitted"), ("check_edits", "edits-made")):
        setattr(allocator, function, _followed(getattr(allocator, function), step, reach))
    record, save, call = Ledger.record, LedgerStore.save, VendorsInService.call

    def recorded(self: Ledger, allocation: Allocation) -> None:
        record(self, allocation)
        name, _ = _stage.get()
        if name:
            _stage.set((name, str(allocation.state)))
            reach(f"{name}/{allocation.state}-recorded")

    async def saved(self: LedgerStore, *, durable: bool, last: bool = False) -> None:
        name, state = _stage.get()
        reach(f"{name}/{state}-save")
        await save(self, durable=durable, last=last)
        reach(f"{name}/{state}-saved")

    async def called(self: VendorsInService, vendor: str, method: str, *args: Any) -> Any:
        name, _ = _stage.get()
        if method != "prepare":
            return await call(self, vendor, method, *args)
        reach(f"{name}/prepare-called")
        answer = await call(self, vendor, method, *args)
        reach(f"{name}/prepared")
        return answer

    Ledger.record = recorded  # type: ignore[method-assign]
    LedgerStore.save = saved  # type: ignore[method-assign]
    VendorsInService.call = called  # type: ignore[method-assign]


def _followed(function: F, step: str, reach: Reach) -> F:
    @wraps(function)
    def followed(*args: Any) -> Any:
        answer = function(*args)
        name, _ = _stage.get()
        reach(f"{name}/{step}")
        return answer

    return cast("F", followed)


class _Disk:
    """The system calls on the checkpoint's files: steps to die at, and a disk that is full."""

    def __init__(self, switches: Switches, state: Path, reach: Reach) -> None:
        self._switches = switches
        self._state = str(state)
        self._reach = reach
        #: The descriptors of the files, with the room of their steps.
        self._files: dict[int, str] = {}
        self._directories: set[int] = set()

    def install(self) -> None:
        self._open, self._fsync, self._replace, self._write = os.open, os.fsync, os.replace, os.write
        patched = {
            "open": self._opened,
            "fsync": self._fsynced,
            "replace": self._replaced,
            "rename": self._replaced,
            "write": self._written,
        }
        for name, call in patched.items():
            setattr(os, name, call)

    def _opened(self, path: Any, flags: int, *args: Any, **more: Any) -> int:
        room = self._room(path) if flags & (os.O_WRONLY | os.O_RDWR) else ""
        if room:
            self._reach(f"{room}/before-open")
            if self._switches.full == "open":
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        descriptor = self._open(path, flags, *args, **more)
        self._files.pop(descriptor, None)  # a number that was used before
        self._directories.discard(descriptor)
        if _name(path) == self._state:
            self._directories.add(descriptor)
        if room:
            self._files[descriptor] = room
            self._reach(f"{room}/opened")
        return descriptor

    def _fsynced(self, file: Any) -> None:
        self._fsync(file)
        descriptor = file if isinstance(file, int) else file.fileno()
        if descriptor in self._files:
            self._reach("checkpoint/fsynced")
        elif descriptor in self._directories:
            self._reach("checkpoint/directory-fsynced")

    def _replaced(self, source: Any, target: Any, **more: Any) -> None:
        room = self._room(source)
        if room:
            self._reach(f"{room}/before-rename")
        self._replace(source, target, **more)
        if room:
            self._reach(f"{room}/renamed")

    def _written(self, descriptor: int, content: Any) -> int:
        """In two halves, with a step after each; a full disk takes the first one alone."""
        if descriptor not in self._files:
            return self._write(descriptor, content)
        half, room = len(content) // 2, self._files[descriptor]
        self._write(descriptor, content[:half])
        self._reach(f"{room}/half-written")
        if self._switches.full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._write(descriptor, content[half:])
        self._reach(f"{room}/written")
        return len(content)

    def _room(self, path: Any) -> str:
        """The room of the steps of this file; empty for another file."""
        folder, name = os.path.split(_name(path))
        if folder != self._state or not name.startswith("checkpoint."):
            return ""
        return "journal" if name.startswith("checkpoint.journal") else "checkpoint"


def _name(path: Any) -> str:
    return "" if isinstance(path, int) else os.fsdecode(path)


__all__ = ["ALLOCATE", "CHECKPOINT", "DURABLE", "JOURNAL", "PREPARE", "START", "install"]
