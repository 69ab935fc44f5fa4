"""Completes a device that can hardly be read now from the last good reading of the same device."""

from __future__ import annotations

from dataclasses import replace

from agent.vendor_api.backend import Device


def completed(sick: Device, known: Device) -> Device:
    """Fill the empty fields of a faulty device from the device as it was read before."""
    return replace(
        sick,
        uuid=known.uuid,
        minor=known.minor if sick.minor is None else sick.minor,
        pci=sick.pci or known.pci,
        numa=known.numa if sick.numa is None else sick.numa,
        memory=sick.memory or known.memory,
        model=sick.model or known.model,
        paths=sick.paths or known.paths,
        attributes={**known.attributes, **sick.attributes},
    )
