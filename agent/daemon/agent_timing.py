"""How often things are done and how long the agent waits: every interval of the process as one value."""

from __future__ import annotations

from msgspec import Struct, field

from agent.cluster.pod_state import LISTS_AFTER
from agent.core.devices.health_thresholds import HealthThresholds
from agent.isolation.deadlines import Deadlines
from agent.kubelet.session_timing import SessionTiming


class AgentTiming(Struct, frozen=True):
    """Every interval of the process, in seconds. Tests run with small ones."""

    #: Between two discoveries of a vendor's devices.
    discover: float = 10.0
    #: Until the kubelet is asked again to write its checkpoint because of the same allocation.
    request_again_after: float = 300.0
    #: How long one life of the kubelet must have served before allocations of an earlier life may be released
    #: because this one does not list their pods.
    settle: float = 120.0
    #: Between two tries of a standby agent to take the lock.
    standby: float = 0.1
    #: Between two saves of health, so that a storm of faults costs a few writes.
    save: float = 0.1
    #: Between two polls of the kubelet's directory, which inotify watches, too.
    directory: float = 5.0
    #: Between two calls of PodResources: all clients on the node share the kubelet's limit.
    pod_resources: float = 1.0
    #: Between two such calls for an Allocate. An Allocate of IDs that were in use before cannot wait longer:
    #: many short pods would queue up.
    pods_at_once: float = 0.02
    #: Between two looks at the CDI specs and the labels on disk.
    specs: float = 60.0
    #: Between two looks at the directory of a scheduler's program, where other programs write, too.
    device_infos: float = 5.0
    #: Between the two looks that must both show another plugin on a resource before the agent reports it.
    takeover_again: float = 1.0
    #: Between two looks for registrations that the kubelet may have lost.
    renewals: float = 10.0
    #: Until devices that the kubelet did not list are looked for again: a slow kubelet needs time for a long
    #: list.
    renewal_again: float = 5.0
    #: Between two looks for other plugins on the vendors' cards.
    other_plugins: float = 2.0
    #: Until another plugin counts as gone after its socket was last served.
    other_plugin_gone: float = 5.0
    #: How long the registration of a resource with cards that schedulers choose waits for the node's pods.
    pods_known: float = 2.0
    #: From a kubelet's socket to its first list of pods.
    lists_after: float = LISTS_AFTER
    #: Until a refusal is published. By then the status of the pod that asked shows the refusal's text.
    refusal_delay: float = 3.0
    #: Before a vendor's process is started again, the first pause and the longest.
    backoff: tuple[float, float] = (0.1, 30.0)
    #: In place of `agent.health` of the config.
    health: HealthThresholds | None = None
    #: In place of `agent.reconcile.interval` of the config.
    reconcile: float | None = None
    #: In place of `agent.reconcile.grace` of the config.
    grace: float | None = None
    session: SessionTiming = field(default_factory=SessionTiming)
    deadlines: Deadlines = field(default_factory=Deadlines)
