"""What the command line says to the doctor."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agent.cluster.credentials import NamedKubeconfig

#: Seconds for a vendor that wakes its cards.
VENDOR_PATIENCE = 30.0


@dataclass(frozen=True, slots=True)
class DoctorArguments:
    """The node to look at, and what the agent there would be started with."""

    node: str
    #: Name of a flag to its value.
    given: Mapping[str, Any] = field(default_factory=dict)
    environ: Mapping[str, str] = field(default_factory=dict)
    kubeconfig: NamedKubeconfig = field(default_factory=NamedKubeconfig)
    #: Where the host's / is mounted.
    root: Path = Path("/")
    vendor_patience: float = VENDOR_PATIENCE
