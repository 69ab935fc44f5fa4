"""The device-infos file from which koordlet makes the Device.

Source: koordinator pkg/koordlet/util/device.go (XPUDeviceInfo) and collector_xpu.go: an array of objects
whose scalars are strings but for booleans.
"""

from __future__ import annotations

from collections.abc import Mapping

from agent.core.koordinator.report import Report

#: Where koordlet looks unless its flag -xpu-device-infos-dir says otherwise.
DIRECTORY = "/var/run/koordlet/xpu-device-infos"


def device_infos(report: Report) -> str:
    """The whole text of the file."""
    raise NotImplementedError


def unlisted(report: Report, listed: Mapping[str, int]) -> Report:
    """The report for a directory where other files are; it may be left without cards: then no file is to be.

    `listed`: what these files list, uuid to minor (`cards`). koordlet counts a card that two files list twice,
    and cards of one minor, too: what ours would double is left out, and named in `left_out`.
    """
    raise NotImplementedError


def cards(text: str) -> Mapping[str, int] | None:
    """The cards that a file lists, uuid to minor; None where koordlet takes neither it nor those beside it."""
    raise NotImplementedError


def told(text: str) -> Report | None:
    """What a file that we wrote said, as far as a file holds it; None where it is none of ours."""
    raise NotImplementedError
