"""The parts of a page that are made from the code, between comments that readers do not see."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

#: `what` says who makes it and of what: `keys agent.log`.
_REGION = re.compile(
    r"(?P<begin><!-- made: (?P<what>[^>]+?) -->\n).*?(?P<end>^<!-- end -->)", re.DOTALL | re.MULTILINE
)


def rewritten(page: str, make: Callable[[str], str]) -> str:
    """The page with every part made anew; `make` gets what its comment says."""
    return _REGION.sub(lambda it: f"{it['begin']}\n{make(it['what']).strip()}\n\n{it['end']}", page)


def regions(page: str) -> Iterator[str]:
    """What the page says is made."""
    return (it["what"] for it in _REGION.finditer(page))
