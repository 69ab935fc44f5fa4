"""The file of the node's labels: what it says, when, and what becomes of it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs
from support.labels_of_acme import NOW, STAMP, acme, snapshot
from support.waiting import eventually

from agent.config import Config, ConfigState, ReportSettings
from agent.core.cell import Cell
from agent.core.errors import ConfigError
from agent.core.model import NodeSnapshot, VendorState, VendorStatus
from agent.core.publishing.label_rules import VendorLabels, WantedFeatures
from agent.daemon.publishing.wanted_labels import WantedLabels, labels_of
from agent.host.nfd_features import FeaturesFile, keep, write

# What is written


def test_the_file_can_be_read_by_all_and_nothing_lies_beside_it(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        write(tmp_path / "gfd", "a=1\n")
    finally:
        os.umask(before)

    assert (tmp_path / "gfd").read_text() == "a=1\n"
    assert (tmp_path / "gfd").stat().st_mode & 0o777 == 0o644
    assert [it.name for it in tmp_path.iterdir()] == ["gfd"]


def test_whoever_reads_the_file_sees_the_old_one_or_the_new_one(tmp_path: Path) -> None:
    write(tmp_path / "gfd", "a=1\n")

    with open(tmp_path / "gfd") as reader:
        write(tmp_path / "gfd", "b=2\n")
        assert reader.read() == "a=1\n"

    assert (tmp_path / "gfd").read_text() == "b=2\n"


def test_a_write_that_fails_leaves_the_old_file_and_nothing_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "gfd", "a=1\n")

    def full(path: Path, target: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(ConfigError, match="cannot be written: No space left on device"):
        write(tmp_path / "gfd", "b=2\n")

    assert (tmp_path / "gfd").read_text() == "a=1\n"
    assert [it.name for it in tmp_path.iterdir()] == ["gfd"]


def test_what_a_killed_process_left_behind_is_no_obstacle(tmp_path: Path) -> None:
    (tmp_path / f".gfd.{os.getpid()}").write_text("half")

    write(tmp_path / "gfd", "a=1\n")

    assert [it.name for it in tmp_path.iterdir()] == ["gfd"]


def test_a_directory_that_is_not_there_is_named_with_what_would_work(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"there is no directory {tmp_path}/features.d; make it"):
        write(tmp_path / "features.d" / "gfd", "")


def test_a_directory_that_can_not_be_written_says_so() -> None:
    with pytest.raises(ConfigError, match=r"/proc/gfd: cannot be written: .*; name a file in a directory"):
        write(Path("/proc/gfd"), "a=1\n")


def test_a_file_that_is_as_it_should_be_is_left_alone(tmp_path: Path) -> None:
    known = labels_of(Config(), snapshot(2), {"acme": acme()})
    keep(tmp_path / "gfd", known)
    before = (tmp_path / "gfd").stat().st_ino

    keep(tmp_path / "gfd", known)

    assert (tmp_path / "gfd").stat().st_ino == before


def test_while_there_is_nothing_to_say_no_file_is_made(tmp_path: Path) -> None:
    keep(tmp_path / "gfd", labels_of(Config(), snapshot(0, VendorState.STARTING), {"acme": acme()}))

    assert not (tmp_path / "gfd").exists()


SILENT = [it for it in VendorState if it is not VendorState.OPEN]


@pytest.mark.parametrize("state", SILENT)
def test_labels_of_a_vendor_that_has_not_spoken_stay(tmp_path: Path, state: VendorState) -> None:
    there = "acme.com/card.count=8\n"
    (tmp_path / "gfd").write_text(there)

    keep(tmp_path / "gfd", labels_of(Config(), snapshot(0, state), {"acme": acme()}))

    assert (tmp_path / "gfd").read_text() == there


@pytest.mark.parametrize("state", SILENT)
def test_labels_of_a_vendor_that_is_lost_are_those_of_its_last_devices(state: VendorState) -> None:
    assert labels_of(Config(), snapshot(3, state), {"acme": acme()}).labels == {"acme.com/card.count": "3"}


def test_labels_that_a_vendor_no_longer_makes_are_removed_while_another_is_awaited(tmp_path: Path) -> None:
    (tmp_path / "gfd").write_text("acme.com/old=1\nother.com/card.count=1\n")
    node = replace(snapshot(2), vendors=(*snapshot(2).vendors, VendorStatus("other", VendorState.STARTING)))

    keep(tmp_path / "gfd", labels_of(Config(), node, {"acme": acme(), "other": acme(name="other")}))

    assert (tmp_path / "gfd").read_text() == "acme.com/card.count=2\nother.com/card.count=1\n"


def test_labels_of_a_vendor_that_is_switched_off_are_removed(tmp_path: Path) -> None:
    (tmp_path / "gfd").write_text("other.com/card.count=1\n")

    keep(
        tmp_path / "gfd",
        labels_of(Config(), snapshot(2), {"acme": acme(), "other": acme(name="other")}),
    )

    assert (tmp_path / "gfd").read_text() == "acme.com/card.count=2\n"


def test_a_plugin_that_fails_keeps_its_labels_and_costs_no_other_vendor_his() -> None:
    node = replace(
        snapshot(2), vendors=(VendorStatus("bad", VendorState.OPEN), VendorStatus("acme", VendorState.OPEN))
    )

    known = labels_of(Config(), node, {"bad": acme(lambda *_: {"x": 1 / 0}, "bad"), "acme": acme()})

    assert known.labels == {"acme.com/card.count": "2"}
    assert known.awaited == {"bad.com"}
    assert "bad: its plugin fails to make labels" in known.trouble


# The file while the agent runs


class Node:
    """The cells that a Labelling follows, and the file of the labels."""

    def __init__(self, path: Path, *, api: bool = True) -> None:
        self.path = path
        self.report = ReportSettings(features_file=str(path), machine_file="")
        self.config = Cell(ConfigState(Config(report=self.report), "here"))
        self.snapshot = Cell(snapshot(2))
        self.vendors = {"acme": acme()}
        self.now = NOW
        self.noted: set[Path] = set()
        self.labelling = WantedLabels(
            self.config, self.snapshot, lambda: self.vendors, lambda: self.now, api=api, settle=0.001
        )
        self.wanted = self.labelling.wanted
        self.file = self.features()

    def features(self) -> FeaturesFile:
        """What the file is kept by in the agent's next life."""
        return FeaturesFile(
            self.wanted,
            every=0.02,
            note=self.noted.add,
            noted=lambda: tuple(self.noted),
            forget=self.noted.discard,
        )

    def configure(self, **changed: Any) -> None:
        self.report = replace(self.report, **changed)
        self.config.set(ConfigState(Config(report=self.report), "here"))

    @asynccontextmanager
    async def runs(self) -> AsyncIterator[None]:
        tasks = [asyncio.create_task(it.run()) for it in (self.labelling, self.file)]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def says(self, text: str, path: Path | None = None) -> None:
        file = path or self.path
        await eventually(lambda: file.is_file() and file.read_text() == text)


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path / "gfd")


