"""Rules of running efsmi and of reading what it prints."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from efml_stub import EfmlStub
from hypothesis import given
from hypothesis import strategies as st

from agent.vendors.enflame.child import efsmi
from agent.vendors.enflame.child.efsmi import (
    DrsInstance,
    Efsmi,
    EfsmiError,
    EfsmiListing,
    ListedCard,
    SliceProfile,
    TableRow,
)

pytest_plugins = ["efml_fixtures"]

#: Published tables: PaddlePaddle's GCU page, vllm-gcu's README, FlagTree's pages of two releases.
OF_1_2 = """\
----------------------------------------------------------------------------
------------------- Enflame System Management Interface --------------------
----------------------------------------------------------------------------

+2024-12-06, 11:33:56 CST--------------------------------------------------+
|EFSMI    V1.2.0.301       Driver Ver: 1.2.0.301                           |
|--------------------------------------------------------------------------|
|--------------------------------------------------------------------------|
| DEV    NAME                | FW VER          | BUS-ID      ECC           |
| TEMP   Dpm   Pwr(Usage/Cap)| Mem     GCU Virt| DUsed       SN            |
|--------------------------------------------------------------------------|
| 0      S60                 | 33.6.2          | 00:01:00.0  Disable       |
| 39 C   Sleep    105W  300W | 49120MiB Disable|   0.0%      A073640510015 |
+--------------------------------------------------------------------------+
|--------------------------------------------------------------------------|
| 1      S60                 | 33.6.5          | 00:09:00.0  Enable        |
| 46 C   Active   128W  300W | 42976MiB Disable|   0.0%      C807J40510285 |
+--------------------------------------------------------------------------+
"""
OF_1_4 = """\
+2025-07-21, 03:50:09 UTC----------------------------------------------------+
| EFSMI    1.4.0.505       Driver Ver: 1.4.4.501                             |
|----------------------------------------------------------------------------|
| DEV    NAME                 | FW VER           | BUS-ID      ECC           |
| TEMP   Dpm   Pwr(Usage/Cap) | Mem     GCU Virt | DUsed       SN            |
|----------------------------------------------------------------------------|
| 0      Enflame S60          | 33.6.5           | 00:3d:00.0  Enable        |
| -      Sleep    -           | 49120MiB Disable | 0%          xxx |
+----------------------------------------------------------------------------+
|----------------------------------------------------------------------------|
| 1      Enflame S60          | 33.6.5           | 00:3e:00.0  Disable       |
| 71℃    Sleep   118W / 300W  | 42976MiB Disable | 0%          A018K30500001 |
+----------------------------------------------------------------------------+
"""
OF_1_6 = """\
+2025-11-28, 10:50:14 CST-----------------------------------------------------+
| EFSMI: 1.6.3.12          Driver Ver: 1.6.3.12                               |
+-----------------------------+-------------------+---------------------------+
| DEV    NAME                 | FW VER            | BUS-ID      ECC           |
| TEMP   Lpm   Pwr(Usage/Cap) | Mem      GCU Virt | DUsed       SN            |
|=============================================================================|
| 0      Enflame S60G         | 31.5.3            | 00:2e:00.0  Disable       |
| 34℃    LP0      N/A         | 23552MiB  SRIOV   | 0%          A018K30520031 |
+-----------------------------+-------------------+---------------------------+
"""
OF_1_7 = """\
+2026-03-06, 10:12:03 CST-----------------------------------------------------+
| EFSMI: 1.7.2.14          Driver Ver: 1.7.2.14                               |
+-----------------------------+-------------------+---------------------------+
| DEV    NAME                 | Boot FW VER       | BUS-ID      ECC           |
| TEMP   Lpm   Pwr(Usage/Cap) | Mem      GCU Virt | DUsed       SN            |
|=============================================================================|
| 0      Enflame L300         | 40.2.8.3          | 00:2d:00.0  Enable        |
| 35℃    LP1      68W / 300W  | 147456MiB Disable | 0%          A098Q50610048 |
+-----------------------------+-------------------+---------------------------+
"""
TABLES = {
    "1.2.0.301": (
        OF_1_2,
        (
            TableRow(0, "S60", "33.6.2", "00:01:00.0", "Disable", 49120, "Disable", "A073640510015"),
            TableRow(1, "S60", "33.6.5", "00:09:00.0", "Enable", 42976, "Disable", "C807J40510285"),
        ),
    ),
    "1.4.0.505": (
        OF_1_4,
        (
            TableRow(0, "Enflame S60", "33.6.5", "00:3d:00.0", "Enable", 49120, "Disable", "xxx"),
            TableRow(1, "Enflame S60", "33.6.5", "00:3e:00.0", "Disable", 42976, "Disable", "A018K30500001"),
        ),
    ),
    "1.6.3.12": (
        OF_1_6,
        (TableRow(0, "Enflame S60G", "31.5.3", "00:2e:00.0", "Disable", 23552, "SRIOV", "A018K30520031"),),
    ),
    "1.7.2.14": (
        OF_1_7,
        (
            TableRow(
                0, "Enflame L300", "40.2.8.3", "00:2d:00.0", "Enable", 147456, "Disable", "A098Q50610048"
            ),
        ),
    ),
}
CARD = "| 0      Enflame S60 | 33.6.5 | 00:3d:00.0  Enable |"
BELOW = "| 71℃ Sleep 118W / 300W | 42976MiB DRS | 0% A018K30500001 |"


# The table


@pytest.mark.parametrize("release", TABLES)
def test_a_published_table_is_read(release: str) -> None:
    text, rows = TABLES[release]

    assert efsmi.table(text) == EfsmiListing(rows)


@pytest.mark.parametrize(
    ("below", "memory", "virt", "serial"),
    [
        ("| 71℃ Sleep | 42976MiB | 0% A1 |", 42976, "", "A1"),
        ("| 71℃ Sleep | 42976 MiB DRS | 0% A1 |", 42976, "DRS", "A1"),
        ("| 71℃ Sleep | N/A | 0% |", None, "N/A", ""),
        ("| 71℃ Sleep | | |", None, "", ""),
    ],
)
def test_what_a_row_lacks_is_not_taken_from_the_next_column(
    below: str, memory: int | None, virt: str, serial: str
) -> None:
    [row] = efsmi.table(f"{CARD}\n{below}").rows

    assert (row.memory, row.virt, row.serial) == (memory, virt, serial)


def test_a_row_that_is_not_understood_is_told_of_and_hides_no_card() -> None:
    odd = "| 3g.20gb instance | 20480MiB | busy |"

    assert efsmi.table("\n".join([odd, CARD, BELOW, odd])) == EfsmiListing(
        (TableRow(0, "Enflame S60", "33.6.5", "00:3d:00.0", "Enable", 42976, "DRS", "A018K30500001"),),
        (f"not understood: {odd}", f"not understood: {odd}"),
    )


def test_a_card_without_its_second_line_is_told_of() -> None:
    found = efsmi.table("\n".join([CARD, CARD, BELOW, CARD]))

    assert len(found.rows) == 1
    assert [it.split(":")[0] for it in found.remarks] == ["card without a second line"] * 2


def test_a_number_that_no_card_has_is_no_card() -> None:
    found = efsmi.table(f"{CARD.replace('| 0 ', '| 128 ')}\n{BELOW}")

    assert (found.rows, len(found.remarks)) == ((), 2)


def test_remarks_are_few_and_short() -> None:
    found = efsmi.table("\n".join(["| x | y | " + "z" * 1000 + " |"] * 1000))

    assert len(found.remarks) == efsmi.MAX_REMARKS
    assert {len(it) for it in found.remarks} == {efsmi.REMARK}


@pytest.mark.parametrize(
    ("bus_id", "bdf", "same"),
    [
        ("00:3d:00.0", "0000:3d:00.0", True),
        ("00:3D:00.0", "0000:3d:00.0", True),
        ("01:3d:00.0", "0000:3d:00.0", False),
        ("01:3d:00.0", "0001:3d:00.0", True),
        ("3d:00.0", "0000:3d:00.0", True),
        ("00:3d:00.0", "0000:3e:00.0", False),
    ],
)
def test_a_row_is_of_the_card_with_that_address(bus_id: str, bdf: str, same: bool) -> None:
    assert TableRow(0, "S60", "", bus_id, "", None, "", "").is_at(bdf) == same


# Listings

#: Published, of a card with another vendor's name and number.
CARDS = """\
DEV    SN                Slot    ID           Bus             CPU Affinity     UUID
-------------------------------------------------------------------------------------------
0      A0A8640510030     N/A     1ea0:2a22    0000:23:00.0    0-31             TPUH61160105
"""


def test_cards_are_read_from_the_listing_that_has_instances_too() -> None:
    instance = f"| 0 3g.20gb 2 {UUID} |"

    assert efsmi.cards(CARDS + instance) == EfsmiListing(
        (ListedCard(0, "A0A8640510030", "0000:23:00.0", "TPUH61160105"),)
    )
    assert efsmi.instances(CARDS + instance) == EfsmiListing((DrsInstance(0, "3g.20gb", 2, UUID),))


def test_a_card_that_is_odd_is_told_of_and_is_none() -> None:
    found = efsmi.cards("x A1 0000:23:00.0 U\n0 A1 0000:23:00.0 $U\n0000:23:00.0\n1 A1 N/A 0001:2F:00.1 U1")

    assert found.rows == (ListedCard(1, "A1", "0001:2f:00.1", "U1"),)
    assert len(found.remarks) == 3


UUID = "7325501d-02bd-4da2-9289-24d8521736b9"
PROFILES = """\
| DEV   PROFILE NAME   PROFILE ID   INSTANCES   MEMORY   SIP |
+------------------------------------------------------------+
| 0     1g.6gb         0            6           6.5GiB   4   |
|-0---- 3g.20gb -------1---------------------- odd           |
| 0     3g.20gb        1            2           20GiB    12  |
"""


def test_profiles_are_read() -> None:
    found = efsmi.profiles(PROFILES)

    assert found.rows == (
        SliceProfile(0, "1g.6gb", 0, 6, "6.5GiB", "4"),
        SliceProfile(0, "3g.20gb", 1, 2, "20GiB", "12"),
    )
    assert [(it.slices, it.gigabytes) for it in found.rows] == [(1, 6), (3, 20)]
    assert found.remarks == (
        "not understood: |-0---- 3g.20gb -------1---------------------- odd           |",
    )


@pytest.mark.parametrize(
    "line",
    [
        f"0 3g.20gb 2 {UUID}",
        f"| 0 3g.20gb 2 {UUID} |",
        f"| 0 | 3g.20gb | 2 | {UUID} |",
        f"|0|3g.20gb|2|{UUID}|x|",
    ],
)
def test_instances_are_read_with_and_without_columns(line: str) -> None:
    assert efsmi.instances(line) == EfsmiListing((DrsInstance(0, "3g.20gb", 2, UUID),))


@pytest.mark.parametrize(
    "line",
    [
        f"| x 3g.20gb 2 {UUID} |",
        f"| 0 3g.20gb -2 {UUID} |",
        f"| 0 3g.20gb ２ {UUID} |",
        f"| 0 3g.20gb 9999999999 {UUID} |",
        f"| 128 3g.20gb 2 {UUID} |",
        "| 0 3g.20gb 2 $(reboot) |",
        "| 0 3g.20gb 2 |",
        f"| 0 S60 3g.20gb 2 {UUID} |",
    ],
)
def test_an_instance_that_is_odd_is_told_of_and_is_none(line: str) -> None:
    assert efsmi.instances(f"{line}\n| 0 1g.6gb 0 {UUID} |") == EfsmiListing(
        (DrsInstance(0, "1g.6gb", 0, UUID),), (f"not understood: {line}",)
    )


def test_instances_of_older_releases_have_no_uuid() -> None:
    assert efsmi.instances_without_uuid("| 1 3g.20gb 1 4 3:3 |") == EfsmiListing(
        (DrsInstance(1, "3g.20gb", 4, ""),)
    )


@given(st.text(alphabet="|+-=0123456789g.b:MiB \n", max_size=300))
def test_whatever_the_tool_prints_is_read_without_an_error(text: str) -> None:
    for read in (efsmi.table, efsmi.cards, efsmi.profiles, efsmi.instances, efsmi.instances_without_uuid):
        read(text)


# Running it

COMMANDS: list[tuple[Callable[[Efsmi], Any], list[str]]] = [
    (lambda it: it.table(), []),
    (lambda it: it.cards(), ["-L"]),
    (lambda it: it.instances(), ["-L"]),
    (lambda it: it.instances(3), ["-i", "3", "-L"]),
    (lambda it: it.listed_instances(3), ["-i", "3", "--drs", "--list-instance"]),
    (lambda it: it.profiles(0), ["-i", "0", "--drs", "--list-profile"]),
    (lambda it: it.set_drs(0, True), ["-i", "0", "--drs", "on"]),
    (lambda it: it.set_drs(127, False), ["-i", "127", "--drs", "off"]),
    (lambda it: it.create(0, 1), ["-i", "0", "--drs", "--create-instance", "1"]),
    (lambda it: it.destroy(0, 2), ["-i", "0", "--drs", "--destroy-instance", "2"]),
]


def script(place: Path, code: str) -> Efsmi:
    place.write_text(f"#!{sys.executable} -IS\nimport os, sys, time\n{code}\n")
    place.chmod(0o755)
    return Efsmi(str(place), timeout=30)


@pytest.mark.parametrize(("call", "arguments"), COMMANDS)
def test_a_command_is_run_by_its_arguments(
    tmp_path: Path, call: Callable[[Efsmi], Any], arguments: list[str]
) -> None:
    tool = script(tmp_path / "efsmi", f"open({str(tmp_path / 'argv')!r}, 'w').write(repr(sys.argv[1:]))")

    call(tool)

    assert (tmp_path / "argv").read_text() == repr(arguments)


@pytest.mark.parametrize("card", ["0", "0; reboot", "", None, -1, 128, True, 1.0])
@pytest.mark.parametrize("command", [lambda it, n: it.set_drs(n, True), lambda it, n: it.destroy(n, 0)])
def test_what_is_no_cards_number_never_reaches_the_tool(
    tmp_path: Path, card: Any, command: Callable[[Efsmi, Any], None]
) -> None:
    with pytest.raises(TypeError, match="is no number from 0 to 127"):
        command(Efsmi(str(tmp_path / "never")), card)


@pytest.mark.parametrize("number", ["1", "1 -i 2", -1, True, 10**9])
def test_what_is_no_profiles_or_instances_number_never_reaches_the_tool(tmp_path: Path, number: Any) -> None:
    tool = Efsmi(str(tmp_path / "never"))

    for command in (tool.create, tool.destroy):
        with pytest.raises(TypeError, match="is no number"):
            command(0, number)


def test_a_tool_that_fails_is_named_with_its_own_words(tmp_path: Path) -> None:
    tool = script(tmp_path / "efsmi", "print('banner'); print('Error: no card'); print('usage'); sys.exit(3)")

    with pytest.raises(EfsmiError) as caught:
        tool.set_drs(0, True)

    assert str(caught.value) == f"{tmp_path}/efsmi -i 0 --drs on: ends with 3: Error: no card"
    assert (caught.value.status, caught.value.argv[1:]) == (3, ("-i", "0", "--drs", "on"))


def test_a_tool_that_says_nothing_fails_too(tmp_path: Path) -> None:
    with pytest.raises(EfsmiError, match="ends with 1: no word"):
        script(tmp_path / "efsmi", "sys.exit(1)").table()


def test_a_tool_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(EfsmiError, match="No such file") as caught:
        Efsmi(str(tmp_path / "efsmi")).table()

    assert caught.value.status is None


def test_a_tool_that_does_not_end_is_killed_with_what_it_started(tmp_path: Path) -> None:
    """The child shares the pipe, and would hold whoever reads it. Both would outlast any test."""
    tool = script(
        tmp_path / "efsmi",
        f"child = os.fork()\nopen({str(tmp_path / 'pid-')!r} + str(os.getpid()), 'w')\ntime.sleep(600)",
    )
    tool.timeout = 2

    with pytest.raises(EfsmiError, match="does not end within 2 s"):
        tool.table()

    while any(_runs(int(path.name.removeprefix("pid-"))) for path in tmp_path.glob("pid-*")):
        time.sleep(0.005)  # between looks: the kernel ends it; who is not killed has this test time out


def test_a_tool_is_in_the_group_of_who_runs_it_which_dies_with_the_agent(tmp_path: Path) -> None:
    tool = script(tmp_path / "efsmi", f"open({str(tmp_path / 'group')!r}, 'w').write(str(os.getpgrp()))")

    tool.cards()

    assert int((tmp_path / "group").read_text()) == os.getpgrp()


def _runs(pid: int) -> bool:
    """Whether the process runs; one that is dead and not yet reaped does not."""
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        return False


def test_a_tool_that_closes_its_output_and_stays_is_killed(tmp_path: Path) -> None:
    """It would outlast any test."""
    tool = script(tmp_path / "efsmi", "os.close(1); os.close(2); time.sleep(600)")
    tool.timeout = 2

    with pytest.raises(EfsmiError, match="does not end within 2 s"):
        tool.table()


def test_a_tool_that_says_too_much_is_stopped(tmp_path: Path) -> None:
    tool = script(tmp_path / "efsmi", "while True: os.write(1, b'x' * 65536)")

    with pytest.raises(EfsmiError, match="says more than 1048576 bytes"):
        tool.table()


def test_a_tool_that_asks_gets_no_answer(tmp_path: Path) -> None:
    tool = script(
        tmp_path / "efsmi", f"open({str(tmp_path / 'input')!r}, 'w').write(os.readlink('/proc/self/fd/0'))"
    )
    ours, (reading, writing) = os.dup(0), os.pipe()
    os.dup2(reading, 0)
    try:
        tool.table()
    finally:
        os.dup2(ours, 0)
        for it in (ours, reading, writing):
            os.close(it)

    assert (tmp_path / "input").read_text() == os.devnull


def test_commands_come_one_after_the_other(tmp_path: Path) -> None:
    """Each makes the same folder for a while: of two at once the second would fail."""
    alone = str(tmp_path / "alone")
    tool = script(tmp_path / "efsmi", f"os.mkdir({alone!r}); time.sleep(0.05); os.rmdir({alone!r})")
    said: list[EfsmiListing[TableRow]] = []
    threads = [threading.Thread(target=lambda: said.append(tool.table())) for _ in range(6)]
    for it in threads:
        it.start()
    for it in threads:
        it.join()

    assert len(said) == 6


def test_output_that_is_no_text_is_read_nevertheless(tmp_path: Path) -> None:
    tool = script(tmp_path / "efsmi", "os.write(1, b'\\xff\\xfe| 0 1g.6gb 0 a |\\n| 0 3g.20gb 1 b |')")

    assert [it.profile for it in tool.instances().rows] == ["3g.20gb"]


def test_a_tool_that_prints_something_else_is_told_of(stub: EfmlStub, tool: Efsmi) -> None:
    stub.efsmi_says("list", "| 0 3g.20gb |\nhello")

    assert tool.instances() == EfsmiListing((), ("not understood: | 0 3g.20gb |",))


def test_a_tool_that_hangs_is_given_up(stub: EfmlStub, tool: Efsmi) -> None:
    stub.efsmi_hangs("table")
    tool.timeout = 2

    with pytest.raises(EfsmiError, match="does not end"):
        tool.table()


# Finding it


def test_the_tool_is_where_the_settings_say(stub: EfmlStub, tmp_path: Path) -> None:
    assert efsmi.find(stub.settings) == str(stub.efsmi)
    assert efsmi.find({"efsmi": str(tmp_path / "nowhere")}) is None


def test_the_tool_is_looked_for_on_path_then_below_the_hosts_root(
    stub: EfmlStub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "host/usr/bin").mkdir(parents=True)
    (tmp_path / "host/usr/bin/efsmi").symlink_to(stub.efsmi)
    monkeypatch.setenv("PATH", os.devnull)
    below, nowhere = efsmi.find({}, f"{tmp_path}/host"), efsmi.find({})
    monkeypatch.setenv("PATH", str(tmp_path))

    assert (below, nowhere) == (f"{tmp_path}/host/usr/bin/efsmi", None)
    assert efsmi.find({}, f"{tmp_path}/host") == str(stub.efsmi)
