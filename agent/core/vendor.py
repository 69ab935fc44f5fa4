"""The old name of `agent.vendor_api.agent`.

Plugins that were written for version 0.1 import this module. Version 0.3 removes the module.
"""

from agent.vendor_api.agent import *  # noqa: F403
from agent.vendor_api.agent import SettingsWarning as Doubt  # noqa: F401