TWO = "acme.com/card.count=2\n" + STAMP
THREE = "acme.com/card.count=3\n" + STAMP


async def test_the_file_follows_the_devices(node: Node) -> None:
    async with node.runs():
        await node.says(TWO)

        node.snapshot.set(snapshot(3))

        await node.says(THREE)


async def test_a_file_that_somebody_removed_comes_back(node: Node) -> None:
    async with node.runs():
        await node.says(TWO)

        node.path.unlink()

        await node.says(TWO)


async def test_the_file_outlives_the_agent(node: Node) -> None:
    async with node.runs():
        await node.says(TWO)

    assert node.path.read_text() == TWO


async def test_the_time_is_that_of_the_last_load_of_the_config(node: Node) -> None:
    async with node.runs():
        await node.says(TWO)
        node.now += 100
        node.snapshot.set(snapshot(3))
        await node.says(THREE)

        node.configure(machine_file="/other")

        await node.says("acme.com/card.count=3\nacme.com/timestamp=1700000100\n")


async def test_a_config_that_the_vendors_take_in_at_the_same_time_takes_effect(node: Node) -> None:
    async with node.runs():
        await node.says(TWO)

        node.configure(timestamp=False)
        node.vendors = {"acme": acme(lambda *_: {"acme.com/new": "1"})}

        await node.says("acme.com/new=1\n")


