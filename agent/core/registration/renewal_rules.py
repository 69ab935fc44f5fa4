"""When a registration is renewed although its stream to the kubelet is still open. Pure.

Up to 1.36 several plugins can register one resource. The kubelet sends its calls to the newest registration,
but accepts the last device list from any of them, and informs no plugin of another one
(pkg/kubelet/cm/devicemanager, plugin/v1beta1/handler.go and manager.go). When the newest registration ends,
the kubelet marks all devices unhealthy (PluginDisconnected) and has no endpoint for its calls. The next list
from an older registration makes the devices healthy again (genericDeviceUpdateCallback), but pods are refused
(`endpoint ... has been stopped`) until the kubelet forgets the resource five minutes later.

The kubelet does not say which registration it calls. Three signs show that it is not the agent's:
the kubelet lists none of the agent's devices; the list in force was another plugin's and is now the agent's;
or another plugin that was present at the last good observation is gone. The third sign is needed where a list
of the agent hides the first two.

A plugin that ends gracefully removes its socket before it closes its stream. So a plugin that is missing for
less than `gone_after` seconds still counts as present.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from enum import StrEnum

from msgspec import Struct, field
from msgspec.structs import replace

#: Seconds between two renewals without effect: the first pause, which doubles each time, and the longest.
FIRST_PAUSE, LONGEST_PAUSE = 10.0, 300.0


class RenewalReason(StrEnum):
    """Why a registration is renewed."""

    LAPSED = "the kubelet lists none of the agent's healthy devices"
    OVERTAKEN = "the agent's list is in force after another plugin's"
    HIDDEN = (
        "another plugin has gone, and a list of the agent would hide that the kubelet has no live endpoint"
    )


class Registration(Struct, frozen=True):
    """One registration of a resource, and the lists that were sent on its stream."""

    number: int
    #: How many lists were sent so far, over all registrations of the resource.
    lists: int = 0
    #: Whether the last list on the open stream had a healthy device.
    offers: bool = True


class KubeletObservation(Struct, frozen=True):
    """What the kubelet and its plugin directory show at one moment.

    `listed`: whether the kubelet lists a healthy device of the resource. None: the kubelet cannot be asked,
    or the agent offers no healthy device. `others`: the other plugins with a live socket in the directory.
    """

    listed: bool | None
    others: frozenset[object] = frozenset()


class RegistrationStanding(Struct, frozen=True):
    """What is remembered of a registration from one observation to the next."""

    #: The registration at the last good observation.
    registration: Registration
    #: The other plugins that were present then or came since.
    others: frozenset[object] = frozenset()
    #: Whether another plugin's list was in force since.
    overtaken: bool = False
    #: Whether the last observation found none of the agent's devices listed.
    missed: bool = False
    #: When the registration was last renewed for that without effect so far; seconds.
    renewed: float = -math.inf
    #: How many seconds must pass until the next renewal for that.
    pause: float = FIRST_PAUSE
    #: Other plugins that are missing, and the time at which each was first missed.
    missing: Mapping[object, float] = field(default_factory=dict)

    def with_others(self, others: frozenset[object]) -> RegistrationStanding:
        """The same standing, with these other plugins added."""
        return replace(self, others=self.others | others)

    def is_open(self, now: float, gone_after: float) -> bool:
        """Whether a second observation soon after can change the decision."""
        return self.missed or any(now - since < gone_after for since in self.missing.values())


def standing_of(
    known: RegistrationStanding | None, registration: Registration, others: frozenset[object] = frozenset()
) -> RegistrationStanding:
    """The standing of this registration. A new registration starts with these other plugins.

    Of an earlier registration only the pause between renewals without effect is kept.
    """
    if known is None:
        return RegistrationStanding(registration, others)
    if known.registration.number == registration.number:
        return known
    return RegistrationStanding(registration, others, renewed=known.renewed, pause=known.pause)


def on_list(known: RegistrationStanding, *, own: bool) -> tuple[RegistrationStanding, RenewalReason | None]:
    """The new standing once it is known whether the list in force is the agent's, and why to renew."""
    if not own:
        return replace(known, overtaken=True), None
    return replace(known, overtaken=False), RenewalReason.OVERTAKEN if known.overtaken else None


def on_observation(
    known: RegistrationStanding,
    registration: Registration,
    look: KubeletObservation,
    now: float,
    gone_after: float,
) -> tuple[RegistrationStanding, RenewalReason | None]:
    """The new standing after an observation, and why to renew the registration; None: do not renew.

    Only the second observation in a row without the agent's devices counts. Another plugin counts as gone
    `gone_after` seconds after it was first missed.
    """
    gone = known.others - look.others
    known = replace(known, missing={it: known.missing.get(it, now) for it in gone})
    ending = frozenset(it for it, since in known.missing.items() if now - since < gone_after)
    well = replace(known, registration=registration, others=look.others | ending, missed=False)
    if look.listed is False:
        if now - known.renewed < known.pause and not gone:
            return known.with_others(look.others), None
        if known.missed:
            again = known.renewed > -math.inf
            pause = min(2 * known.pause, LONGEST_PAUSE) if again else FIRST_PAUSE
            return replace(well, renewed=now, pause=pause), RenewalReason.LAPSED
        return replace(known.with_others(look.others), missed=True), None
    if gone - ending and registration.lists != known.registration.lists:
        return well, RenewalReason.HIDDEN
    if look.listed is None or ending:
        return replace(known.with_others(look.others), missed=False), None
    return replace(well, renewed=-math.inf, pause=FIRST_PAUSE), None
