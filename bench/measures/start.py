"""From the spawn of the process until the kubelet has accepted it and holds its first list."""

from __future__ import annotations

from bench.place import place
from bench.rows import Figure, Row
from bench.subjects import Subject

RUNS = 9
START = Figure(
    "start to registered, 8 devices",
    "ms",
    400,
    "NVIDIA plugin 18-49 (Go); a bare Python spike 224-390",
)


async def measure(subject: Subject) -> list[Row]:
    """Start on the stub library until the kubelet has the first list."""
    took = []
    async with place(subject) as here:
        for _ in range(RUNS):
            async with here.running() as process:
                took.append(process.start_ms)
                await here.told()
            here.forget()
    return [START.row(took, "" if subject.is_rival else "with the cards told to Koordinator")]
