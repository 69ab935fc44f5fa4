"""What is read of pods where no vendor adds a dialect to the registered schedulers."""

from __future__ import annotations

from agent.daemon.scheduler_plugins import registered
from agent.scheduler_api import reads

READS = reads(registered())
