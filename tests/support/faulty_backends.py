"""Backends that misbehave as their settings say; tests run them in processes of their own."""

from __future__ import annotations

import json
import mmap
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn, cast

from agent.vendor_api.agent import (
    Backend,
    BackendUnavailable,
    Device,
    Fault,
    HealthEvent,
    Link,
    NoRoom,
    Partition,
    ProcessUsage,
    Request,
    RequestRefused,
    State,
    Usage,
)

GOOD = (Device("dev-a", 0), Device("dev-b", 1))


#: A message of 1000 events, whose length no buffer is.
FLOOD = b'{"events": [' + b",".join([b'{"uuid": "dev-a", "fault": null}'] * 1000) + b"]}\n"


def _socket() -> int:
    """The number of the socket to the agent, which a wild library may write to as well."""
    return int(sys.argv[1])


class Good(Backend):
    """Two devices. With the setting `flag`, the fault in `does` happens while that file exists."""

    @property
    def bad(self) -> bool:
        return "flag" not in self.settings or Path(self.settings["flag"]).exists()

    def act(self, call: str) -> Any:
        name = self.settings.get("does", {}).get(call)
        return getattr(self, f"do_{name}")() if name and self.bad else None

    def open(self) -> None:
        self.act("open")

    def discover(self) -> Sequence[Device]:
        return cast("Sequence[Device]", self.act("discover")) or GOOD

    def close(self) -> None:
        if "closed" in self.settings:
            Path(self.settings["closed"]).touch()

    def prepare(self, request: Request, uuids: Sequence[str]) -> Sequence[Partition]:
        return self.act("prepare") or [Partition(f"{request.allocation}-{request.ids[0]}", uuids[0])]

    def partitions(self) -> Sequence[Partition]:
        self.act("partitions")
        return ()

    def do_segfault(self) -> None:
        os.kill(os.getpid(), signal.SIGSEGV)

    def do_fork_and_segfault(self) -> None:
        if os.fork() == 0:
            time.sleep(3600)  # and keeps the socket open
        os.kill(os.getpid(), signal.SIGSEGV)

    def do_fork_and_hang(self) -> None:
        """Leave a fork and another program; the file of the setting `pids` says which."""
        forked = os.fork()
        if forked == 0:
            time.sleep(3600)
        program = os.fork()
        if program == 0:
            os.execvp("sleep", ["sleep", "3600"])
        # Renamed, for a reader may see the text before its writer has closed the file.
        written = Path(self.settings["pids"]).with_suffix(".written")
        written.write_text(f"{forked} {program}\n")
        written.rename(self.settings["pids"])
        self.do_hang()

    def do_leave(self) -> None:
        """Leave a process in a session of its own, a daemon, and a program with nothing of ours.

        The file of the setting `pids` says which.
        """
        if os.fork() == 0:
            os.setsid()
            self._stay()
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                self._stay()
            os._exit(0)
        os.wait()
        stay = f"echo $$ >> {self.settings['pids']}; exec sleep 3600"
        subprocess.run(["env", "-i", "/usr/bin/env", "setsid", "-f", "sh", "-c", stay], check=True)

    def _stay(self) -> NoReturn:
        with Path(self.settings["pids"]).open("a") as file:
            file.write(f"{os.getpid()}\n")
        while True:
            time.sleep(3600)

    def do_leak(self) -> None:
        self.kept = [*getattr(self, "kept", ()), b"x" * (32 << 20)]

    def do_leak_and_hang(self) -> None:
        for _ in range(4):
            self.do_leak()
        self.do_hang()

    def do_leak_for_ever(self) -> None:
        while True:
            self.do_leak()

    def do_reserve(self) -> None:
        self.reserved = mmap.mmap(-1, 1 << 36, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, 0)

    def do_leap(self) -> None:
        bytearray(4 << 30)

    def do_leak_and_segfault(self) -> None:
        with suppress(MemoryError):
            while True:
                self.do_leak()
        self.do_segfault()

    def do_kill_its_group(self) -> None:
        os.killpg(0, signal.SIGKILL)

    def do_close_the_socket(self) -> None:
        os.close(_socket())

    def do_close_every_file(self) -> None:
        os.closerange(0, 1000)

    def do_stop(self) -> None:
        os.kill(os.getpid(), signal.SIGSTOP)

    def do_flood(self) -> None:
        while True:
            os.write(_socket(), FLOOD)

    def do_exit(self) -> None:
        sys.exit(7)

    def do_hang(self) -> None:
        while True:
            time.sleep(3600)

    def do_hang_while_flagged(self) -> None:
        while self.bad:
            time.sleep(0.005)

    def do_garbage(self) -> None:
        os.write(_socket(), b"\x00\xff not json\n")

    def do_nest(self) -> None:
        os.write(_socket(), b'{"id": 2, "answer": ' + b"[" * 50_000 + b"]" * 50_000 + b"}\n")

    def do_a_strange_answer(self) -> None:
        os.write(_socket(), b'{"id": 99, "answer": []}\n')

    def do_huge_line(self) -> None:
        block = b"x" * (1 << 20)
        for _ in range(40):
            os.write(_socket(), block)

    def do_print(self) -> None:
        os.write(1, b'{"id": 1, "answer": []}\n')
        sys.stdout.write("noise\n")
        sys.stdout.flush()

    def do_print_and_die(self) -> None:
        os.write(2, b"farewell")
        os._exit(3)

    def do_print_a_lot(self) -> None:
        for _ in range(100):
            os.write(2, b"noise\n" * 1000)

    def do_raise(self) -> None:
        raise RuntimeError(self.settings.get("raises", "the card is on fire"))

    def do_refuse(self) -> None:
        raise RequestRefused("half a card was asked for; a quarter works")

    def do_lack_room(self) -> None:
        raise NoRoom("half a card was asked for; a quarter is free")

    def do_unavailable(self) -> None:
        reason = self.settings.get("reason", "driver-not-loaded")
        raise BackendUnavailable(reason, self.settings.get("message", "no /dev/xpu"))

    def do_bytes(self) -> Any:
        return [Device(cast("str", b"GPU-1"), 0)]

    def do_nonsense(self) -> Any:
        return ["nonsense"]

    def do_devices(self) -> Any:
        return [Device(**raw) for raw in self.settings["devices"]]

    def do_many(self) -> Any:
        """As many as a node may have, in a message of more than a MiB."""
        return [Device(f"dev-{it}", it, attributes={"a": "x" * 200, "b": "y" * 200}) for it in range(1024)]

    def do_empty(self) -> Any:
        return Nothing()


