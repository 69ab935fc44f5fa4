"""Which files the agent leaves on the node when it ends, and which objects of it the API server may have.

`uninstall` removes these and no others; what it has not removed stays written down.
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

#: In the state directory.
NAME = "agent.remains"
MAX_BYTES = 1 << 20
#: Of a file that is written down; a longer one is none that the agent wrote.
LARGEST = 8 << 20
#: Before a namespace, a Device, and the file of labels; the path of a CDI spec stands alone.
_NAMESPACE = "namespace:"
_DEVICE = "device:"
_FEATURES = "features:"
#: Before the SHA-256 of what the agent last wrote into a CDI spec, and its path.
_WRITTEN = "written:"
#: Of a node, and of characters in it.
_NAME, LONGEST = rf"{LABEL}(?:\.{LABEL})*", 253


class UninstallRecord:
    """One entry per line, each once, in the order in which they came. Several threads may note at once.

    All of a process use the same one, and only who holds the node's lock writes: two would lose entries.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._noted: set[str] = set()
        #: The list as it was last read or written.
        self._known: tuple[str, ...] = ()
        self._lock = threading.Lock()

    def note(self, path: Path, text: str = "") -> None:
        """Write down that this file is ours, and what we wrote into it, where that is given.

        Where the disk does not take it, the next time tries again.
        """
        self._note(str(path))
        if text:
            self._note(f"{_WRITTEN}{_digest(text.encode())}:{path}", durable=False)

    def note_features(self, path: Path) -> None:
        """Write down that this file of labels is ours."""
        self._note(f"{_FEATURES}{path}")

    def note_namespace(self, namespace: str) -> None:
        """Write down that we make a NodeFeature object there."""
        self._note(f"{_NAMESPACE}{namespace}")

    def note_device(self, name: str) -> None:
        """Write down that cards of ours are in the Device of that name."""
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
        """Write the list where it is gone with its directory, as far as it was read or written here."""
        with self._lock, suppress(OSError):  # what the disk does not take comes with the next entry
            self._write(self._lines())

    def forget_features(self, path: Path) -> None:
        """Strike out a file of labels that is removed.

        Raises:
            OSError: The list cannot be written; it stays as it was.
        """
        self._forget(f"{_FEATURES}{path}")

    def forget_namespace(self, namespace: str) -> None:
        """Strike out one without a NodeFeature object of ours. Where the disk does not take it, it stays."""
        with suppress(OSError):
            self._forget(f"{_NAMESPACE}{namespace}")

    def forget_device(self, name: str) -> None:
        """Strike out a Device that has nothing of ours. Where the disk does not take it, it stays."""
        with suppress(OSError):
            self._forget(f"{_DEVICE}{name}")

    def _forget(self, line: str) -> None:
        with self._lock:
            lines = self._lines()
            if line in lines:
                self._write([it for it in lines if it != line])
            self._noted.discard(line)

    def features(self) -> tuple[Path, ...]:
        """The files of labels that are written down; those that are not removed yet.

        Raises:
            OSError: It cannot be read.
        """
        named = (it.removeprefix(_FEATURES) for it in self._lines() if it.startswith(_FEATURES))
        return tuple(dict.fromkeys(Path(it) for it in _absolute(named)))

    def all(self) -> tuple[Path, ...]:
        """The files that are written down, of both kinds; none where there is no such list.

        Raises:
            OSError: It cannot be read.
        """
        return tuple(
            dict.fromkeys(Path(it) for it in _absolute(it.removeprefix(_FEATURES) for it in self._lines()))
        )

    def is_anothers(self, path: Path) -> bool:
        """Whether the file has another content than the agent wrote into it: somebody else keeps it now.

        Raises:
            OSError: The list cannot be read.
        """
        written = dict(map(_written, self._lines())).get(str(path))
        try:
            return written is not None and _digest(files.read(path, LARGEST)) != written
        except OSError:
            return False

    def namespaces(self) -> tuple[str, ...]:
        """Where NodeFeature objects may be; what cannot be the name of a namespace is passed over.

        Raises:
            OSError: It cannot be read.
        """
        found = (it.removeprefix(_NAMESPACE) for it in self._lines() if it.startswith(_NAMESPACE))
        return tuple(dict.fromkeys(it for it in found if len(it) <= LABEL_LIMIT and re.fullmatch(LABEL, it)))

    def devices(self) -> tuple[str, ...]:
        """Devices in which cards of ours may be; what can be no node's name is passed over.

        Raises:
            OSError: It cannot be read.
        """
        found = (it.removeprefix(_DEVICE) for it in self._lines() if it.startswith(_DEVICE))
        return tuple(dict.fromkeys(it for it in found if len(it) <= LONGEST and re.fullmatch(_NAME, it)))

    def _lines(self) -> list[str]:
        try:
            content = files.read(self._path, MAX_BYTES, links=False)
        except FileNotFoundError:
            return [*self._known]  # somebody removed it: what it names is on the node still
        if len(content) > MAX_BYTES:  # what is not read would be lost when it is written again
            raise OSError(errno.EFBIG, f"larger than {MAX_BYTES} bytes", str(self._path))
        lines = content.decode(errors="replace").splitlines()
        self._known = (*lines,)
        return lines

    def _write(self, lines: Iterable[str], *, durable: bool = True) -> None:
        """In one step and, if `durable`, through a power cut: half an entry would name another file."""
        written = (*lines,)
        private_files.replace(self._path, "".join(f"{it}\n" for it in written).encode(), durable=durable)
        self._known = written


def is_out_of_sight(path: Path, environ: Mapping[str, str]) -> bool:
    """Whether it may be on the node and is not seen from here: a pod has of the host what is mounted."""
    return is_pod(environ) and not path.parent.is_dir()


def is_pod(environ: Mapping[str, str]) -> bool:
    """The kubelet gives every container the variable (pkg/kubelet/kubelet_pods.go, getServiceEnvVarMap)."""
    return "KUBERNETES_SERVICE_HOST" in environ


def _absolute(lines: Iterable[str]) -> Iterable[str]:
    return (it for it in lines if it.startswith("/"))


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _written(line: str) -> tuple[str, str]:
    """A file's path and the digest of what was written into it; two empty ones where the line tells none."""
    digest, _, path = line.removeprefix(_WRITTEN).partition(":")
    return (path, digest) if line.startswith(_WRITTEN) else ("", "")


def _without(line: str, lines: Iterable[str]) -> list[str]:
    """The lines, but for the one that told before what was written into the same file."""
    path, _ = _written(line)
    return [it for it in lines if not path or _written(it)[0] != path]
