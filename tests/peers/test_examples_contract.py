"""The real API server takes what docs/koordinator.md and the examples show."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from .apiserver import RealApiServer

ROOT = Path(__file__).parents[2]
CRD = ROOT / "deploy/crd/devices.scheduling.koordinator.sh.yaml"
PODS = sorted((ROOT / "deploy/examples").glob("*/pod.yaml"))
TRY = ("create", "--dry-run=server", "--validate=strict", "--filename")
#: Which the controller manager makes elsewhere.
ACCOUNT = json.dumps({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}})


@pytest.mark.parametrize("pod", PODS, ids=lambda it: it.parent.name)
async def test_the_pod_of_an_example_is_one(api_server: RealApiServer, pod: Path) -> None:
    await api_server.kubectl("apply", "--server-side", "--filename", "-", stdin=ACCOUNT)

    assert "created (server dry run)" in await api_server.kubectl(*TRY, str(pod))


async def test_the_device_that_the_page_shows_is_one_and_nothing_of_it_is_dropped(
    api_server: RealApiServer,
) -> None:
    await api_server.kubectl("apply", "--server-side", "--validate=strict", "--filename", str(CRD))
    await api_server.kubectl("wait", "--for=condition=Established", f"crd/{CRD.stem}", "--timeout=30s")
    page = (ROOT / "docs/koordinator.md").read_text()
    [shown] = [it for it in re.findall(r"```yaml\n(.*?)```", page, re.DOTALL) if "kind: Device" in it]

    assert "created (server dry run)" in await api_server.kubectl(*TRY, "-", stdin=shown)