async def test_a_config_that_names_another_file_moves_it(node: Node) -> None:
    other = node.path.with_name("other")
    async with node.runs():
        await node.says(TWO)

        node.configure(features_file=str(other))

        await node.says(TWO, other)
        await eventually(lambda: not node.path.exists())


async def test_each_file_that_is_ours_is_told(node: Node) -> None:
    async with node.runs():
        await node.says(TWO)

        await eventually(lambda: node.noted == {node.path})


@pytest.mark.parametrize("off", [{"features_file": ""}, {"labels": False}])
async def test_a_config_that_wants_no_labels_takes_the_file_away(node: Node, off: Mapping[str, Any]) -> None:
    async with node.runs():
        await node.says(TWO)

        node.configure(**off)

        await eventually(lambda: not node.path.exists())


@pytest.mark.parametrize("other", [{"labels_as": "node"}, {"labels_as": "node", "features_file": ""}])
async def test_the_file_of_an_earlier_agent_goes_where_labels_are_told_another_way_now(
    node: Node, other: Mapping[str, Any]
) -> None:
    async with node.runs():
        await node.says(TWO)
    node.configure(**other)
    node.file = node.features()

    async with node.runs():
        await eventually(lambda: not node.path.exists())
        await eventually(lambda: not node.noted)


async def test_a_file_that_is_only_called_otherwise_now_stays_and_its_old_name_is_struck_out(
    node: Node, tmp_path: Path
) -> None:
    """As /var/run/x is /run/x."""
    (tmp_path / "link").symlink_to(tmp_path)
    again = tmp_path / "link" / node.path.name
    async with node.runs():
        await node.says(TWO)
        with node.path.open() as kept:  # while it is open no other file has its number
            node.configure(features_file=str(again))

            await eventually(lambda: node.noted == {again})
            assert os.path.samestat(os.fstat(kept.fileno()), node.path.stat())


