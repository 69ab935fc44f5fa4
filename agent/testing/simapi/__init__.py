"""An API server without a cluster: what a client can tell of kube-apiserver, over HTTP on loopback."""

from .resources import Resource
from .server import SimApiServer

__all__ = ["Resource", "SimApiServer"]
