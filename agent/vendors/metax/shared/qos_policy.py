"""How slices share the compute of a MetaX card. The policy is one of the card, not of the slice.

Source: HAMi pkg/device/metax/{protocol,sdevice}.go (4707fb02); MXSML's scheduling classes.
"""

from __future__ import annotations

from enum import StrEnum

from agent.vendor_api.backend import NoRoom, RequestRefused

#: Annotation of a pod.
ANNOTATION = "metax-tech.com/sgpu-qos-policy"
_MAX_SHOWN = 63


class Qos(StrEnum):
    """No limit; a hard quota; a guaranteed quota and idle compute beyond it."""

    BEST_EFFORT = "best-effort"
    FIXED_SHARE = "fixed-share"
    BURST_SHARE = "burst-share"


#: The policy of a pod that names none.
DEFAULT = Qos.BEST_EFFORT
#: What mxSmlSetDeviceSchedClass takes.
SCHED_CLASSES = {Qos.BEST_EFFORT: 0, Qos.FIXED_SHARE: 1, Qos.BURST_SHARE: 2}


def policy(text: str) -> Qos:
    """The policy that a pod names.

    Raises:
        RequestRefused: There is no such policy; the text names the three.
    """
    try:
        return Qos(text) if text else DEFAULT
    except ValueError:
        shown = text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}…"
        raise RequestRefused(f"{ANNOTATION} is {shown!a}; there are {', '.join(Qos)}") from None


def fitting(wanted: Qos | None, current: Qos | None, card: str) -> Qos | None:
    """The policy that the card needs before the slice is made; None where the card keeps its policy.

    `wanted` None: the slice takes all of the compute, and any policy fits. `there` None: the card has no
    slice and can take any policy.

    Raises:
        NoRoom: The card has slices of another policy.
    """
    if wanted is None or wanted is current:
        return None
    if current is not None:
        raise NoRoom(
            f"{ANNOTATION} is {wanted}, and the slices on {card} are {current}: a card has one policy; "
            f"ask for {current}, or wait until its slices are gone"
        )
    return wanted
