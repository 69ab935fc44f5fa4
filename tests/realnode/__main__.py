"""`python -m realnode`: bring a cluster up with the agent and pods that print their cards, and keep it up.

With `bare` neither agent nor pods: to write scenarios on.
"""

from __future__ import annotations

import asyncio
import sys

import yaml

from .cluster import Cluster, Progress, up
from .place import ROOT, TOOLS, Place, this_node
from .space import Space, deployment, pod_spec

EXAMPLE = "time-slicing-verification"
SHARED = ROOT / "deploy/examples/nvidia-time-slicing/values.yaml"
REPLICAS = 5


async def keep(place: Place, *, bare: bool) -> None:
    progress = Progress(print)
    async with up(place, progress) as cluster:
        if not bare:
            await show(cluster, progress)
        print(advice(cluster))
        place.ready.touch()
        await asyncio.Event().wait()


async def show(cluster: Cluster, progress: Progress) -> None:
    """Install the agent, and have pods print their cards."""
    await cluster.agent.hold(yaml.safe_load(SHARED.read_text()))
    progress.done("agent installed by the chart, with NVIDIA's config for time-slicing")
    await cluster.offers(40)
    progress.done("40 nvidia.com/gpu allocatable, on 4 cards")
    space = Space(cluster.api, "default")
    await space.ready()
    toleration = {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}
    await space.apply(deployment(EXAMPLE, REPLICAS, pod_spec(tolerations=[toleration])))
    names = await space.running(REPLICAS, EXAMPLE)
    progress.done(f"{REPLICAS} pods of the Deployment {EXAMPLE} run; their logs:")
    for name in names:
        print(f"          {name}: {', '.join(await space.cards(name))}")
    await cluster.agent.ready()  # or an upgrade by hand would end it before the next one stands by


def advice(cluster: Cluster) -> str:
    place = cluster.place
    return f"""
The cluster stays up until `make cluster-stop`. To look around:

  export KUBECONFIG={place.kubeconfig} PATH={TOOLS}:$PATH

  kubectl describe node node-1
  kubectl logs --prefix -l app={EXAMPLE}
  kubectl -n xpu-agent exec daemonset/xpu-agent-nvidia -- xpu-agent inspect

  echo 'lost 2' >>{place.cards}     # a card falls off the bus
  sed -i '/^lost 2$/d' {place.cards} # and is back

Logs: {place.logs}"""


def main() -> int:
    place = this_node()
    if place is None:
        print("not on a node of its own: run `make cluster`", file=sys.stderr)
        return 2
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    asyncio.run(keep(place, bare="bare" in sys.argv[1:]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
