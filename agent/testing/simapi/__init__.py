"""An API server without a cluster: what a client can tell of kube-apiserver, over HTTP on loopback."""

from .api_resources import Resource
from .sim_api_server import SimApiServer

__all__ = ["Resource", "SimApiServer"]
