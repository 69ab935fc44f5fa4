"""An efsmi for machines without Enflame hardware, run by itself: `python efsmi.py CONTROL [-i N] ...`.

CONTROL.efsmi has what the driving test says, as JSON: the cards as the tool finds them, the table's format,
the faults. CONTROL.state has what outlives every process, as instances do on hardware; whoever changes it
holds the lock on CONTROL.lock. Faults are named by the command's name here: table, list, list-instance,
list-profile, drs-on, drs-off, create, destroy.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import signal
import sys
import time
from contextlib import contextmanager

TYPE_CHECKING = False
if TYPE_CHECKING:  # the tool is run thousands of times: each import counts
    from collections.abc import Iterator, Sequence
    from typing import Any

#: The slices of an S60, and its profiles: name, number, slices (real ones of an S60).
SLICES = 6
PROFILES = (("1g.6gb", 0, 1), ("3g.20gb", 1, 3), ("6g.40gb", 2, 6))
BANNER = "--------------------- Enflame System Management Interface ---------------------"
#: Of published tables: the first lines, then a card's two lines, as each release has them.
TABLES = {
    "1.2.0.301": (
        "|EFSMI    V1.2.0.301       Driver Ver: 1.2.0.301                           |",
        "| DEV    NAME                | FW VER          | BUS-ID      ECC           |",
        "| TEMP   Dpm   Pwr(Usage/Cap)| Mem     GCU Virt| DUsed       SN            |",
        "| {index:<6} {name:<20}| 33.6.2          | {bus}  {ecc:<14}|",
        "| 39 C   Sleep    105W  300W | {memory}MiB {virt}|   0.0%      {serial} |",
    ),
    "1.4.0.3": (
        "| EFSMI    1.4.0.3         Driver Ver: 1.4.0.3                                |",
        "| DEV    NAME                 | FW VER            | BUS-ID      ECC           |",
        "| TEMP   Dpm   Pwr(Usage/Cap) | Mem      GCU Virt | DUsed       SN            |",
        "| {index:<6} Enflame {name:<13}| 33.6.5            | {bus}  {ecc:<14}|",
        "| 71℃    Sleep   118W / 300W  | {memory}MiB {virt:<8}| 0%          {serial} |",
    ),
    "1.6.3.12": (
        "| EFSMI: 1.6.3.12          Driver Ver: 1.6.3.12                               |",
        "| DEV    NAME                 | FW VER            | BUS-ID      ECC           |",
        "| TEMP   Lpm   Pwr(Usage/Cap) | Mem      GCU Virt | DUsed       SN            |",
        "| {index:<6} Enflame {name:<13}| 31.5.3            | {bus}  {ecc:<14}|",
        "| 34℃    LP0      N/A         | {memory}MiB  {virt:<7}| 0%          {serial} |",
    ),
    "1.7.2.14": (
        "| EFSMI: 1.7.2.14          Driver Ver: 1.7.2.14                               |",
        "| DEV    NAME                 | Boot FW VER       | BUS-ID      ECC           |",
        "| TEMP   Lpm   Pwr(Usage/Cap) | Mem      GCU Virt | DUsed       SN            |",
        "| {index:<6} Enflame {name:<13}| 40.2.8.3          | {bus}  {ecc:<14}|",
        "| 35℃    LP1      68W / 300W  | {memory}MiB {virt:<8}| 0%          {serial} |",
    ),
}
COMMANDS: dict[tuple[str, ...], str] = {
    (): "table",
    ("-L",): "list",
    ("--drs", "--list-instance"): "list-instance",
    ("--drs", "--list-profile"): "list-profile",
    ("--drs", "on"): "drs-on",
    ("--drs", "off"): "drs-off",
    ("--drs", "--create-instance"): "create",
    ("--drs", "--destroy-instance"): "destroy",
}


class Refused(Exception):
    """What the hardware does not let be done."""


def read_state(control: str) -> dict[str, Any]:
    """`drs` has the slots with DRS on; `instances` slot, id, profile, uuid; `serial` what comes next."""
    try:
        state: dict[str, Any] = _read(f"{control}.state")
    except FileNotFoundError:
        return {"serial": 1, "drs": [], "instances": []}
    return state


@contextmanager
def changed_state(control: str) -> Iterator[dict[str, Any]]:
    """The hardware's state, to be changed at once; an error changes nothing."""
    with open(f"{control}.lock", "a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        state = read_state(control)
        yield state
        with open(f"{control}.state.new", "w") as unfinished:
            json.dump(state, unfinished)
        os.rename(f"{control}.state.new", f"{control}.state")


def make_instance(state: dict[str, Any], slot: int, profile: str) -> dict[str, Any]:
    """Add an instance by the rule that slices add up. That placement is free is our assumption."""
    sizes = {name: slices for name, _, slices in PROFILES}
    if profile not in sizes:
        raise Refused("no such profile")
    there = [it for it in state["instances"] if it["slot"] == slot]
    if sum(sizes[it["profile"]] for it in there) + sizes[profile] > SLICES:
        raise Refused("insufficient resources")
    number = next(number for number in range(SLICES + 1) if number not in {it["id"] for it in there})
    made = {"slot": slot, "id": number, "profile": profile, "uuid": _uuid(state["serial"])}
    state["serial"] += 1
    state["instances"].append(made)
    return made


def _read(path: str) -> Any:
    with open(path) as file:
        return json.load(file)


def say(*lines: str) -> None:
    sys.stdout.write("".join(f"{line}\n" for line in lines))


def _uuid(serial: int) -> str:
    return f"7325501d-02bd-4da2-9289-{serial:012x}"


class Tool:
    def __init__(self, control: str) -> None:
        self.control = control
        self.said: dict[str, Any] = _read(f"{control}.efsmi")
        self.index: int | None = None

    def main(self, arguments: list[str]) -> int:
        if arguments[:1] == ["-i"]:
            self.index, arguments = int(arguments[1]), arguments[2:]
        number = int(arguments.pop()) if arguments and re.fullmatch("[0-9]+", arguments[-1]) else 0
        command = COMMANDS.get(tuple(arguments))
        self.trace(command or "unknown")
        if command is None:
            say("Error: invalid option")
            return 1
        self.kill(command, "before")
        fault = self.said["faults"].get(command, {})
        if not self.said["driver"]:
            say("Error: driver is not loaded")
            return 1
        while fault.get("hang"):
            time.sleep(60)  # until who called it kills it, as a tool that waits for a dead card
        if "garbage" in fault:
            say(fault["garbage"])
            return 0
        if "status" in fault and not fault.get("late"):
            return self.fail(fault)
        try:
            self.run(command, number)
        except Refused as refused:
            say(f"Error: {refused}")
            return 1
        self.kill(command, "after")
        return self.fail(fault) if "status" in fault else 0

    def fail(self, fault: dict[str, Any]) -> int:
        sys.stderr.write(fault["text"] + "\n")
        return int(fault["status"])

    def run(self, command: str, number: int) -> None:
        match command:
            case "table":
                self.print_table()
            case "list":
                self.print_cards()
                self.print_instances("DEV  NAME  ID  UUID", ("profile", "id", "uuid"))
            case "list-instance":
                self.print_instances(
                    "DEV  NAME  PROFILE ID  ID  PLACEMENT", ("profile", "number", "id", "place")
                )
            case "list-profile":
                self.print_profiles()
            case "drs-on":
                self.set_drs(True)
            case "drs-off":
                self.set_drs(False)
            case "create":
                self.create(number)
            case "destroy":
                self.destroy(number)

    def cards(self) -> list[dict[str, Any]]:
        """Those the command is for: without -i all of them, which is what makes it dangerous."""
        found: list[dict[str, Any]] = self.said["cards"]
        chosen = [it for it in found if self.index in (None, it["index"])]
        if not chosen and self.index is not None:
            raise Refused(f"device {self.index} is not found")
        return chosen

    def print_table(self) -> None:
        state = read_state(self.control)
        first, *heads, upper, lower = TABLES[self.said["format"]]
        rule = "+-----------------------------+-------------------+---------------------------+"
        say(BANNER, "", "+2026-03-06, 10:12:03 CST-----+", first, rule, *heads, f"|{'=' * 77}|")
        for card in self.cards():
            virt = "DRS" if card["slot"] in state["drs"] else card["virt"]
            facts = {**card, "virt": virt, "ecc": "Enable", "bus": card["bdf"][2:]}
            say(upper.format(**facts), lower.format(**facts), rule)

    def print_cards(self) -> None:
        say(BANNER, "DEV    SN                Slot    ID           Bus             CPU Affinity     UUID")
        for it in self.cards():
            row = (it["index"], it["serial"], "N/A", "1e36:c035", it["bdf"], "0-31", it["uuid"])
            say("     ".join(map(str, row)))

    def print_instances(self, head: str, columns: Sequence[str]) -> None:
        indices = {card["slot"]: card["index"] for card in self.cards()}
        numbers = {name: number for name, number, _ in PROFILES}
        say(BANNER, f"| {head} |")
        for it in read_state(self.control)["instances"]:
            if it["slot"] in indices:
                row = {**it, "number": numbers[it["profile"]], "place": f"{it['id']}:1"}
                say(f"| {indices[it['slot']]}    {'    '.join(str(row[name]) for name in columns)} |")

    def print_profiles(self) -> None:
        drs = read_state(self.control)["drs"]
        say(BANNER, "| DEV  NAME  PROFILE ID  INSTANCES  MEMORY  SIP |")
        for card in self.cards():
            if card["slot"] not in drs:
                raise Refused("DRS is not enabled")
            for name, number, slices in PROFILES:
                memory = f"{card['memory'] * slices // SLICES}MiB"
                row = (card["index"], name, number, SLICES // slices, memory, slices * 4)
                say(f"| {'    '.join(map(str, row))} |")

    def set_drs(self, on: bool) -> None:
        with changed_state(self.control) as state:
            for card in self.cards():
                slot = card["slot"]
                if on and card["virt"] != "Disable":
                    raise Refused(f"DRS is not supported in {card['virt']} mode")
                if card["busy"]:
                    raise Refused("device is in use")
                if not on and any(it["slot"] == slot for it in state["instances"]):
                    raise Refused("instances exist")
                state["drs"] = sorted({*state["drs"], slot} if on else {*state["drs"]} - {slot})

    def create(self, number: int) -> None:
        profile = next((name for name, it, _ in PROFILES if it == number), "")
        with changed_state(self.control) as state:
            for card in self.cards():
                if card["slot"] not in state["drs"]:
                    raise Refused("DRS is not enabled")
                make_instance(state, card["slot"], profile)

    def destroy(self, number: int) -> None:
        slots = {card["slot"] for card in self.cards()}
        with changed_state(self.control) as state:
            gone = [it for it in state["instances"] if it["slot"] in slots and it["id"] == number]
            if not gone:
                raise Refused("no such instance")
            if any(it["uuid"] in self.said["used"] for it in gone):
                raise Refused("instance is in use")
            state["instances"] = [it for it in state["instances"] if it not in gone]

    def kill(self, command: str, when: str) -> None:
        """Die, or let the caller die, once: whoever leaves the file does."""
        for kill in self.said["kills"]:
            if (kill["command"], kill["when"]) != (command, when):
                continue
            try:
                os.close(os.open(f"{self.control}.killed.{kill['number']}", os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                continue
            os.kill(os.getppid() if kill["caller"] else os.getpid(), signal.SIGKILL)

    def trace(self, command: str) -> None:
        if self.said["trace"]:
            with open(f"{self.control}.trace", "a") as file:
                file.write(f"efsmi:{command}\n")


def main() -> None:
    sys.stdout.reconfigure(encoding="utf-8")  # type: ignore[union-attr]
    sys.exit(Tool(sys.argv[1]).main(sys.argv[2:]))


if __name__ == "__main__":
    main()
