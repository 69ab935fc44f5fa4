"""Enflame's settings: what fits, and what is said of what does not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.schedulers.gcushare.dialect_v4 import keys_of, v4
from agent.schedulers.gcushare.names import ResourceNames
from agent.schedulers.gcushare.plugin import DIALECTS
from agent.vendor_api.agent import SettingsError
from agent.vendors.enflame.agent.names import Brand
from agent.vendors.enflame.agent.options import DEFAULTS, SETTINGS, Options


def test_nothing_said_is_every_default() -> None:
    assert Options.read({}) == Options()
    assert DEFAULTS.keys() == SETTINGS.keys()
    assert (DEFAULTS["dialect"], DEFAULTS["memoryUnit"], DEFAULTS["sliceCount"]) == ("none", "1", 6)


def test_the_vendors_process_hears_of_what_it_needs_alone() -> None:
    assert Options(dialect="gcushare-v4", library="/usr/lib/liberml.so").for_backend() == {
        "library": "/usr/lib/liberml.so",
        "symbolPrefix": "",
        "efsmi": "",
        "sysfs": "/sys",
        "containerDriverRoot": "/driver-root",
    }


def test_the_resource_of_a_whole_card_names_all_others() -> None:
    brand = Options.read({"registerResource": "tencent.com/zixiao"}).brand

    assert (brand.whole, brand.memory) == ("tencent.com/zixiao", "tencent.com/zixiao-memory")


LABELS = st.from_regex(r"[a-z0-9]([-a-z0-9]{0,8}[a-z0-9])?|[a-z]{0,3}gcu[a-z]{0,3}|enflame", fullmatch=True)


@given(st.lists(LABELS, min_size=2, max_size=3).map(".".join), LABELS)
def test_whatever_cards_are_called_resources_have_that_domain_and_that_kind(domain: str, kind: str) -> None:
    brand = Options.read({"registerResource": f"{domain}/{kind}"}).brand

    assert (brand.whole, brand.memory) == (f"{domain}/{kind}", f"{domain}/{kind}-memory")
    assert (brand.shared, brand.drs) == (f"{domain}/shared-{kind}", f"{domain}/drs-{kind}")
    assert brand.count == f"{domain}/{kind}-count"


@given(st.lists(LABELS, min_size=2, max_size=3).map(".".join), LABELS)
def test_whatever_cards_are_called_a_dialect_reads_what_it_tells_and_writes(domain: str, kind: str) -> None:
    brand = Brand(domain, kind)
    names = ResourceNames.of(brand.terms)

    for made in DIALECTS.values():
        dialect = made(names)
        assert all(key.startswith(dialect.reads) for key in dialect.receipt_keys)
    assert keys_of(names).card.startswith(names.keys)
    assert names.keys == f"{domain}/" or "gcu" in domain


def test_annotations_have_the_kind_in_the_domain_too_as_gcushares_scheduler_writes_them() -> None:
    names = ResourceNames.of(Brand("gcucloud.com", "card").terms)

    assert keys_of(names).card == "cardcloud.com/card-assigned-minor"
    assert v4(names).reads[0] == "cardcloud.com/"


@pytest.mark.parametrize(
    ("settings", "path", "says"),
    [
        ({"dialekt": "hami"}, ("dialekt",), "unknown key; did you mean 'dialect'?"),
        ({"dialect": "v1"}, ("dialect",), 'none, gcushare-v1, gcushare-v4 or hami, found "v1"'),
        ({"memoryUnit": "0.5"}, ("memoryUnit",), "1, 0.1, 0.01, 0.001 or auto: GB of one unit of gcu-memory"),
        ({"memoryUnit": 0.5}, ("memoryUnit",), "or auto: GB of one unit of gcu-memory, found 0.5"),
        ({"memoryUnit": True}, ("memoryUnit",), "or auto: GB of one unit of gcu-memory, found true"),
        ({"sliceCount": 1}, ("sliceCount",), "a whole number from 2 to 128, found 1"),
        ({"registerResource": "gcu"}, ("registerResource",), "such as enflame.com/gcu"),
        ({"registerResource": "a.b/c d"}, ("registerResource",), "such as enflame.com/gcu"),
        ({"registerResource": "kubernetes.io/gcu"}, ("registerResource",), "the kubelet's own"),
        ({"registerResource": f"a.b/{'c' * 60}"}, ("registerResource",), "63 are allowed"),
        ({"registerResource": "enflame.com/gcu-memory"}, ("registerResource",), "write enflame.com/gcu"),
        ({"registerResource": "enflame.com/drs-gcu"}, ("registerResource",), "write enflame.com/gcu"),
        ({"registerResource": "a.b/shared-x"}, ("registerResource",), "write a.b/x"),
        ({"registerResource": "a.b/x-count"}, ("registerResource",), "write a.b/x"),
        ({"symbolPrefix": "Efml; rm"}, ("symbolPrefix",), "such as Erml"),
        ({"efsmi": "efsmi"}, ("efsmi",), "the absolute path of Enflame's tool efsmi"),
        ({"drsVariable": "file"}, ("drsVariable",), 'cdi or env, found "file"'),
        ({"deviceNodes": "yes"}, ("deviceNodes",), 'true or false, found "yes"'),
    ],
)
def test_what_does_not_fit_is_refused_with_what_would(
    settings: Mapping[str, Any], path: tuple[str, ...], says: str
) -> None:
    with pytest.raises(SettingsError) as refused:
        Options.read(settings)

    assert says in str(refused.value)
    assert refused.value.path == path


@pytest.mark.parametrize("number", [1, 0.1, 0.01, 0.001])
def test_a_unit_of_memory_is_the_same_in_quotes_and_without(number: float) -> None:
    assert Options.read({"memoryUnit": number}) == Options.read({"memoryUnit": str(number)})
