"""The hooks of one plugin, called through pluggy."""

from __future__ import annotations

import pluggy

from agent.daemon.plugin_discovery import BrokenPlugin, FoundPlugin
from agent.daemon.plugin_functions import PluginFailed, contained_function
from agent.vendor_api.text import error_text


class PluginHooks:
    """Imports a plugin, and calls the hooks that it implements."""

    def __init__(self, plugin: FoundPlugin, project: str, specs: type) -> None:
        """`project` is pluggy's name of the hooks' markers; `specs` has the specifications.

        Raises:
            Exception: The import failed, or a hook does not fit its specification. The text can be shown.
        """
        # A manager for each plugin: what one plugin does wrong is nothing to the next.
        self._manager = pluggy.PluginManager(project)
        self._manager.add_hookspecs(specs)
        module = contained_function(plugin.load)()
        contained_function(self._manager.register)(module, name=plugin.name)
        self._manager.check_pending()
        self._implemented = {it.name for it in self._manager.get_hookcallers(module) or ()}

    def need(self, hook: str, marker: str) -> None:
        """Refuse a plugin that lacks the hook. `marker`: the decorator, by its full name.

        Raises:
            BrokenPlugin: The plugin lacks the hook.
        """
        if hook not in self._implemented:
            raise BrokenPlugin(f"implements no hook; decorate {hook} with {marker}")

    def ask(self, hook: str, **arguments: object) -> object:
        """The answer of the hook; None where the plugin does not implement the hook."""
        return contained_function(getattr(self._manager.hook, hook))(**arguments)


def failure(exc: Exception) -> str:
    """Why a plugin is left out after this error."""
    return str(exc) if isinstance(exc, BrokenPlugin | PluginFailed) else error_text(exc)
