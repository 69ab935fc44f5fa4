"""How the slices of a MetaX card share its compute. A policy belongs to the card, not to the slice.

Source: HAMi pkg/device/metax/{protocol,sdevice}.go (4707fb02); MXSML's scheduling classes.
"""

from __future__ import annotations

from enum import StrEnum

from agent.vendor_api.backend import NoRoom, RequestRefused

#: Annotation of a pod.
ANNOTATION = "metax-tech.com/sgpu-qos-policy"
_MAX_SHOWN = 63


class Qos(StrEnum):
    """No limit; a hard quota; a quota that is sure, and what is idle beside it."""

    BEST_EFFORT = "best-effort"
    FIXED_SHARE = "fixed-share"
    BURST_SHARE = "burst-share"


#: Of a pod that names none.
DEFAULT = Qos.BEST_EFFORT
#: What mxSmlSetDeviceSchedClass takes.
SCHED_CLASSES = {Qos.BEST_EFFORT: 0, Qos.FIXED_SHARE: 1, Qos.BURST_SHARE: 2}


def policy(text: str) -> Qos:
    """The policy that a pod names.

    Raises:
        RequestRefused: There is no such one; names the three.
    """
    try:
        return Qos(text) if text else DEFAULT
    except ValueError:
        said = text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}…"
        raise RequestRefused(f"{ANNOTATION} is {said!a}; there are {', '.join(Qos)}") from None


def fitting(wanted: Qos | None, there: Qos | None, card: str) -> Qos | None:
    """The policy that the card is to be set to before the slice is made; None where it stays as it is.

    `wanted` None: the slice takes all of the compute, and any policy fits. `there` None: no slice lies on the
    card, and it takes any.

    Raises:
        NoRoom: Slices of another policy lie there.
    """
    if wanted is None or wanted is there:
        return None
    if there is not None:
        raise NoRoom(
            f"{ANNOTATION} is {wanted}, and the slices on {card} are {there}: a card has one policy; "
            f"ask for {there}, or wait until its slices are gone"
        )
    return wanted
