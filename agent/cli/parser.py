"""The parser of a verb. An error shows the usage of the verb and a known word that is nearly the same."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias


class Parser(argparse.ArgumentParser):
    """Refuses unknown arguments itself: argparse leaves them to the parser above, which shows a usage without
    the verb.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.suggest_on_error = False  # Python 3.14 suggests values only, and no options

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: Any = None
    ) -> tuple[Any, list[str]]:
        found, unknown = super().parse_known_args(args, namespace)
        if unknown:
            options = self._options()
            named = (f"{it}{_near(it, options)}" if it.startswith("-") else it for it in unknown)
            self.error(f"unrecognized arguments: {' '.join(named)}; `{self.prog} --help` lists what there is")
        return found, unknown

    def _options(self) -> list[str]:
        shown = (it for it in self._actions if it.help != argparse.SUPPRESS)
        return [option for it in shown for option in it.option_strings]

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        try:
            super()._check_value(action, value)
        except argparse.ArgumentError as error:
            near = _near(str(value), map(str, action.choices or ()))
            raise argparse.ArgumentError(action, f"{error.message}{near}") from None


#: The object to which a verb adds its parser. argparse has no public name for it.
Verbs: TypeAlias = "argparse._SubParsersAction[Parser]"


def _near(word: str, known: Iterable[str]) -> str:
    import difflib

    bare = {it.lstrip("-"): it for it in known}
    close = difflib.get_close_matches(word.partition("=")[0].lstrip("-")[:100], bare, n=1)
    return f" (did you mean {bare[close[0]]}?)" if close else ""
