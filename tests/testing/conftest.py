"""Simulated kubelets and a toy plugin, each in a directory with a short name; a simulated API server."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack
from dataclasses import fields
from pathlib import Path
from typing import Any

import anyio
import pytest

from agent.testing.kubelet import KubeletLimits, SimKubelet
from agent.testing.node_kubelet import Capacity, Container, Pod
from agent.testing.simapi import SimApiServer
from agent.testing.simkubelet.plugin_client import Plugin

from .apiclient import Client
from .plugin import TOY, ToyPlugin, devices


@pytest.fixture
def directory() -> Iterator[Path]:
    # Not tmp_path: its long names leave no room for a socket's.
    with tempfile.TemporaryDirectory(prefix="sim-") as path:
        yield Path(path)


class Lab:
    """Opens kubelets and plugins, and closes them at the end of the test."""

    def __init__(self, directory: Path, stack: AsyncExitStack) -> None:
        self.directory = directory
        self._stack = stack

    async def kubelet(self, **settings: Any) -> SimKubelet:
        """A kubelet with these arguments of SimKubelet and fields of its KubeletLimits."""
        names = {it.name for it in fields(KubeletLimits)} & settings.keys()
        limits = KubeletLimits(**{"registry_interval": 0.01, **{name: settings.pop(name) for name in names}})
        kubelet = SimKubelet(self.directory, limits=limits, **settings)
        return await self._stack.enter_async_context(kubelet)

    async def plugin(self, kubelet: SimKubelet, **settings: Any) -> ToyPlugin:
        return await self._stack.enter_async_context(ToyPlugin(kubelet.plugin_dir, **settings))

    async def pair(
        self, ids: str = "abc", plugin: dict[str, Any] | None = None, **settings: Any
    ) -> tuple[SimKubelet, ToyPlugin]:
        """A kubelet that has taken in the plugin's first list."""
        kubelet = await self.kubelet(**settings)
        toy = await self.plugin(kubelet, **(plugin or {}))
        toy.publish(devices(ids))
        await toy.register()
        await offers(kubelet, len(ids), len(ids), toy.resource)
        return kubelet, toy


@pytest.fixture
async def lab(directory: Path) -> AsyncIterator[Lab]:
    async with AsyncExitStack() as stack:
        yield Lab(directory, stack)


def dial_shortly(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on a kubelet gives a socket up soon. Before, a busy machine had all its time."""
    dial = Plugin.dial
    monkeypatch.setattr(Plugin, "dial", lambda plugin, timeout: dial(plugin, 0.05))


async def offers(kubelet: SimKubelet, capacity: int, allocatable: int, resource: str = TOY) -> None:
    await until(kubelet, lambda k: k.counts().get(resource) == Capacity(capacity, allocatable))


async def until(kubelet: SimKubelet, condition: Callable[[SimKubelet], bool]) -> None:
    with anyio.fail_after(30):
        await kubelet.wait(condition)


def pod(*limits: int, init: int = 0, sidecar: int = 0, name: str = "pod") -> Pod:
    containers = [Container({TOY: count}, name=f"c{place}") for place, count in enumerate(limits)]
    if sidecar:
        containers.insert(0, Container({TOY: sidecar}, name="sidecar", init=True, restartable=True))
    if init:
        containers.insert(0, Container({TOY: init}, name="init", init=True))
    return Pod(name, tuple(containers))


@pytest.fixture
async def sim() -> AsyncIterator[SimApiServer]:
    async with SimApiServer() as server:
        yield server


@pytest.fixture
async def api(sim: SimApiServer) -> AsyncIterator[Client]:
    """A client of the simulated API server that may do everything."""
    async with Client(sim.url, sim.token) as client:
        yield client
