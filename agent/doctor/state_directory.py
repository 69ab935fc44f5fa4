"""Checks the state directory: its owner and modes, the room on its disk, and the checkpoint."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

from msgspec.structs import replace

from agent.core.errors import StateError
from agent.doctor.surroundings import Surroundings
from agent.host import files
from agent.scheduler_api.findings import Finding, FindingKind, Severity, not_made, well
from agent.state import sealed_file
from agent.state.checkpoint import MAX_BYTES, SavedState
from agent.state.file_envelope import Unusable, checksum_of, opened
from agent.state.journal import JOURNAL, Journal
from agent.state.state_directory import OWN_PREFIXES

STATE = "state"
DISK = "state-disk"
CHECKPOINT = "checkpoint"

#: Bytes: twice the checkpoint of a node full of pods, because the new one is written before the old one goes.
ENOUGH_BYTES = 2 << 20
#: Files set aside that are named.
MAX_SHOWN_FILES = 3
#: Times that checkpoint and journal are read until they are of one moment.
MAX_READS = 3

NO_STATE = FindingKind(
    STATE,
    "state-directory-wrong",
    Severity.STOPS,
    "the state directory is no directory",
    "The checkpoint, the lock and the admin socket are in this directory. Without the directory the "
    "agent does not start.",
    "remove {directory}, or give the agent a directory of its own with --state-dir",
)
OPEN = FindingKind(
    STATE,
    "state-open",
    Severity.WARNS,
    "other users may write to the agent's state",
    "Any user that can write the checkpoint decides which cards are healthy and which pod has which "
    "card. Any user that can reach the admin socket can cordon cards.",
    "chmod -R u=rwX,go= {directory}; chown -hR root {directory}",
)
READ_ONLY = FindingKind(
    DISK,
    "state-read-only",
    Severity.STOPS,
    "the agent cannot write to the state directory",
    "Allocations and faults would be lost when the agent ends. After a restart a faulty card would be "
    "healthy until the card fails again.",
    "mount a writable hostPath at {directory}, not the container's own file system; if the kernel made "
    "the disk read-only see the reason with dmesg, repair the disk, and run mount -o remount,rw",
)
FULL = FindingKind(
    DISK,
    "state-full",
    Severity.STOPS,
    "the disk of the state directory is full",
    "The agent cannot write the checkpoint. Changes from now on are lost when the agent ends.",
    "find the large files: df -h {directory}; df -i {directory}; du -xh --max-depth=1 on the file "
    "system; free some space; the agent then writes by itself",
)
UNREADABLE = FindingKind(
    CHECKPOINT,
    "checkpoint-unreadable",
    Severity.STOPS,
    "the agent may not read the checkpoint",
    "The agent does not start, because without its checkpoint the agent would list faulty cards as healthy.",
    "chown root {path}; chmod 0600 {path}",
)
DAMAGED = FindingKind(
    CHECKPOINT,
    "checkpoint-damaged",
    Severity.WARNS,
    "the checkpoint is not as the agent wrote the file",
    "The next start sets the checkpoint aside. The agent then reads owners from the kubelet again. The "
    "remembered faults and cordons are lost.",
    "if the checkpoint is of a newer release run that release; else note the output of xpu-agent health "
    "list, and cordon faulty cards again after the restart; look for errors of the disk with dmesg",
)
ASIDE = FindingKind(
    CHECKPOINT,
    "checkpoint-set-aside",
    Severity.WARNS,
    "a checkpoint was set aside",
    "An earlier start could not use the checkpoint. The agent has lost the faults and cordons in the "
    "checkpoint.",
    "see xpu-agent health list, and cordon again the cards that were cordoned; then remove the files: "
    "rm {paths}",
)

JOURNAL_DAMAGED = FindingKind(
    CHECKPOINT,
    "journal-damaged",
    Severity.WARNS,
    "the journal of the checkpoint is not as the agent wrote the file",
    "The next start sets the journal aside. The agent then reads from the kubelet again which pods have come "
    "and gone since the checkpoint.",
    "nothing, if a person put back the checkpoint, or a newer release wrote the journal; else look for "
    "errors of the disk with dmesg",
)
JOURNAL_ASIDE = FindingKind(
    CHECKPOINT,
    "journal-set-aside",
    Severity.WARNS,
    "a journal of the checkpoint was set aside",
    "An earlier start could not use the changes since the checkpoint. The agent has read from the kubelet "
    "which pods have which cards. Their schedulers may wait for annotations that were not written.",
    "look for errors of the disk with dmesg; then remove the files: rm {paths}",
)


def state(around: Surroundings) -> Iterator[Finding]:
    """Whether only the agent's user can use the directory and its files."""
    directory = around.config.agent.state_dir
    if (wrong := files.in_the_way(directory)) is not None:
        yield NO_STATE.found(f"{wrong} is no directory", directory=wrong)
        return
    if not directory.exists():
        yield well(STATE, f"there is no {directory} yet; the agent makes it")
        return
    try:
        bad = [why for path in (directory, *_files(directory)) if (why := _open_to_others(path))]
    except OSError as exc:
        yield not_made(
            STATE, f"{directory}: {exc.strerror}; run the doctor as root, or as the user of the agent"
        )
        return
    if bad:
        yield OPEN.found("; ".join(bad), directory=directory)
    else:
        yield well(STATE, f"{directory} is open to the agent's user alone")


