"""Writes the CDI specs that a container runtime needs to give NVIDIA's devices to a container."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from agent.core.vendor import Device


def specs(settings: Mapping[str, Any], devices: Sequence[Device]) -> dict[str, str]:
    """The CDI spec files: name (`k8s.device-plugin.nvidia.com-gpu.json`) to JSON text.

    Empty unless the setting deviceListStrategy names cdi-annotations or cdi-cri. Never raises for what the
    host lacks.
    """
    return {}
