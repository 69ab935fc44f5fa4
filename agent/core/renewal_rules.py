"""When a registration that the kubelet still listens to is made anew. Pure.

Up to 1.36 the kubelet asks the newest registration of a resource for its devices, takes the last list of any,
and tells neither of the other (pkg/kubelet/cm/devicemanager, plugin/v1beta1/handler.go and manager.go). When
the newest one ends, it calls all devices unhealthy (PluginDisconnected) and asks nobody. The next list of an
older one makes them healthy again (genericDeviceUpdateCallback), and pods are refused (`endpoint ... has been
stopped`) until the kubelet forgets the resource, five minutes later.

It tells nobody who is asked. That we are not shows in three ways: none of our devices is listed; the list in
force was another's and is ours now; or, where a list of ours hides both, another plugin was there when all
was well, and is not any more.

A plugin that ends gracefully takes its socket away before its stream, so one that was just missed still
counts as there: it is let go at a look that comes `sure` after.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

#: Seconds until a resource is registered again that the kubelet has not listed since the last time: at first,
#: and after each further one in vain twice as many, up to the last.
IN_VAIN = 10.0, 300.0


class Why(StrEnum):
    """Why a registration is made anew."""

    LAPSED = "the kubelet lists none of our healthy devices"
    OVERTAKEN = "our list is in force after another plugin's"
    HIDDEN = "another plugin has gone, and a list of ours would hide that nobody is asked for its devices"


@dataclass(frozen=True, slots=True)
class Registration:
    """One registration of a resource, and what was told over it."""

    number: int
    #: Lists that were sent; a count that only grows, over all registrations.
    lists: int = 0
    #: Whether the kubelet was told of a healthy device, on the stream that is open.
    offers: bool = True


@dataclass(frozen=True, slots=True)
class KubeletObservation:
    """What the kubelet and its directory show at one moment.

    `listed`: whether the kubelet lists a healthy device of the resource; None where it cannot be asked, or
    was told of none. `others`: whose sockets are served there that are not ours.
    """

    listed: bool | None
    others: frozenset[object] = frozenset()


@dataclass(frozen=True, slots=True)
class RegistrationStanding:
    """What is known of a registration, from one look to the next."""

    #: As it was when all was well for the last time, and who else was there then or came since.
    registration: Registration
    others: frozenset[object] = frozenset()
    #: Whether another's list was in force since.
    overtaken: bool = False
    #: Whether the last look found nothing of ours listed.
    missed: bool = False
    #: When it was made anew for that, and has not been listed since; how long it is then left alone.
    renewed: float = -math.inf
    pause: float = IN_VAIN[0]
    #: Those of the others that no look has seen since, and when one first did not.
    missing: Mapping[object, float] = field(default_factory=dict)

    def beside(self, others: frozenset[object]) -> RegistrationStanding:
        """The same with plugins that came."""
        return replace(self, others=self.others | others)

    def is_open(self, now: float, sure: float) -> bool:
        """Whether a look a moment later says more."""
        return self.missed or any(now - since < sure for since in self.missing.values())


def standing(
    known: RegistrationStanding | None, it: Registration, others: frozenset[object] = frozenset()
) -> RegistrationStanding:
    """What is known of this registration, beside these others if it is new.

    Of an earlier one nothing counts but that it was made in vain.
    """
    if known is None:
        return RegistrationStanding(it, others)
    if known.registration.number == it.number:
        return known
    return RegistrationStanding(it, others, renewed=known.renewed, pause=known.pause)


def on_list(known: RegistrationStanding, *, ours: bool) -> tuple[RegistrationStanding, Why | None]:
    """What follows from whose list is in force."""
    if not ours:
        return replace(known, overtaken=True), None
    return replace(known, overtaken=False), Why.OVERTAKEN if known.overtaken else None


def on_look(
    known: RegistrationStanding, it: Registration, look: KubeletObservation, now: float, sure: float
) -> tuple[RegistrationStanding, Why | None]:
    """What follows from a look; two that find nothing listed count, another's end `sure` seconds after."""
    gone = known.others - look.others
    known = replace(known, missing={it: known.missing.get(it, now) for it in gone})
    ending = frozenset(it for it, since in known.missing.items() if now - since < sure)
    well = replace(known, registration=it, others=look.others | ending, missed=False)
    if look.listed is False:
        if now - known.renewed < known.pause and not gone:
            return known.beside(look.others), None
        if known.missed:
            again = known.renewed > -math.inf
            pause = min(2 * known.pause, IN_VAIN[1]) if again else IN_VAIN[0]
            return replace(well, renewed=now, pause=pause), Why.LAPSED
        return replace(known.beside(look.others), missed=True), None
    if gone - ending and it.lists != known.registration.lists:
        return well, Why.HIDDEN
    if look.listed is None or ending:
        return replace(known.beside(look.others), missed=False), None
    return replace(well, renewed=-math.inf, pause=IN_VAIN[0]), None
