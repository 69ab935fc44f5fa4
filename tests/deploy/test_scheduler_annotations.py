"""Schedulers' annotations: the chart keeps those that the agent reads, and for whom."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from importlib import import_module
from typing import Any

import pytest
import yaml
from support.read_annotations import READS

from agent.daemon.scheduler_plugins import registered
from agent.scheduler_api import Candidate, Cards, Dialect, PodContainer
from agent.schedulers.gcushare.names import ResourceNames
from agent.schedulers.gcushare.plugin import DIALECTS
from agent.schedulers.hami.metax_claims import metax_limits, metax_sgpu
from agent.schedulers.hami.pod_annotations import HAMI, METAX, METAX_ALLOCATED
from agent.schedulers.koordinator.allocated_annotation import ALLOCATED
from agent.schedulers.koordinator.dialect import KOORDINATOR
from agent.vendors.enflame.agent.names import ENFLAME
from agent.vendors.simulated.agent import claims as simulated

from .chart import CHART, ROOT, Chart, Refused

ON = {"schedulerAnnotations": {"enabled": True}}
KEPT: Sequence[str] = yaml.safe_load((CHART / "files/scheduler-annotations.yaml").read_text())["keys"]
#: What users write themselves, and is read: what they ask for, which grants nothing.
USERS = ("metax-tech.com/sgpu-qos-policy", "metax-tech.com/sgpu-app-class")
#: Read in no dialect in tree.
UNUSED = ("koordinator.sh/",)

CARD = "CARD-0"
NAMES = ResourceNames.of(ENFLAME.terms)
SGPU = metax_sgpu({"compared": "koordinator"}, registered())
KOORDINATORS = {"koordinator.sh/gpu-core": 50, "koordinator.sh/gpu-memory-ratio": 50}
GRANT = {"minor": 0, "id": CARD, "resources": KOORDINATORS}
DRS = json.dumps({"main": {"profileName": "3g.20gb", "profileID": "1", "request": 3}})
DONE = {f"enflame.com/gcu-{key}": value for key, value in {"assigned": "false", "assigned-time": "1"}.items()}


class Recorded(Mapping[str, str]):
    """Annotations, and which of them were asked for, there or not."""

    def __init__(self, its: Mapping[str, str]) -> None:
        self._its, self.asked = dict(its), set[str]()

    def __getitem__(self, key: str) -> str:
        self.asked.add(key)
        return self._its[key]

    def __contains__(self, key: object) -> bool:
        self.asked.add(str(key))
        return key in self._its

    def __iter__(self) -> Iterator[str]:
        return iter(self._its)

    def __len__(self) -> int:
        return len(self._its)


@dataclass(frozen=True)
class Example:
    """A pod on which a dialect says something, as its scheduler writes it."""

    dialect: Dialect
    resource: str
    annotations: Mapping[str, str] = field(default_factory=dict)
    limits: Mapping[str, int] = field(default_factory=dict)

    def read(self) -> set[str]:
        """The keys of the annotations that are read until there is a claim."""
        annotations = Recorded(self.annotations)
        its = (PodContainer("main", {self.resource: 1, **self.limits}),)
        pod = Candidate("u", "ns", "pod", its, annotations, scheduler="a-scheduler")
        cards: Cards = {CARD: 0}
        assert self.dialect.claims(pod, self.resource, cards), f"{self.dialect.name}: no claim"
        return annotations.asked


#: Where each dialect of the tree is made, by its name there, and pods that have it read all that it reads.
EXAMPLES: dict[tuple[str, str], Sequence[Example]] = {
    ("agent.schedulers.koordinator.dialect", "koordinator"): [
        Example(KOORDINATOR, "a.com/x", {ALLOCATED: json.dumps({"gpu": [GRANT]})}, KOORDINATORS)
    ],
    ("agent.schedulers.hami.pod_annotations", "metax"): [
        Example(METAX, "a.com/x", {METAX_ALLOCATED: json.dumps([[{"uuid": CARD}]])})
    ],
    ("agent.schedulers.hami.pod_annotations", "hami"): [
        Example(HAMI, "a.com/x", {f"hami.io/a-devices-{end}": f"{CARD},A,1,1:;"})
        for end in ("to-allocate", "allocated")
    ],
    ("agent.schedulers.hami.metax_claims", "metax-sgpu"): [
        Example(SGPU, "a.com/x", {METAX_ALLOCATED: json.dumps([[{"uuid": CARD}]])}),
        Example(SGPU, "a.com/x", {"hami.io/a-devices-allocated": f"{CARD},A,1,1:;"}),
    ],
    ("agent.schedulers.hami.metax_claims", "metax-limits"): [Example(metax_limits({}, ()), "a.com/x")],
    ("agent.schedulers.gcushare.dialect_v1", "gcushare-v1"): [
        Example(
            DIALECTS["gcushare-v1"](NAMES),
            ENFLAME.memory,
            {
                "enflame.com/gcu-device-id": "0",
                "enflame.com/gcu-device-memory-request": "1",
                "enflame.com/gcu-device-assigned": "false",
                "enflame.com/gcu-device-assign-time": "1",
            },
        )
    ],
    ("agent.schedulers.gcushare.dialect_v4", "gcushare-v4"): [
        Example(
            DIALECTS["gcushare-v4"](NAMES),
            ENFLAME.drs,
            {
                "enflame.com/gcu-assigned-minor": "0",
                "enflame.com/gcu-request-size": "3",
                "assigned-containers": DRS,
                **DONE,
            },
            {ENFLAME.drs: 3},
        )
    ],
    ("agent.schedulers.gcushare.dialect_hami", "hami"): [
        Example(
            DIALECTS["hami"](NAMES),
            ENFLAME.shared,
            {f"enflame.com/gcu-{key}": "0", "enflame.com/gcu-request-size": "1", **DONE},
        )
        for key in ("assigned-minor", "assigned-id")
    ],
    ("agent.vendors.simulated.agent.claims", "simulated"): [
        Example(it, "a.com/x", {simulated.ANNOTATION: json.dumps({"main": {"devices": [CARD]}})})
        for it in (simulated.DIALECT, simulated.WITH_RECEIPT)
    ],
}


def made() -> set[tuple[str, str]]:
    """Module and name of each dialect that the code makes."""
    return {
        (".".join(path.relative_to(ROOT).with_suffix("").parts), str(ast.literal_eval(node.args[0])))
        for path in (ROOT / "agent").rglob("*.py")
        if "Dialect(" in (text := path.read_text())
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Dialect"
    }


def is_kept(key: str) -> bool:
    return any(fnmatchcase(key, it) for it in KEPT)


ALL = [it for its in EXAMPLES.values() for it in its]


def test_every_dialect_of_the_code_has_a_pod_here_by_which_it_is_seen_what_it_reads() -> None:
    assert made() == set(EXAMPLES)
    for (module, name), its in EXAMPLES.items():
        assert {it.dialect.name for it in its} == {name}
        assert import_module(module)


@pytest.mark.parametrize("example", ALL, ids=lambda it: it.dialect.name)
def test_what_a_dialect_reads_on_pods_is_kept_for_schedulers_or_is_a_users_own_wish(example: Example) -> None:
    read = example.read() | set(example.dialect.receipt_keys)

    assert {key for key in read if not is_kept(key)} <= set(USERS)
    # Each thing that the scheduler said was looked at: none stands there for nothing.
    assert set(example.annotations) <= read


def test_nothing_is_kept_for_schedulers_that_no_dialect_reads_or_answers() -> None:
    read = {key for it in ALL for key in (*it.read(), *it.dialect.receipt_keys)}

    assert [key for key in KEPT if not any(fnmatchcase(it, key) for it in read)] == []
    assert not any(is_kept(key) for key in USERS)


def test_no_domain_is_read_of_which_nothing_is_kept() -> None:
    """A prefix in `Scheduler.reads` or `Dialect.reads` has pods' annotations kept for a scheduler's word."""
    prefixes = {*READS.prefixes, *(prefix for it in ALL for prefix in it.dialect.reads)}

    assert {it for it in prefixes if not any(key.startswith(it) for key in KEPT)} == set(UNUSED)


def test_each_is_named_where_the_threat_is() -> None:
    page = (ROOT / "docs/security.md").read_text()

    assert [key for key in (*KEPT, *USERS) if f"`{key}`" not in page and "simulated" not in key] == []


def policy(chart: Chart, values: Mapping[str, Any]) -> dict[str, Any]:
    spec = chart.render(values).one("ValidatingAdmissionPolicy", "xpu-agent-schedulers.xpu")["spec"]
    assert isinstance(spec, dict)
    return spec


def test_nobody_is_kept_from_them_unless_that_is_asked_for(chart: Chart) -> None:
    names = {it["metadata"]["name"] for it in chart.render().all("ValidatingAdmissionPolicy")}

    assert names == {"xpu-agent.xpu"}


def test_one_value_keeps_them_for_the_schedulers_whatever_else_the_agent_may(chart: Chart) -> None:
    for more in ({}, {"api": {"enabled": False}}, {"admissionPolicy": {"enabled": False}}):
        rendered = chart.render({**ON, **more})

        [binding] = [
            it["spec"]
            for it in rendered.all("ValidatingAdmissionPolicyBinding")
            if it["metadata"]["name"] == "xpu-agent-schedulers.xpu"
        ]
        assert binding == {"policyName": "xpu-agent-schedulers.xpu", "validationActions": ["Deny"]}


def test_an_operator_adds_writers_and_takes_away_those_of_the_chart(chart: Chart) -> None:
    writers = {
        "mine": {"serviceAccounts": ["ns/mine"], "users": ["jane@example.com"], "groups": ["ops"]},
        "hami": None,
    }

    spec = policy(chart, {"schedulerAnnotations": {"enabled": True, "writers": writers}})

    text = json.dumps(spec["matchConditions"])
    for name in ("serviceaccount:ns:mine", "jane@example.com", "ops", "koordinator-system:koord-scheduler"):
        assert name in text
    assert "hami" not in text


def test_keys_of_a_brand_are_kept_beside_those_in_tree(chart: Chart) -> None:
    keys = ["cardcloud.com/card-assigned", "acme.com/*-cards"]

    text = json.dumps(policy(chart, {"schedulerAnnotations": {"enabled": True, "keys": keys}})["variables"])

    assert "cardcloud.com/card-assigned" in text
    assert ALLOCATED in text
    assert 'k.startsWith(\\"acme.com/\\") && k.endsWith(\\"-cards\\")' in text


NOBODY = {"enabled": True, "writers": dict.fromkeys(("koordinator", "hami", "gcushare"))}


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (NOBODY, ("schedulerAnnotations.writers names no account", "name the accounts of your schedulers")),
        ({"writers": {"x": {}}}, ("/schedulerAnnotations/writers/x",)),
        ({"writers": {"x": {"serviceAccounts": ["koord-scheduler"]}}}, ("/serviceAccounts/0",)),
        ({"writers": {"x": {"users": ['x"] || true || "" in ["']}}}, ("/users/0",)),
        ({"writers": {"x": {"groups": ["x\\"]}}}, ("/groups/0",)),
        ({"keys": ["*"]}, ("/keys/0",)),
        ({"keys": ["acme.com/*-a-*"]}, ("/keys/0",)),
        ({"keys": ["acme.com/"]}, ("/keys/0",)),
        ({"keys": ["a.kubernetes.io/*"]}, ("/keys/0",)),
        ({"keys": ['x"] || true || k in ["']}, ("/keys/0",)),
    ],
)
def test_values_that_would_keep_nobody_or_everybody_out_are_refused(
    chart: Chart, values: dict[str, Any], words: tuple[str, ...]
) -> None:
    said = chart.refusal({"schedulerAnnotations": values})

    assert said
    assert [word for word in words if word not in said] == []


def test_a_server_without_such_policies_is_said_to_be_one(chart: Chart) -> None:
    with pytest.raises(Refused) as refused:
        chart.render(ON, "1.29.3")

    assert "schedulerAnnotations.enabled takes a ValidatingAdmissionPolicy" in str(refused.value)
    assert "from 1.30 on, and this is v1.29.3: set it to false" in str(refused.value)
    assert chart.render(ON, "1.30.0").all("ValidatingAdmissionPolicyBinding")


def test_after_an_install_helm_says_who_may_write_them(chart: Chart) -> None:
    notes = chart.notes(ON)

    assert "system:serviceaccount:koordinator-system:koord-scheduler" in notes
    assert "schedulerAnnotations" in notes
    assert "schedulerAnnotations" not in chart.notes()
