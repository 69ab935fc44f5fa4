"""The simulated kubelet, as tests, the demo and vendor contributors import it."""

from .simkubelet.journal import AllocateCall, Journal, PreferredCall, PreStartCall
from .simkubelet.kubelet import SimKubelet
from .simkubelet.runtime import StartError

__all__ = ["AllocateCall", "Journal", "PreStartCall", "PreferredCall", "SimKubelet", "StartError"]
