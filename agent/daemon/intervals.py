"""How often and how patiently: every interval of the process as one value."""

from __future__ import annotations

from dataclasses import dataclass, field

from agent.cluster.pod_state import LISTS_AFTER
from agent.core.devices.health_rules import HealthTiming
from agent.isolation.supervisor import Deadlines
from agent.kubelet.registration import SessionIntervals


@dataclass(frozen=True, slots=True)
class Intervals:
    """Every interval of the process, seconds; doubles run with small ones."""

    discover: float = 10.0
    #: Until the kubelet is asked again to write down what it knows of a pod that nobody shows.
    doubt_again: float = 300.0
    #: How long the same kubelet must have served before its word is taken that pods are gone to which only
    #: another life of it has granted something.
    settle: float = 120.0
    standby: float = 0.1
    #: Between two saves of health, so that a storm of faults is a few writes.
    save: float = 0.1
    directory: float = 5.0
    #: Between two calls of PodResources, whose limit all its clients on the node share.
    pod_resources: float = 1.0
    #: The same for an Allocate of IDs that somebody had: many short pods must not queue up.
    pods_at_once: float = 0.02
    #: Between two looks at the CDI specs and the labels on disk.
    specs: float = 60.0
    #: Between two looks at koordlet's directory, where others write, too.
    infos: float = 5.0
    #: Until it is looked again whether another plugin serves a resource of ours, before that is said.
    sure: float = 1.0
    #: Between two looks for registrations that the kubelet may ask nobody for.
    renewals: float = 10.0
    #: Until devices that it does not list are looked for again: a long list takes a slow kubelet its time.
    missed: float = 5.0
    #: Between two looks for other plugins of our cards, and until one that is gone will not come back.
    rivals: float = 2.0
    rival_gone: float = 5.0
    #: What a resource whose cards schedulers choose waits for the pods of the node before it is registered.
    pods_known: float = 2.0
    #: From a kubelet's socket to its first list of pods, which doubles of a kubelet may have at once.
    lists_after: float = LISTS_AFTER
    #: What the pod of a refused Allocate gets to show our words, before the refusal is told.
    whose: float = 3.0
    backoff: tuple[float, float] = (0.1, 30.0)
    #: Instead of what the config says: `agent.health`, and `agent.reconcile` with its interval and grace.
    health: HealthTiming | None = None
    reconcile: float | None = None
    grace: float | None = None
    session: SessionIntervals = field(default_factory=SessionIntervals)
    deadlines: Deadlines = field(default_factory=Deadlines)
