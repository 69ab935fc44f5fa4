"""The old name of `agent.vendor_api.agent`, for plugins of the last release."""

from agent.vendor_api.agent import *  # noqa: F403
from agent.vendor_api.agent import SettingsWarning as Doubt  # noqa: F401
