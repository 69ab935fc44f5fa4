"""From the spawn of the process until the kubelet has accepted it and holds its first list."""

from __future__ import annotations

from bench.pace import Pace
from bench.place import places
from bench.report import is_machine_of_the_table
from bench.rows import NO_SLACK, Bound, Figure, Row, Series
from bench.subjects import Contest, Setup

RUNS = 9
#: 8 cards x 4 replicas: what the single calls are measured with, too.
SMALL = Setup(replicas=4)
START = Figure(
    "start to first list, 8 cards x 4",
    "ms",
    reference="NVIDIA 12",
    bound=Bound("spike", times=2.3),
    tolerance=NO_SLACK,
)
ON_TABLE = "the same on the machine of the published table"
CPU = Figure(
    "CPU from spawn to first list, all processes", "s", 0.25, reference="spike 0.2", tolerance=NO_SLACK
)


async def measure(contest: Contest, pace: Pace) -> list[Row]:
    """Start on the stub library until the kubelet has the first list, in turns with the spike."""
    took, spent = Series(), Series()
    async with places(contest) as all_places:
        for here in all_places:
            async with here.running(SMALL):  # compiles what is not compiled yet
                pace.says(f"{here.subject.name} has started once")
            here.forget()
        for _ in range(pace.runs(RUNS)):
            for here in all_places:
                async with here.running(SMALL) as running:
                    took.add(here.role, running.start_ms)
                    spent.add(here.role, running.cpu_seconds)
                here.forget()
    target = 300 if is_machine_of_the_table() else None
    published = Figure(ON_TABLE, "ms", target, tolerance=NO_SLACK)
    note = "" if target else "another machine: the target of 300 ms does not count"
    return [
        START.row(took.all(), "the API server is followed after that", took.of("spike")),
        published.row(took.all(), note),
        CPU.row(spent.all()),
    ]