class Nothing(list[Device]):
    """An empty list that counts as an answer."""

    def __bool__(self) -> bool:
        return True


class Watched(Good):
    """Has an event source, which is as bad as the setting `events` says."""

    _first_wait = True

    def health_events(self, timeout: float) -> Sequence[HealthEvent]:
        kind = self.settings["events"]
        if kind == "raise" and self.bad:
            raise OSError("event source is gone")
        if kind == "unmonitored" and self._first_wait:
            self._first_wait = False
            return (HealthEvent("dev-a", Fault("unmonitored", state=State.UNKNOWN)),)
        if kind == "nonsense":
            return cast("Sequence[HealthEvent]", [1])
        time.sleep(0.01)
        return ()


class Linked(Good):
    """Reads links; counts in the file of the setting `count` how often."""

    def discover(self) -> Sequence[Device]:
        found = super().discover()
        return (
            (GOOD[0], replace(GOOD[1], fault=Fault("hot")))
            if self.settings.get("sick") and self.bad
            else found
        )

    def links(self, uuid: str) -> Sequence[Link]:
        with Path(self.settings["count"]).open("a") as file:
            file.write(f"{uuid}\n")
        self.act("links")
        return [Link(device.uuid, lanes=4) for device in GOOD if device.uuid != uuid]


