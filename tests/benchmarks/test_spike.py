"""The spike is a device plugin that a kubelet takes, and has nothing of the agent."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from agent.testing.node_kubelet import Capacity, Container, Pod
from agent.testing.simkubelet.sim_kubelet import SimKubelet
from bench import spike

SCRIPT = Path(spike.__file__)


@asynccontextmanager
async def served(directory: Path, *counts: str) -> AsyncIterator[SimKubelet]:
    """A kubelet with the spike on it."""
    async with SimKubelet(directory) as kubelet:
        process = await asyncio.create_subprocess_exec(
            sys.executable, str(SCRIPT), str(kubelet.plugin_dir), *counts
        )
        try:
            yield kubelet
        finally:
            process.kill()
            await process.wait()


async def counted(kubelet: SimKubelet) -> Mapping[str, Capacity]:
    """The kubelet's counts, once there are some."""
    while True:
        counts = await kubelet.capacity()
        if any(it.allocatable for it in counts.values()):
            return counts
        await asyncio.sleep(0.02)


@pytest.mark.parametrize(("counts", "devices"), [(("8",), 32), (("8", "300"), 2_400), (("2", "1"), 2)])
async def test_it_lists_as_many_devices_as_it_is_asked_for(
    counts: tuple[str, ...], devices: int, short_path: Path
) -> None:
    async with served(short_path, *counts) as kubelet:
        assert await counted(kubelet) == {spike.RESOURCE: Capacity(devices, devices)}


async def test_a_container_gets_the_cards_of_its_device_ids(short_path: Path) -> None:
    async with served(short_path, "2", "1") as kubelet:
        await counted(kubelet)
        pod = Pod("a", (Container({spike.RESOURCE: 2}),))

        assert (await kubelet.admit(pod)).admitted

        options = await kubelet.run_options(pod.uid, "main")
        assert sorted(options.env["NVIDIA_VISIBLE_DEVICES"].split(",")) == ["GPU-00000000", "GPU-00000001"]
        assert not options.annotations


def test_it_imports_nothing_of_the_agent() -> None:
    code = f"import runpy, sys; runpy.run_path({str(SCRIPT)!r}); "
    code += "assert 'betterproto2' in sys.modules; assert 'agent' not in sys.modules, 'the agent is imported'"

    subprocess.run([sys.executable, "-c", code], check=True)
