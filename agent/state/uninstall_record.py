"""Records which files on the node, and which objects at the API server, the agent leaves when it ends.

`uninstall` removes what is recorded and nothing else; what it cannot remove stays in the record.
"""

from __future__ import annotations

import errno
import hashlib
import re
import threading
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from msgspec import Struct

from agent.host import files
from agent.state import private_files
from agent.vendor_api.kubernetes_names import LABEL
from agent.vendor_api.label_values import LABEL_LIMIT

#: The file's name in the state directory.
NAME = "agent.remains"
MAX_BYTES = 1 << 20
#: Bytes of a recorded file at most; a longer file was not written by the agent.
MAX_FILE_BYTES = 8 << 20
#: Prefixes of lines for a namespace, an API object and a file of labels; a CDI spec's path has no prefix.
_NAMESPACE = "namespace:"
#: Followed by the full name of the object's kind, a colon and the object's name.
_OBJECT = "object:"
#: Prefix of earlier releases for an API object, followed by the object's name without a kind.
_WITHOUT_KIND = "device:"
_FEATURES = "features:"
#: Prefix of the SHA-256 of the text that the agent last wrote into a CDI spec, followed by the spec's path.
_WRITTEN = "written:"
#: A name of a node or of a kind, and its characters at most.
_NAME, MAX_NAME_LENGTH = rf"{LABEL}(?:\.{LABEL})*", 253


class RecordedObject(Struct, frozen=True):
    """A cluster-scoped API object that may list cards of the node."""

    name: str
    #: The kind's full name, as kubectl takes it: devices.scheduling.koordinator.sh; empty where an earlier
    #: release wrote the entry.
    kind: str = ""


class UninstallRecord:
    """One entry a line, each once, in order of arrival. Several threads may add entries at once.

    All of a process share one record, and only the process with the node's lock writes: two writers would
    lose entries.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._noted: set[str] = set()
        #: The lines as they were last read or written.
        self._known: tuple[str, ...] = ()
        self._lock = threading.Lock()

    def note(self, path: Path, text: str = "") -> None:
        """Record a file of the agent, and the text that the agent wrote into the file, if given.

        If the disk does not take the entry, the next call tries again.
        """
        self._note(str(path))
        if text:
            self._note(f"{_WRITTEN}{_digest(text.encode())}:{path}", durable=False)

    def note_features(self, path: Path) -> None:
        """Record a file of labels."""
        self._note(f"{_FEATURES}{path}")

    def note_namespace(self, namespace: str) -> None:
        """Record a namespace in which we make a NodeFeature object."""
        self._note(f"{_NAMESPACE}{namespace}")

    def note_object(self, kind: str, name: str) -> None:
        """Record an API object that lists cards of the node. `kind` is the kind's full name."""
        self._note(f"{_OBJECT}{kind}:{name}")

    def _note(self, line: str, *, durable: bool = True) -> None:
        if line in self._noted or not line.isprintable():
            return
        with self._lock:
            try:
                lines = self._lines()
                if line not in lines:
                    self._write([*_without(line, lines), line], durable=durable)
            except OSError:
                return
            self._noted = {*_without(line, self._noted), line}

    def write_again(self) -> None:
        """Write the record again after it was lost with its directory, as far as it is known."""
        with self._lock, suppress(OSError):  # a failed write is made up for with the next entry
            self._write(self._lines())

    def forget_features(self, path: Path) -> None:
        """Remove the entry of a file of labels that was removed.

        Raises:
            OSError: The record cannot be written, and is unchanged.
        """
        self._forget(f"{_FEATURES}{path}")

    def forget_namespace(self, namespace: str) -> None:
        """Remove the entry of a namespace without our NodeFeature object; a failure leaves the entry."""
        with suppress(OSError):
            self._forget(f"{_NAMESPACE}{namespace}")

    def forget_object(self, kind: str, name: str) -> None:
        """Remove the entries of an API object without cards of the node; a failure leaves the entries."""
        with suppress(OSError):
            self._forget(f"{_OBJECT}{kind}:{name}", f"{_WITHOUT_KIND}{name}")

    def _forget(self, *forgotten: str) -> None:
        with self._lock:
            lines = self._lines()
            kept = [it for it in lines if it not in forgotten]
            if kept != lines:
                self._write(kept)
            self._noted.difference_update(forgotten)

    def features(self) -> tuple[Path, ...]:
        """The recorded files of labels.

        Raises:
            OSError: The record cannot be read.
        """
        named = (it.removeprefix(_FEATURES) for it in self._lines() if it.startswith(_FEATURES))
        return tuple(dict.fromkeys(Path(it) for it in _absolute(named)))

    def all(self) -> tuple[Path, ...]:
        """The recorded files, both CDI specs and files of labels; none where there is no record.

        Raises:
            OSError: The record cannot be read.
        """
        return tuple(
            dict.fromkeys(Path(it) for it in _absolute(it.removeprefix(_FEATURES) for it in self._lines()))
        )

    def is_anothers(self, path: Path) -> bool:
        """Whether another program has changed the file since the agent wrote it.

        Raises:
            OSError: The record cannot be read.
        """
        written = dict(map(_written, self._lines())).get(str(path))
        try:
            return written is not None and _digest(files.read(path, MAX_FILE_BYTES)) != written
        except OSError:
            return False

    def namespaces(self) -> tuple[str, ...]:
        """Namespaces that may have a NodeFeature object of the node; impossible names are skipped.

        Raises:
            OSError: The record cannot be read.
        """
        found = (it.removeprefix(_NAMESPACE) for it in self._lines() if it.startswith(_NAMESPACE))
        return tuple(dict.fromkeys(it for it in found if len(it) <= LABEL_LIMIT and re.fullmatch(LABEL, it)))

    def objects(self) -> tuple[RecordedObject, ...]:
        """API objects that may list cards of the node; entries with impossible names are skipped.

        Raises:
            OSError: The record cannot be read.
        """
        return tuple(dict.fromkeys(found for line in self._lines() if (found := _object_of(line))))

    def _lines(self) -> list[str]:
        try:
            content = files.read(self._path, MAX_BYTES, links=False)
        except FileNotFoundError:
            return [*self._known]  # the file was removed, but what it names is still on the node
        if len(content) > MAX_BYTES:  # the rest of the lines would be lost with the next write
            raise OSError(errno.EFBIG, f"larger than {MAX_BYTES} bytes", str(self._path))
        lines = content.decode(errors="replace").splitlines()
        self._known = (*lines,)
        return lines

    def _write(self, lines: Iterable[str], *, durable: bool = True) -> None:
        """Write in one step, so that no incomplete line names another file; `durable` for a power cut."""
        written = (*lines,)
        private_files.replace(self._path, "".join(f"{it}\n" for it in written).encode(), durable=durable)
        self._known = written