class Used(Good):
    """Tells which process uses the first device. Events come all the time."""

    def usage(self) -> Sequence[Usage]:
        return cast("Sequence[Usage]", self.act("usage")) or [Usage("dev-a", memory_used=1 << 30)]

    def processes(self) -> Sequence[ProcessUsage]:
        return cast("Sequence[ProcessUsage]", self.act("processes")) or [
            ProcessUsage("dev-a", 4711, 1 << 29, 0.5)
        ]

    def health_events(self, timeout: float) -> Sequence[HealthEvent]:
        time.sleep(0.01)
        return (HealthEvent("dev-a", Fault(f"xid-{time.monotonic_ns()}")),)

    def close(self) -> None:
        if "closed" in self.settings:
            text = "in use" if self.sampling else "at rest"
            Path(self.settings["closed"]).write_text(text)

    sampling = False

    def do_take_a_moment(self) -> None:
        self.sampling = True
        Path(self.settings["began"]).touch()
        time.sleep(0.1)
        self.sampling = False

    def do_many_processes(self) -> Any:
        return [ProcessUsage("dev-a", 1 + it, 1 << 20, 0.01) for it in range(10_000)]

    def do_endless(self) -> Any:
        return [ProcessUsage("dev-a" * 20, 1 + it) for it in range(30_000)]

    def do_strange(self) -> Any:
        return [ProcessUsage("dev-z", 5)]

    def do_twice(self) -> Any:
        return [Usage("dev-a", 1), Usage("dev-a", 2)]

    def do_absurd(self) -> Any:
        return [ProcessUsage("dev-a", 5, -1, float("nan")), ProcessUsage("dev-b", 6, 1, 0.25)]


class UsedByOne(Used):
    """Has one caller; notes the calls, and whether the main thread makes them, in the file `count`."""

    one_caller = True

    def act(self, call: str) -> Any:
        with Path(self.settings["count"]).open("a") as file:
            file.write(f"{call} {threading.current_thread() is threading.main_thread()}\n")
        return super().act(call)


class Unloadable(Good):
    def __init__(self, settings: Any) -> None:
        super().__init__(settings)
        raise ImportError("libxpu.so.1: cannot open shared object file")


NotABackend = 5


class Specified(Good):
    """Has CDI specs; counts in the file of the setting `count` how often they are asked for."""

    def discover(self) -> Sequence[Device]:
        found = super().discover()
        if self.settings.get("breaks") and self.bad:
            return (GOOD[0], replace(GOOD[1], fault=Fault("hot")))
        return (*found, Device("dev-c", 2)) if self.settings.get("grows") and self.bad else found

    def cdi(self) -> Mapping[str, str]:
        with Path(self.settings["count"]).open("a") as file:
            file.write("asked\n")
        return self.act("cdi") or {"acme.com-xpu.json": '{"cdiVersion": "0.5.0"}'}

    def do_no_json(self) -> Any:
        return {"acme.com-xpu.json": "not JSON"}

    def do_escape(self) -> Any:
        return {"../../etc/cron.d/x.json": "{}"}


class Slicing(Good):
    """Has a CDI device for each allocation that it prepared."""

    def __init__(self, settings: Any) -> None:
        super().__init__(settings)
        self.made: list[str] = []

    def prepare(self, request: Request, uuids: Sequence[str]) -> Sequence[Partition]:
        made = super().prepare(request, uuids)
        self.made.append(request.allocation)
        return made

    def release(self, allocation: str) -> None:
        self.act("release")
        self.made.remove(allocation)

    def cdi(self) -> Mapping[str, str]:
        wrong = self.act("cdi") if self.made or self.settings.get("always") else None
        return wrong or {"acme.com-slice.json": json.dumps({"made": self.made})}


class Keeping(Good):
    """Keeps in its directory how often it was opened; says its path as a device's model."""

    def open(self) -> None:
        if self.directory is not None:
            with (self.directory / "opened").open("a") as file:
                file.write("opened\n")

    def discover(self) -> Sequence[Device]:
        return (replace(GOOD[0], model=str(self.directory)),)