async def test_a_file_in_a_directory_that_is_not_here_stays_written_down(
    node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be on the host, of which a pod sees what is mounted."""
    elsewhere = tmp_path / "not-mounted" / "gfd"
    node.noted.add(elsewhere)
    left: list[Path | None] = []
    leave = node.file._leave

    def leaving(path: Path | None, heard: VendorLabels) -> None:
        leave(path, heard)
        left.append(path)

    monkeypatch.setattr(node.file, "_leave", leaving)
    async with node.runs():
        await node.says(TWO)
        await eventually(lambda: len(left) > 1)

    assert elsewhere in node.noted
    assert not node.file.error


async def test_labels_that_nobody_tells_yet_stay_in_the_earlier_file(node: Node) -> None:
    """A restart of the agent takes no labels away, also where they go to another file now."""
    other = node.path.with_name("other")
    node.path.write_text(TWO)
    node.noted.add(node.path)
    node.configure(features_file=str(other))
    node.snapshot.set(snapshot(0, VendorState.STARTING))
    async with node.runs():
        await eventually(lambda: node.noted == {node.path, other})
        assert node.path.read_text() == TWO

        node.snapshot.set(snapshot(2))

        await node.says(TWO, other)
        await eventually(lambda: not node.path.exists())


async def test_while_a_good_config_is_awaited_the_file_stays_as_it_is(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pods are selected by its labels, and an agent that waits has asked no vendor."""
    node.path.write_text(TWO)
    node.snapshot.set(NodeSnapshot())
    node.config.set(replace(node.config.value, waiting=True))
    looks: list[str] = []
    monkeypatch.setattr(node.file, "_report", looks.append)
    async with node.runs():
        await node.labelling.once()
        await eventually(lambda: len(looks) >= 3)

        assert node.path.read_text() == TWO


async def test_a_file_that_another_wrote_is_not_removed(node: Node) -> None:
    node.path.write_text("of=another\n")
    other = node.path.with_name("other")
    node.configure(features_file=str(other))
    async with node.runs():
        await node.says(TWO, other)

    assert node.path.read_text() == "of=another\n"


async def test_an_error_is_told_once_and_ends_when_the_file_can_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = Node(tmp_path / "features.d" / "gfd")
    tries: list[Path] = []

    def keeping(path: Path, known: VendorLabels) -> None:
        tries.append(path)
        keep(path, known)

    monkeypatch.setattr("agent.host.nfd_features.keep", keeping)
    with capture_logs() as told:
        async with node.runs():
            await eventually(lambda: len(tries) > 3)
            assert f"there is no directory {node.path.parent}" in node.file.error

            node.path.parent.mkdir()

            await node.says(TWO)
            await eventually(lambda: not node.file.error)

    assert [it["event"] for it in told] == ["labels not written", "labels written again"]


async def test_what_is_no_file_is_an_error_and_ends_nothing(node: Node) -> None:
    node.path.mkdir()
    async with node.runs():
        await eventually(lambda: "is not a file but a directory" in node.file.error)

        node.path.rmdir()

        await node.says(TWO)


async def test_a_plugin_that_fails_is_an_error_too(node: Node) -> None:
    node.vendors = {"acme": acme(lambda *_: {"acme.com/x": "\n"})}
    async with node.runs():
        await eventually(lambda: "acme: its plugin fails to make labels" in node.labelling.error)


# What the API server is to be told instead

TOLD = {"acme.com/card.count": "2", "acme.com/timestamp": "1700000000"}


@pytest.mark.parametrize("told_as", ["node", "nodeFeature"])
async def test_labels_that_go_elsewhere_are_in_no_file(node: Node, told_as: Any) -> None:
    node.configure(labels_as=told_as, namespace="gpu")
    async with node.runs():
        await eventually(lambda: node.wanted.value)
        wanted = node.wanted.value

        assert wanted == WantedFeatures(told_as, VendorLabels(TOLD), "gpu")
        assert not node.path.exists()

        node.snapshot.set(snapshot(0, VendorState.STARTING))
        await eventually(lambda: node.wanted.value != wanted)
        assert node.wanted.value == WantedFeatures(told_as, VendorLabels({}, frozenset({"acme.com"})), "gpu")


async def test_a_file_that_is_no_longer_wanted_goes_when_labels_are_told_elsewhere(node: Node) -> None:
    async with node.runs():
        await node.says(TWO)
        assert node.wanted.value == WantedFeatures("file", VendorLabels(TOLD), file=str(node.path))

        node.configure(labels_as="node")

        await eventually(lambda: not node.path.exists())
        assert node.wanted.value == WantedFeatures("node", VendorLabels(TOLD))


async def test_where_nobody_wants_labels_nothing_is_wanted(node: Node) -> None:
    node.configure(labels=False)
    async with node.runs():
        await eventually(lambda: node.wanted.value)

        assert node.wanted.value == WantedFeatures()


async def test_while_a_good_config_is_awaited_nobody_knows_what_is_wanted(node: Node) -> None:
    node.config.set(replace(node.config.value, waiting=True))

    await node.labelling.once()

    assert node.wanted.value is None


@pytest.mark.parametrize(
    ("report", "api", "said"),
    [
        (
            {"labels_as": "node"},
            False,
            "report.labelsAs: 'node' is published through the API server, and none is known",
        ),
        (
            {"labels_as": "nodeFeature"},
            False,
            "'nodeFeature' is published through the API server, and none is known here",
        ),
        ({"labels_as": "node"}, True, ""),
        ({"labels_as": "node", "labels": False}, False, ""),
        ({"labels_as": "auto", "features_file": ""}, False, ""),
        ({"labels_as": "file"}, False, ""),
    ],
)
async def test_who_asks_for_an_api_server_where_there_is_none_is_told_once(
    tmp_path: Path, report: dict[str, Any], api: bool, said: str
) -> None:
    node = Node(tmp_path / "gfd", api=api)
    node.configure(**report)
    with capture_logs() as told:
        await node.labelling.once()
        await node.labelling.once()

    assert said in node.labelling.error
    assert bool(node.labelling.error) is bool(said)
    assert [it["event"] for it in told] == (["labels not published"] if said else [])


async def test_once_the_config_asks_for_no_api_server_all_is_well(tmp_path: Path) -> None:
    node = Node(tmp_path / "gfd", api=False)
    node.configure(labels_as="node")
    await node.labelling.once()
    node.configure(labels_as="file")

    await node.labelling.once()

    assert node.labelling.error == ""
