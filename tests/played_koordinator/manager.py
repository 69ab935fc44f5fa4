"""koord-manager as far as it brings a Device to its Node.

Restated from koordinator a7a1b76b, pkg/slo-controller/noderesource/plugins/gpudeviceresource, with the gate
EnableSyncGPUSharedResource on. test_manager.py holds it to what the real one left on a Node. Left out: on
nodes of ten cards and more a change of less than a tenth waits up to five minutes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .amounts import added, amounts
from .wishes import CORE, GPU, MEMORY, RATIO, SHARED

_KNOWN = (GPU, CORE, MEMORY, RATIO, SHARED)
_VENDOR, *_OTHERS = (f"node.koordinator.sh/gpu-{it}" for it in ("vendor", "model", "driver-version"))


@dataclass
class Manager:
    """One Node's labels and resources; what is said once stays, as far as nothing takes it back."""

    labels: dict[str, str] = field(default_factory=dict)
    resources: dict[str, int] = field(default_factory=dict)
    _spec: Any = None

    def sees(self, device: Mapping[str, Any] | None) -> None:
        """A change of the Device, or that it is gone; a change of its labels alone is not heard."""
        spec = device["spec"] if device else None
        if spec == self._spec:
            return
        self._spec = spec
        well = [it for it in spec["devices"] if it["type"] == "gpu" and it["health"]] if spec else []
        if device is None or not well:
            for name in _KNOWN:
                self.resources.pop(name, None)
            return
        total = added(amounts(it["resources"]) for it in well)
        labels = device["metadata"].get("labels", {})
        if labels.get(_VENDOR, "nvidia") in ("", "nvidia"):
            total[GPU] = total.get(CORE, 0)
        total[SHARED] = 100 * len(well)
        self.resources |= {name: total[name] for name in _KNOWN if name in total}
        self.labels |= {name: labels[name] for name in (_VENDOR, *_OTHERS) if name in labels}
