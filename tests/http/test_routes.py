"""What is prepared in threads before a view is made, and for which views."""

from __future__ import annotations

import sys
import threading
from types import ModuleType

import pytest

from agent.http import routes
from agent.http.routes import preparation

METRICS = "agent.http.metrics"
SERIES = "agent.http.usage.series"
DOCUMENT = "agent.http.usage.document_builder"


class Imports:
    """What is imported, in place of the import, and by which threads."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.threads: set[threading.Thread] = set()

    def add(self, name: str) -> ModuleType:
        self.names.append(name)
        self.threads.add(threading.current_thread())
        return sys


class Use:
    """The use of the cards, which is prepared so many times."""

    def __init__(self) -> None:
        self.prepared = 0

    async def prepare(self) -> None:
        self.prepared += 1


@pytest.fixture
def imports(monkeypatch: pytest.MonkeyPatch) -> Imports:
    """Nothing that a view needs has been imported."""
    for name in (METRICS, SERIES, DOCUMENT):
        monkeypatch.delitem(sys.modules, name, raising=False)
    made = Imports()
    monkeypatch.setattr(routes, "import_module", made.add)
    return made


@pytest.mark.parametrize(
    ("target", "modules", "is_prepared"),
    [
        ("/metrics", [METRICS, SERIES], True),
        ("/metrics?a=b", [METRICS, SERIES], True),
        ("/inspect", [], True),
        ("/inspect/usage?history=1", [DOCUMENT], True),
        ("/readyz", [], False),
        ("/inspect/metax", [], False),
        ("/nowhere", [], False),
    ],
)
async def test_threads_import_what_the_first_view_of_its_kind_needs(
    target: str, modules: list[str], is_prepared: bool, imports: Imports
) -> None:
    use = Use()
    work = preparation(target, use.prepare)
    if is_prepared:
        assert work is not None
        await work
    assert (imports.names, use.prepared) == (modules, is_prepared)
    assert threading.main_thread() not in imports.threads


async def test_what_only_use_needs_is_not_imported_where_use_is_not_sampled(imports: Imports) -> None:
    work = preparation("/metrics")
    assert work is not None
    await work
    assert imports.names == [METRICS]
    assert preparation("/inspect/usage") is None


async def test_nothing_is_imported_twice(imports: Imports, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (METRICS, SERIES):
        monkeypatch.setitem(sys.modules, name, sys)
    assert preparation("/metrics") is None
    work = preparation("/metrics", Use().prepare)
    assert work is not None
    await work
    assert imports.names == []
