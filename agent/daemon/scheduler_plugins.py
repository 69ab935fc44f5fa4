"""The schedulers that are heard on this node."""

from __future__ import annotations

from agent.scheduler_api import Reserved, Scheduler
from agent.schedulers.hami.plugin import SCHEDULER as HAMI
from agent.schedulers.koordinator.plugin import SCHEDULER as KOORDINATOR


def registered() -> tuple[Scheduler, ...]:
    """In the order in which they are heard."""
    return (KOORDINATOR, HAMI)


def reserved() -> tuple[Reserved, ...]:
    """The names of resources that belong to a scheduler."""
    return tuple(name for it in registered() for name in it.reserved)
