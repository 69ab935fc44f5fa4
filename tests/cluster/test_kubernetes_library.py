"""How kubernetes-asyncio is loaded: a part of it, late, and all of it where that part does not fit."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

#: With what asyncio brings it is some 330; the whole import is 1,200, most of them models.
FEW = 500

LOAD = """
import json, sys
before = set(sys.modules)
from agent.cluster import kubernetes_library
{spoil}
library = kubernetes_library.load()
loaded = set(sys.modules) - before
print(json.dumps({{
    "modules": len(loaded),
    "models": [name for name in loaded if name.startswith("kubernetes_asyncio.client.models.")],
    "host": library.configuration(host="https://h").host,
    "result": {result},
}}))
"""


def loading(result: str = "None", spoil: str = "") -> dict[str, Any]:
    """Load in a process of its own: what is loaded here was so before."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", LOAD.format(result=result, spoil=spoil)],
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    loaded: dict[str, Any] = json.loads(done.stdout)
    return loaded


def test_only_what_speaks_with_the_server_is_loaded() -> None:
    loaded = loading()

    assert loaded["models"] == []
    assert loaded["modules"] < FEW
    assert loaded["host"] == "https://h"


def test_a_class_that_was_left_out_is_there_for_who_asks() -> None:
    loaded = loading("__import__('kubernetes_asyncio.client').client.CoreV1Api.__name__")

    assert loaded["result"] == "CoreV1Api"


def test_kubeconfigs_are_read_without_the_models() -> None:
    loaded = loading(
        "[kubernetes_library.load_kubeconfig().__name__, "
        "sum('.client.models.' in name for name in sys.modules)]"
    )

    assert loaded["result"] == ["kubernetes_asyncio.config.kube_config", 0]


def test_a_release_that_does_not_fit_is_loaded_whole() -> None:
    loaded = loading(
        "'V1Node' in vars(sys.modules['kubernetes_asyncio.client'])",
        spoil="kubernetes_library._MODELS = 'kubernetes_asyncio.client.moved'",
    )

    assert loaded["result"]
    assert len(loaded["models"]) > FEW
    assert loaded["host"] == "https://h"


def test_a_library_that_somebody_loaded_before_is_taken_as_it_is() -> None:
    loaded = loading("kubernetes_asyncio.client.CoreV1Api.__name__", spoil="import kubernetes_asyncio.client")

    assert loaded["result"] == "CoreV1Api"