def _files(directory: Path) -> list[Path]:
    return sorted(it for it in directory.iterdir() if it.name.startswith(OWN_PREFIXES))


def _open_to_others(path: Path) -> str:
    found = path.lstat()
    mode = stat.S_IMODE(found.st_mode)
    wanted = 0o700 if stat.S_ISDIR(found.st_mode) else 0o600
    if found.st_uid not in (0, os.geteuid()):
        return f"{path} belongs to uid {found.st_uid}"
    # The mode of a symbolic link means nothing.
    bad = mode & ~wanted and not stat.S_ISLNK(found.st_mode)
    return f"{path} has mode {mode:04o}, not {wanted:04o}" if bad else ""


def disk(around: Surroundings) -> Iterator[Finding]:
    """Whether the disk has room and can be written. Nothing is written for that."""
    directory = around.config.agent.state_dir
    place = directory
    while not place.is_dir():
        place = place.parent
    try:
        found = os.statvfs(place)
    except OSError as exc:
        yield not_made(DISK, f"{place}: {exc.strerror}")
        return
    free = found.f_bavail * found.f_frsize
    if found.f_flag & os.ST_RDONLY or not os.access(place, os.W_OK | os.X_OK):
        why = (
            "is on a read-only file system" if found.f_flag & os.ST_RDONLY else "cannot be written from here"
        )
        yield READ_ONLY.found(f"{place} {why}", directory=directory)
    elif free < ENOUGH_BYTES:
        yield FULL.found(
            f"{place} has {free >> 10} KiB left, {ENOUGH_BYTES >> 10} KiB are needed", directory=directory
        )
    elif found.f_files and not found.f_favail:
        yield FULL.found(f"{place} has no file (inode) left", directory=directory)
    else:
        yield well(DISK, f"{place} has {free >> 20} MiB left")


def checkpoint(around: Surroundings) -> Iterator[Finding]:
    """Whether the next start can use the checkpoint and its journal."""
    path = around.config.agent.state_dir / "checkpoint.json"
    journal = path.with_name(JOURNAL)
    yield from _set_aside(path, ASIDE)
    yield from _set_aside(journal, JOURNAL_ASIDE)
    try:
        saved, wrong = _read(path, journal)
    except FileNotFoundError:
        yield well(CHECKPOINT, f"there is no {path} yet")
    except Unusable as exc:
        yield DAMAGED.found(f"{path}: {exc.why}: {exc}")
    except PermissionError as exc:
        if os.geteuid():
            yield not_made(
                CHECKPOINT, f"{path}: {exc.strerror}; run the doctor as root, or as the user of the agent"
            )
        else:
            yield UNREADABLE.found(f"{path}: {exc.strerror}", path=path)
    except OSError as exc:
        yield DAMAGED.found(f"{path}: {exc.strerror}")
    else:
        if wrong:
            yield JOURNAL_DAMAGED.found(f"{journal}: {wrong}")
        held = len(saved.allocations)
        yield well(CHECKPOINT, f"{path}: {held} allocations, {len(saved.health)} faults")


def _read(path: Path, journal: Path) -> tuple[SavedState, str]:
    """The saved state, and what is wrong with the journal.

    An agent that runs may replace the checkpoint between the two reads: then both are read once more.

    Raises:
        Unusable: The checkpoint is damaged, from a later release, or not the agent's.
        OSError: There is no checkpoint, or it cannot be read.
    """
    for _ in range(MAX_READS):
        text = sealed_file.content(path, MAX_BYTES)
        saved = opened(text, SavedState)
        try:
            replay = Journal(journal).replay(checksum_of(text), saved.allocations)
        except (Unusable, StateError) as exc:
            wrong = str(exc)
        else:
            saved = saved if replay is None else replace(saved, allocations=replay.allocations)
            wrong = "" if replay is None else replay.damage
        if not wrong or sealed_file.content(path, MAX_BYTES) == text:
            break
    return saved, wrong


def _set_aside(path: Path, kind: FindingKind) -> Iterator[Finding]:
    found = sorted(path.parent.glob(f"{path.name}.corrupt-*"))
    if found:
        shown = ", ".join(map(str, found[-MAX_SHOWN_FILES:]))
        yield kind.found(f"{len(found)} files were set aside: {shown}", paths=f"{path}.corrupt-*")
