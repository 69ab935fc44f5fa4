"""The simulated kubelet, as tests, the demo and vendor contributors import it."""

from .simkubelet.container_start import StartError
from .simkubelet.journal import AllocateCall, Journal, PreferredCall, PreStartCall
from .simkubelet.manager import KubeletLimits
from .simkubelet.sim_kubelet import SimKubelet

__all__ = [
    "AllocateCall",
    "Journal",
    "KubeletLimits",
    "PreStartCall",
    "PreferredCall",
    "SimKubelet",
    "StartError",
]
