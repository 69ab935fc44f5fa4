"""The parser of a verb: an error shows that verb's usage, and names the word that was nearly meant."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias


class Parser(argparse.ArgumentParser):
    """argparse has the first parser refuse what a verb's own one does not know, with the usage of none."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.suggest_on_error = False  # Python 3.14 has it for values alone, and not for options

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


#: Where a verb adds its parser; the only name argparse has for it.
Verbs: TypeAlias = "argparse._SubParsersAction[Parser]"


def _near(word: str, known: Iterable[str]) -> str:
    import difflib

    bare = {it.lstrip("-"): it for it in known}
    close = difflib.get_close_matches(word.partition("=")[0].lstrip("-")[:100], bare, n=1)
    return f" (did you mean {bare[close[0]]}?)" if close else ""
