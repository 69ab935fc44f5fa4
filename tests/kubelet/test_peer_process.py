"""Who is at the other end of a socket, and for whom a list stream ends."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from agent.kubelet.peer_process import PeerProcess, gives_way, peer_of
from agent.kubelet.socket_listener import listen

from .wire import Wire

KUBELET, BOB, EVE = PeerProcess(7, 70), PeerProcess(8, 80), PeerProcess(9, 90)
#: As they look from a container whose kernel tells no more.
HIDDEN = PeerProcess(0)


@pytest.mark.parametrize(
    ("holder", "challenger", "kubelet", "gives"),
    [
        (BOB, KUBELET, KUBELET, True),
        (KUBELET, KUBELET, KUBELET, False),
        (KUBELET, BOB, KUBELET, False),
        (BOB, EVE, KUBELET, False),
        (HIDDEN, HIDDEN, HIDDEN, False),
        (BOB, HIDDEN, HIDDEN, True),
        (HIDDEN, BOB, HIDDEN, False),
        (PeerProcess(0, 80), PeerProcess(0, 70), PeerProcess(0, 70), True),
        (BOB, KUBELET, None, False),
    ],
    ids=[
        "the-kubelet-after-another",
        "the-kubelet-twice",
        "another-after-the-kubelet",
        "neither",
        "who-looks-alike",
        "the-kubelet-outside-after-one-of-this-container",
        "one-of-this-container-after-the-kubelet-outside",
        "two-outside-told-apart",
        "nobody-known",
    ],
)
def test_a_stream_ends_for_the_kubelets_alone(
    holder: PeerProcess, challenger: PeerProcess, kubelet: PeerProcess | None, gives: bool
) -> None:
    assert gives_way(holder, challenger, kubelet) is gives


async def test_who_connects_and_who_listens_is_the_process_that_did(plugins_dir: Path) -> None:
    path = plugins_dir / "p.sock"
    with listen(path) as listener:
        async with Wire.to(path) as wire, Wire.to(path, by_another_process=True):
            (ours, _), (theirs, _) = listener.accept(), listener.accept()
            with ours, theirs:
                assert peer_of(ours) == peer_of(wire.writer.get_extra_info("socket"))
                assert peer_of(ours).pid == os.getpid()
                assert peer_of(theirs).pid not in (0, os.getpid())


def test_a_kernel_that_tells_no_pidfd_is_believed_by_the_pid() -> None:
    class Old(socket.socket):
        def getsockopt(self, level: int, name: int, size: int = 0) -> bytes:  # type: ignore[override]
            if name == 77:
                raise OSError("no such option")
            return super().getsockopt(level, name, size)

    one, other = socket.socketpair()
    with Old(fileno=one.detach()) as old, other:
        assert peer_of(old) == PeerProcess(os.getpid(), 0)
