"""The old name of `agent.vendor_api.backend`.

Plugins that were written for version 0.1 import this module. Version 0.3 removes the module.
"""

from agent.vendor_api.backend import *  # noqa: F403
