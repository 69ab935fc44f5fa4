"""Command-line flags and environment variables of another program, which a vendor's plugin replaces."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class FlagKind(StrEnum):
    """How the value of a flag is written."""

    TEXT = "a text"
    BOOL = "true or false"
    TEXTS = "a list with commas"
    NUMBERS = "a list of whole numbers with commas"
    DURATION = "a duration such as 60s, or infinite"


#: The value of a flag, by its kind: TEXT and DURATION a text, BOOL a bool, TEXTS and NUMBERS a tuple.
FlagValue = str | bool | tuple[str, ...] | tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Flag:
    """A flag of the other program, with its environment variables and the key that the flag sets.

    Some flags have a variable alone, some have no key in that program's own file.
    """

    kind: FlagKind
    #: The flag and its aliases, without dashes.
    names: tuple[str, ...]
    #: The environment variables; the first one that is set counts.
    variables: tuple[str, ...]
    #: The key in that program's file, with dots: `--help` names it.
    tree: str = ""
    #: The key of the agent's configuration, with dots: `vendors.acme.settings.KEY` or `vendors.acme.enabled`
    #: of the vendor itself, `agent.KEY` or `report.KEY`. Empty: nothing depends on the flag.
    sets: str = ""
    #: The value of that key, as the configuration has it, from the value of the flag; None sets nothing.
    #: Raises ValueError with what would fit. None in place of the function: the value of the flag is taken.
    value: Callable[[FlagValue], Any] | None = field(default=None, repr=False)

    @property
    def name(self) -> str:
        """The name by which the agent knows the flag."""
        return self.names[0] if self.names else self.variables[0]


@dataclass(frozen=True, slots=True)
class ConfigFlag:
    """Other names of a flag of the agent that chooses the configuration, such as `config`."""

    #: The agent's flag: config, default-config or fallback-strategies.
    flag: str
    names: tuple[str, ...] = ()
    #: Environment variables, read after the agent's own; an empty one counts as not set.
    variables: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class FlagGroup:
    """The flags of the other program, as `--help` lists them."""

    title: str
    description: str
    flags: tuple[Flag, ...]
    config_flags: tuple[ConfigFlag, ...] = ()


_TRUE = ("1", "t", "T", "TRUE", "true", "True")
_FALSE = ("0", "f", "F", "FALSE", "false", "False", "")
# A number in Go is bounded to 64 bits, and so is a number of the agent's own file.
_NUMBER = re.compile(r" *[-+]?(?:0[xX][0-9a-fA-F]{1,15}|0|[1-9][0-9]{0,17}) *")
_DURATION = re.compile(r"infinite|[-+]?(?:0|(?:(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:ns|us|µs|μs|ms|s|m|h))+)")


def flag_value(kind: FlagKind, text: str) -> FlagValue | None:
    """The value that a command line or a variable holds, as programs in Go read it; None where it is empty.

    An empty text counts as text and as false.

    Raises:
        ValueError: The text is no value of this kind; the message says what was expected.
    """
    match kind:
        case FlagKind.TEXT:
            return text
        case FlagKind.BOOL if text in _TRUE or text in _FALSE:
            return text in _TRUE
        case _ if not text:
            return None
        case FlagKind.TEXTS:
            return tuple(part.strip() for part in text.split(","))
        case FlagKind.NUMBERS if all(map(_NUMBER.fullmatch, text.split(","))):
            return tuple(int(part, 0) for part in text.split(","))
        case FlagKind.DURATION if is_duration(text):
            return text
    raise ValueError(f"expected {kind}")


def is_duration(text: str) -> bool:
    """Whether Go's time.ParseDuration takes the text, or the text is `infinite`."""
    return bool(_DURATION.fullmatch(text))
