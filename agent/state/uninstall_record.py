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

from agent.core.kubernetes_names import LABEL
from agent.host import files
from agent.state import private_files
from agent.vendor_api.label_values import LABEL_LIMIT

#: The file's name in the state directory.
NAME = "agent.remains"
MAX_BYTES = 1 << 20
#: Bytes of a recorded file at most; a longer file was not written by the agent.
LARGEST = 8 << 20
#: Prefixes of lines for a namespace, a Device and a file of labels; a CDI spec's path has no prefix.
_NAMESPACE = "namespace:"
_DEVICE = "device:"
_FEATURES = "features:"
#: Prefix of the SHA-256 of the text that the agent last wrote into a CDI spec, followed by the spec's path.
_WRITTEN = "written:"
#: A node's name, and its characters at most.
_NAME, LONGEST = rf"{LABEL}(?:\.{LABEL})*", 253


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
        """Record a file of ours, and the text that we wrote into it if given.

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

    def note_device(self, name: str) -> None:
        """Record a Device object that has cards of ours."""
        self._note(f"{_DEVICE}{name}")

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

    def forget_device(self, name: str) -> None:
        """Remove the entry of a Device without our cards; a failure leaves the entry."""
        with suppress(OSError):
            self._forget(f"{_DEVICE}{name}")

    def _forget(self, line: str) -> None:
        with self._lock:
            lines = self._lines()
            if line in lines:
                self._write([it for it in lines if it != line])
            self._noted.discard(line)

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
            return written is not None and _digest(files.read(path, LARGEST)) != written
        except OSError:
            return False

    def namespaces(self) -> tuple[str, ...]:
        """Namespaces that may have a NodeFeature object of ours; impossible names are skipped.

        Raises:
            OSError: The record cannot be read.
        """
        found = (it.removeprefix(_NAMESPACE) for it in self._lines() if it.startswith(_NAMESPACE))
        return tuple(dict.fromkeys(it for it in found if len(it) <= LABEL_LIMIT and re.fullmatch(LABEL, it)))

    def devices(self) -> tuple[str, ...]:
        """Devices that may have cards of ours; impossible names are skipped.

        Raises:
            OSError: The record cannot be read.
        """
        found = (it.removeprefix(_DEVICE) for it in self._lines() if it.startswith(_DEVICE))
        return tuple(dict.fromkeys(it for it in found if len(it) <= LONGEST and re.fullmatch(_NAME, it)))

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


def _without(line: str, lines: Iterable[str]) -> list[str]:
    """The lines without an earlier line about what was written into the same file."""
    path, _ = _written(line)
    return [it for it in lines if not path or _written(it)[0] != path]
