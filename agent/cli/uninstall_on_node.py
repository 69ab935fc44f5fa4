"""`xpu-agent uninstall`: removes from the node what survives the agent's end, but for checkpoint and logs."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from agent.cli.uninstall_at_api_server import NotRemoved, ServerObjects, reported_kinds, say
from agent.core.errors import AgentError
from agent.daemon.agent_locks import AgentLocks
from agent.kubelet.plugin_sockets import sweep
from agent.state import state_directory
from agent.state.state_directory_lock import StateDirectoryLock
from agent.state.uninstall_record import NAME, UninstallRecord, is_out_of_sight


class StillServing(AgentError):
    """Raised when an agent holds the node's lock: the agent would write again what is removed."""

    def __init__(self, state_dir: Path, holder: str) -> None:
        super().__init__(f"{state_dir}: an agent serves this node ({holder}); end it first, or give --force")


#: Removes the agent's part of the Node, and these objects. Returns whether an API server is known.
RemoveServerObjects = Callable[[ServerObjects], bool]


def uninstall(
    state_dir: Path,
    kubelet_dir: Path,
    more: Sequence[Path] = (),
    *,
    remove_server_objects: RemoveServerObjects = lambda _: False,
    force: bool = False,
) -> int:
    """Remove CDI specs, files for other programs, sockets and the lock; print each.

    Running pods keep their devices, and vendors keep the directories with their slices. `more` names files
    that count as the agent's beside those in the record of the state directory. `remove_server_objects`
    raises AgentError where something stays at the API server. With `force` an agent that serves does not
    stop the removal; that agent writes everything again within a minute. The record is removed last, and
    only when everything in the record is gone.

    Raises:
        StillServing: An agent serves the node, and nothing is removed.
        NotRemoved: Something could not be removed; everything else is.
    """
    state = StateDirectoryLock(state_dir / "agent.lock") if state_dir.is_dir() else None
    with AgentLocks(kubelet_dir, state) as lock:
        holder = lock.take()
        if holder and not force:
            raise StillServing(state_dir, holder)
        if state is None:
            say(f"{state_dir}: not there, so that no agent of this node used it")
        _remove_all(state_dir, kubelet_dir, more, remove_server_objects, serving=bool(holder))
    return 0


def _remove_all(
    state_dir: Path,
    kubelet_dir: Path,
    more: Sequence[Path],
    remove_server_objects: RemoveServerObjects,
    *,
    serving: bool,
) -> None:
    kept: list[str] = []
    try:
        record = UninstallRecord(state_dir / NAME)
        files, objects = record.all(), ServerObjects(record.namespaces(), record.objects())
        overwritten = {it for it in files if record.is_anothers(it)}.difference(more)
    except OSError as exc:
        raise NotRemoved(f"{state_dir / NAME}: cannot be read: {exc.strerror}; nothing is removed") from exc
    for path in dict.fromkeys((*files, *more)):
        if path in overwritten:
            say(f"{path}: stays: another program has written it since")
        else:
            kept += [_out_of_sight(path)] if is_out_of_sight(path, os.environ) else _remove(path)
    for path in sweep(kubelet_dir):
        say(f"{path}: removed")
    refused = _refusal(remove_server_objects, objects)
    # The next try needs the record until everything in it is gone. A lock in use stays.
    for path in () if serving or kept or (refused and objects) else _own_files(state_dir):
        kept += _remove(path)
    if not serving:
        _remove_empty(state_dir / state_directory.VENDORS)
    if kept or refused:
        raise NotRemoved("; ".join([*kept, *refused]))


def _remove_empty(directory: Path) -> None:
    """Remove the empty directories of vendors. The next agent needs what the others hold."""
    with suppress(OSError):
        for path in (*directory.iterdir(), directory):
            with suppress(OSError):
                path.rmdir()


def _own_files(state_dir: Path) -> list[Path]:
    """The agent's files in its state directory but for checkpoint and logs, half written ones too.

    The record is the last of them.
    """
    try:
        paths = [path for path in state_dir.iterdir() if path.name.startswith(state_directory.AGENTS)]
    except FileNotFoundError:
        return []
    files = (path for path in paths if not path.is_dir())
    return sorted(files, key=lambda it: (it.name == NAME, it.name))


def _refusal(remove_server_objects: RemoveServerObjects, objects: ServerObjects) -> list[str]:
    """A sentence for everything that stays, or may stay, at the API server."""
    try:
        is_asked = remove_server_objects(objects)
    except AgentError as exc:
        return [str(exc)]
    return [] if is_asked else [*_not_looked_for(objects)]


def _not_looked_for(objects: ServerObjects) -> Iterator[str]:
    unknown = "not looked for, because no API server is known; give --kubeconfig"
    delete = f"once the object is gone delete its line from {NAME}"
    if objects.namespaces:
        by_hand = f"kubectl -n NAMESPACE get nodefeatures shows the object; {delete}"
        yield f"NodeFeature in {', '.join(objects.namespaces)}: {unknown}, or {by_hand}"
    kinds = reported_kinds() if objects.reports else []
    for kind in kinds:
        if names := objects.names(kind):
            by_hand = f"kubectl get {kind.name} shows the object; {delete}"
            yield f"{kind.kind} {', '.join(names)}: {unknown}, or {by_hand}"
    yield from objects.of_unknown_kinds(kinds)


def _out_of_sight(path: Path) -> str:
    where = f"{path.parent} of the node is not mounted here"
    return f"{path}: not removed: {where}; on the node: rm -f {path}, then delete its line from {NAME}"


def _remove(path: Path) -> Iterator[str]:
    """Remove a file, and unfinished versions of it that a killed agent left; yields why the file stays."""
    for unfinished in _unfinished(path):
        with suppress(OSError):
            unfinished.unlink()
    try:
        path.unlink()
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError as exc:
        yield f"{path}: not removed: {exc.strerror}"
        return
    say(f"{path}: removed")


def _unfinished(path: Path) -> list[Path]:
    prefix = f".{path.name}."
    try:
        siblings = list(path.parent.iterdir())
    except OSError:
        return []
    return [it for it in siblings if it.name.startswith(prefix) and it.name.removeprefix(prefix).isdecimal()]
