"""The shortest way through a simulated kubelet: register, admit, restart."""

from __future__ import annotations

from agent.testing.node import Admission, Capacity, NodeKubelet

from .conftest import Lab, offers, pod
from .plugin import TOY, devices


async def test_is_a_node_kubelet(lab: Lab) -> None:
    node: NodeKubelet = await lab.kubelet()
    assert await node.capacity() == {}
    assert (node.plugin_dir / "kubelet.sock").is_socket()
    assert node.pod_resources_socket.is_socket()


async def test_pods_and_checkpoint_outlast_a_restart(lab: Lab) -> None:
    kubelet, plugin = await lab.pair("abc")
    kept = pod(2)
    assert await kubelet.admit(kept) == Admission(True)
    held = (await kubelet.devices(kept.uid))["c0"][TOY]

    await kubelet.restart()
    assert not plugin.socket.exists()
    assert await kubelet.capacity() == {TOY: Capacity(0, 0)}

    await plugin.serve()
    plugin.publish(devices("abcd"))
    await plugin.register()
    await offers(kubelet, 4, 4)
    assert (await kubelet.devices(kept.uid))["c0"][TOY] == held
    assert (await kubelet.run_options(kept.uid, "c0")).env == {"DEVICES": ",".join(sorted(held))}
    assert "Requested: 4, Available: 2" in (await kubelet.admit(pod(4))).message
