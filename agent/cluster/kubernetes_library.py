"""Loads kubernetes-asyncio without the thousand modules that its packages import.

For 36.1.0 the whole import is 1,000 modules and 43 MB; this loads 150 modules and 11 MB. The packages
`kubernetes_asyncio` and `.client` are registered without running their `__init__`, which runs only when a
missing class is asked for. No other file knows of this.
"""

from __future__ import annotations

import importlib
import sys
from importlib.util import find_spec, module_from_spec
from types import ModuleType
from typing import Any

from msgspec import Struct

_LIBRARY = "kubernetes_asyncio"
_CLIENT = f"{_LIBRARY}.client"
_MODELS = f"{_CLIENT}.models"


class Library(Struct, frozen=True):
    """What the client uses of kubernetes-asyncio, and of aiohttp below it."""

    api_client: Any
    configuration: Any
    #: Exceptions of a call if the connection fails, or the answer is no valid HTTP.
    errors: tuple[type[Exception], ...]


def load() -> Library:
    """Import the client: 0.1 to 0.5 s of CPU, so call it in a thread, and late.

    Raises:
        ImportError: The library is not installed, or broken.
    """
    if _LIBRARY not in sys.modules:
        try:
            _enter()
            return _loaded()
        except (ImportError, AttributeError):  # another release with other modules: import all of it
            _forget()
    return _loaded()


def load_kubeconfig() -> Any:
    """Import the reader of kubeconfig files, after `load`, and return its module.

    Raises:
        ImportError: The module does not exist.
        RuntimeError: The user has no home directory, which the module asks for when it is imported.
    """
    return importlib.import_module(f"{_LIBRARY}.config.kube_config")


def _loaded() -> Library:
    configuration = importlib.import_module(f"{_CLIENT}.configuration")
    api_client = importlib.import_module(f"{_CLIENT}.api_client")
    client = sys.modules[_CLIENT]
    # As the package's own `__init__` does; the reader of kubeconfig files takes both from there.
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
    """Register a package in `sys.modules` without running it, so that its modules can be imported."""
    spec = find_spec(name)
    if spec is None or spec.loader is None:
        raise ModuleNotFoundError(f"no package {name}", name=name)
    package = module_from_spec(spec)

    def run_for(attribute: str) -> Any:
        # The import system asks for modules in the same way, and finds them without an answer.
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
