"""The old name of `agent.vendor_api.backend`, for plugins of the last release."""

from agent.vendor_api.backend import *  # noqa: F403
