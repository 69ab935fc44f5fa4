"""The rules of a session, each by its name; numbers are those of the list of common plugin mistakes."""

from __future__ import annotations

from pathlib import Path

from .fakes import bench, card


async def test_a_resource_registers_and_its_list_arrives(plugins_dir: Path) -> None:
    async with bench(plugins_dir, card("b", healthy=False), card("a", numa=0)) as node:
        plugin = await node.registered()

        assert plugin.healths() == {"a": "Healthy", "b": "Unhealthy"}
        assert node.sockets() == [node.kubelet.requests[0].endpoint]
    assert not list(plugins_dir.glob("xpu-*.sock"))