def is_out_of_sight(path: Path, environ: Mapping[str, str]) -> bool:
    """Whether the path may exist on the node without being mounted into this pod."""
    return is_pod(environ) and not path.parent.is_dir()


def is_pod(environ: Mapping[str, str]) -> bool:
    """Whether this is a pod: the kubelet sets the variable in every container (getServiceEnvVarMap)."""
    return "KUBERNETES_SERVICE_HOST" in environ


def _absolute(lines: Iterable[str]) -> Iterable[str]:
    return (it for it in lines if it.startswith("/"))


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _written(line: str) -> tuple[str, str]:
    """The path and the digest in a line about a written file; two empty strings for another line."""
    digest, _, path = line.removeprefix(_WRITTEN).partition(":")
    return (path, digest) if line.startswith(_WRITTEN) else ("", "")


def _object_of(line: str) -> RecordedObject | None:
    """The API object in a line; None for another line, and for a line with impossible names."""
    if line.startswith(_WITHOUT_KIND):
        name = line.removeprefix(_WITHOUT_KIND)
        return RecordedObject(name) if _is_name(name) else None
    kind, _, name = line.removeprefix(_OBJECT).partition(":")
    is_object = line.startswith(_OBJECT) and _is_name(kind) and _is_name(name)
    return RecordedObject(name, kind) if is_object else None


def _is_name(text: str) -> bool:
    return len(text) <= MAX_NAME_LENGTH and re.fullmatch(_NAME, text) is not None


def _without(line: str, lines: Iterable[str]) -> list[str]:
    """The lines without an earlier line about what was written into the same file."""
    path, _ = _written(line)
    return [it for it in lines if not path or _written(it)[0] != path]
