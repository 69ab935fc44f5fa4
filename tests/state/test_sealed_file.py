"""A file that holds one value: what is whole is read, everything else is turned down with its reason."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from agent.state.file_envelope import Unusable, Why, sealed
from agent.state.file_formats import CHECKPOINT, Formats
from agent.state.sealed_file import SealedFile

OURS = Formats("a thing", 1, lambda version: b"thing %d " % version)
LIMIT = 1000


@dataclass(frozen=True)
class Thing:
    name: str


@pytest.fixture
def file(tmp_path: Path) -> SealedFile[Thing]:
    return SealedFile(tmp_path / "state" / "agent.thing.json", Thing, OURS, LIMIT)


def test_what_is_written_is_read(file: SealedFile[Thing]) -> None:
    for name in ("one", "zwei\n\x1b", ""):
        file.write(Thing(name))

        assert file.read() == Thing(name)


@pytest.mark.parametrize("more", [0, 1])
def test_a_file_of_as_many_bytes_as_it_may_have_is_read_and_one_of_a_byte_more_is_not(
    more: int, tmp_path: Path
) -> None:
    path = tmp_path / "agent.thing.json"
    path.write_bytes(WHOLE)
    file = SealedFile(path, Thing, OURS, len(WHOLE) - more)

    if more:
        with pytest.raises(Unusable):
            file.read()
    else:
        assert file.read() == Thing("one")


def test_where_there_is_no_file_there_is_nothing(file: SealedFile[Thing]) -> None:
    assert file.read() is None


def test_file_and_directory_are_closed_to_others(file: SealedFile[Thing]) -> None:
    file.write(Thing("one"))

    assert stat.S_IMODE(file.path.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.path.parent.stat().st_mode) == 0o700
    assert os.listdir(file.path.parent) == [file.path.name]


WHOLE = sealed(Thing("one"), OURS)
UNUSABLE: dict[str, tuple[bytes, Why, str]] = {
    "empty": (b"", "empty", "it is empty"),
    "torn": (WHOLE[:-5], "corrupt", "it is torn or was edited"),
    "edited": (WHOLE.replace(b"one", b"two"), "corrupt", "its checksum does not match"),
    "nobody's of ours": (b"name: one", "foreign", "not a thing of this agent"),
    "too large": (WHOLE + b" " * LIMIT, "foreign", "larger than 1000 bytes"),
    "of a newer agent": (
        sealed(Thing("one"), Formats("a thing", 2, OURS.mark)),
        "newer",
        "format 2, this agent reads up to 1",
    ),
    "of another kind": (
        sealed(Thing("one"), Formats("another", 1, CHECKPOINT.mark)),
        "corrupt",
        "its checksum does not match",
    ),
    "of another shape": (sealed({"name": 1}, OURS), "corrupt", "its content is not what format 1 says"),
}


@pytest.mark.parametrize(("text", "why", "found"), UNUSABLE.values(), ids=UNUSABLE)
def test_what_can_not_be_used_is_turned_down_by_name(
    file: SealedFile[Thing], text: bytes, why: Why, found: str
) -> None:
    file.path.parent.mkdir()
    file.path.write_bytes(text)

    refused = refusal(file)

    assert refused.why == why
    assert str(refused).startswith(f"{file.path}: {found}")


def link(path: Path) -> None:
    (path.parent / "elsewhere").write_bytes(WHOLE)
    path.symlink_to("elsewhere")


PLACES: dict[str, tuple[Callable[[Path], None], str]] = {
    "a directory": (Path.mkdir, "is not a file but a directory"),
    "a pipe": (os.mkfifo, "is not a file but a pipe"),
    "a link": (link, "is not a file but a symbolic link"),
}


@pytest.mark.parametrize(("make", "found"), PLACES.values(), ids=PLACES)
def test_what_is_no_file_is_turned_down(
    file: SealedFile[Thing], make: Callable[[Path], None], found: str
) -> None:
    file.path.parent.mkdir()
    make(file.path)

    assert str(refusal(file)) == f"{file.path}: cannot be read: {found}"


def test_what_could_not_be_used_is_replaced(file: SealedFile[Thing]) -> None:
    file.path.parent.mkdir()
    link(file.path)

    file.write(Thing("two"))

    assert file.read() == Thing("two")
    assert (file.path.parent / "elsewhere").read_bytes() == WHOLE


def refusal(file: SealedFile[Thing]) -> Unusable:
    with pytest.raises(Unusable) as caught:
        file.read()
    return caught.value
