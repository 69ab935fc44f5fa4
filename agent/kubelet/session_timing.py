"""How long a session with the kubelet waits for what."""

from __future__ import annotations

from msgspec import Struct


class SessionTiming(Struct, frozen=True):
    """How long a session waits for what, in seconds. Tests pass small values."""

    #: For the answer to Register. The kubelet dials back for up to 10 s before it answers.
    register: float = 15.0
    #: From the answer to Register to the ListAndWatch call that must follow.
    stream: float = 5.0
    shortest_pause: float = 0.1
    longest_pause: float = 30.0
    #: A registration that lasted this long resets the pause before the next one to the shortest.
    settled: float = 30.0
    #: At shutdown, for calls that are still running.
    drain: float = 1.5
    #: For the delivery of the empty list of a retired resource.
    retire: float = 5.0
    min_list_interval: float = 0.1
    #: Between two equal log lines about a kubelet that is absent or does not answer.
    remind: float = 60.0
    allocate: float = 10.0
