"""Loads kubernetes-asyncio without the thousand modules that its packages import by themselves.

Of 36.1.0 the whole import is 1,000 modules and 43 MB, what is loaded here 150 and 11 MB. The packages
`kubernetes_asyncio` and `.client` are entered without running their `__init__`; who asks one of them for a
class that it has not, gets it run then. This is the only file that knows.
"""

from __future__ import annotations

import importlib
import sys
from dataclasses import dataclass
from importlib.util import find_spec, module_from_spec
from types import ModuleType
from typing import Any

_LIBRARY = "kubernetes_asyncio"
_CLIENT = f"{_LIBRARY}.client"
_MODELS = f"{_CLIENT}.models"


@dataclass(frozen=True, slots=True)
class Library:
    """What the client needs of kubernetes-asyncio, and of aiohttp that it speaks HTTP with."""

    api_client: Any
    configuration: Any
    #: What a call raises where the wire fails, or what came over it was no HTTP.
    errors: tuple[type[Exception], ...]


def load() -> Library:
    """Import what speaks with an API server: 0.1 to 0.5 s of CPU, so in a thread and late.

    Raises:
        ImportError: The library is not installed, or broken.
    """
    if _LIBRARY not in sys.modules:
        try:
            _enter()
            return _loaded()
        except (ImportError, AttributeError):  # another release, with other modules: then the whole of it
            _forget()
    return _loaded()


def load_kubeconfig() -> Any:
    """Import the reader of kubeconfig files, after `load`; returns its module.

    Raises:
        ImportError: It is not there.
        RuntimeError: The user has no home directory, which it asks for as it is imported.
    """
    return importlib.import_module(f"{_LIBRARY}.config.kube_config")


def _loaded() -> Library:
    configuration = importlib.import_module(f"{_CLIENT}.configuration")
    api_client = importlib.import_module(f"{_CLIENT}.api_client")
    client = sys.modules[_CLIENT]
    # As the package's own `__init__` does; the reader of kubeconfig files takes them from there.
    client.__dict__.setdefault("Configuration", configuration.Configuration)
    client.__dict__.setdefault("ApiClient", api_client.ApiClient)
    aiohttp = importlib.import_module("aiohttp")
    broken = importlib.import_module("aiohttp.http_exceptions").HttpProcessingError
    return Library(api_client.ApiClient, configuration.Configuration, (aiohttp.ClientError, broken))


def _enter() -> None:
    library = _entered(_LIBRARY)
    client = _entered(_CLIENT)
    models = _entered(_MODELS)
    vars(library)["client"] = client
    vars(client)["models"] = models


def _entered(name: str) -> ModuleType:
    """Put a package into `sys.modules` whose modules can be imported, but that did not run."""
    spec = find_spec(name)
    if spec is None or spec.loader is None:
        raise ModuleNotFoundError(f"no package {name}", name=name)
    package = module_from_spec(spec)

    def run_for(attribute: str) -> Any:
        # The import system asks for modules in the same way, and finds those by itself.
        if not attribute[:1].isupper():
            raise AttributeError(f"module {name!r} has no attribute {attribute!r}")
        del vars(package)["__getattr__"]
        assert spec.loader is not None
        spec.loader.exec_module(package)
        return getattr(package, attribute)

    vars(package)["__getattr__"] = run_for
    sys.modules[name] = package
    return package


def _forget() -> None:
    for name in [name for name in sys.modules if name == _LIBRARY or name.startswith(f"{_LIBRARY}.")]:
        del sys.modules[name]
