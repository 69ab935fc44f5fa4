"""How schedulers hand over cards of Enflame: one dialect on a node, for one name means two things in two."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from agent.scheduler_api import Dialect
from agent.vendors.enflame.agent.names import Brand

from .dialect_hami import hami
from .dialect_v1 import v1
from .dialect_v4 import v4

#: By their names in the configuration.
DIALECTS: Mapping[str, Callable[[Brand], Dialect]] = {"gcushare-v1": v1, "gcushare-v4": v4, "hami": hami}

__all__ = ["DIALECTS", "hami", "v1", "v4"]
