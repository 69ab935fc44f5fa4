"""The old name of `agent.vendor_api.hooks`, for plugins of the last release."""

from agent.vendor_api.hooks import *  # noqa: F403
