"""Registers GCUShare: schedulers of parts of one Enflame card, and HAMi, which writes their annotations.

A node has one of these dialects, because the same resource name means different units in two of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from agent.scheduler_api import Dialect, MakeDialect, MakeFormat, MakeNodeFacts, Scheduler
from agent.scheduler_api.hooks import hookimpl
from agent.vendor_api.tool_formats import Format

from . import node_capacities
from .dialect_hami import hami
from .dialect_v1 import v1
from .dialect_v4 import v4
from .inspect_formats import drs_format, slices_format, units_format
from .names import ResourceNames
from .pod_records import RECORDS

#: The dialects by the names that vendors give; their terms are the fields of `ResourceNames`.
DIALECTS: Mapping[str, Callable[[ResourceNames], Dialect]] = {
    "gcushare-v1": v1,
    "gcushare-v4": v4,
    "hami": hami,
}
#: The formats of `inspect` by the names that vendors give, in the same terms.
FORMATS: Mapping[str, Callable[[ResourceNames], Format]] = {
    "gcushare-v1": units_format,
    "gcushare-v4": slices_format,
    "gcushare-v4-drs": drs_format,
}


#: The facts of the Node by the names of dialects, in the same terms; `none` removes those of the others.
FACTS = ("none", *DIALECTS)


def _in_terms(made: Callable[[ResourceNames], Dialect]) -> MakeDialect:
    def make(terms: Mapping[str, str], schedulers: Sequence[Scheduler]) -> Dialect:
        return made(ResourceNames.of(terms))

    return make


def _format_in_terms(made: Callable[[ResourceNames], Format]) -> MakeFormat:
    return lambda terms: made(ResourceNames.of(terms))


def _facts_in_terms(dialect: str) -> MakeNodeFacts:
    return lambda terms: node_capacities.facts(ResourceNames.of(terms), dialect)


SCHEDULER = Scheduler(
    "gcushare",
    # Dialects of another brand name their prefixes themselves.
    reads=("enflame.com/", RECORDS),
    vendor_dialects={name: _in_terms(made) for name, made in DIALECTS.items()},
    vendor_formats={name: _format_in_terms(made) for name, made in FORMATS.items()},
    vendor_node_facts={dialect: _facts_in_terms(dialect) for dialect in FACTS},
)


@hookimpl
def register_scheduler() -> Scheduler:
    return SCHEDULER
