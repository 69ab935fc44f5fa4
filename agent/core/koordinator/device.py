"""The Device object that tells Koordinator of a report.

Source: koordinator config/crd/bases/scheduling.koordinator.sh_devices.yaml, and for what koordlet writes
pkg/koordlet/statesinformer/impl/states_device_linux.go.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agent.core.koordinator.report import Report

API_VERSION = "scheduling.koordinator.sh/v1alpha1"


def device(
    node: str, uid: str, report: Report, existing: Mapping[str, Any] | None, now: float
) -> dict[str, Any] | None:
    """The Device to create (`existing` None) or to PUT; None where it says all of it already.

    `uid`: of the Node, which owns the Device. `now`: Unix seconds, of conditions that change.
    An object to PUT has the resourceVersion of `existing`. Entries of other types, labels and annotations
    that are not ours, and other owners stay as they are.
    """
    raise NotImplementedError


def told(existing: Mapping[str, Any] | None) -> Report | None:
    """What a Device says of cards; None where it says nothing. It may be anybody's: nonsense is left out."""
    raise NotImplementedError
