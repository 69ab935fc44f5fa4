"""The simulated scheduler's word: which container gets which cards, and how their slices are made. Pure.

Once a pod has them, it says so in the other annotation, which that scheduler would read.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from agent.scheduler_api import Candidate, Cards, Claim, Dialect, ServedClaim

#: Annotation of a pod: JSON, container to {"devices": [uuid, ...], "parameters": {name: text}}.
ANNOTATION = "xpu-agent.io/simulated-claim"
#: Annotation of a pod that has its devices: JSON, container to resource to [uuid, ...].
GIVEN = "xpu-agent.io/simulated-given"


def claims(pod: Candidate, resource: str, devices: Cards) -> Sequence[Claim]:
    """The claims of the pod's containers; raises ValueError where the annotation makes no sense."""
    text = pod.annotations.get(ANNOTATION)
    if text is None:
        return ()
    try:
        said: Any = json.loads(text)
    except RecursionError as exc:
        raise ValueError(f"{ANNOTATION} is too deep to be read") from exc
    if not isinstance(said, dict):
        raise ValueError(f"{ANNOTATION} is no JSON object: {text[:40]!r}")
    return [_claim(pod, name, its, devices) for name, its in said.items()]


def _claim(pod: Candidate, container: str, said: Any, devices: Cards) -> Claim:
    if not isinstance(said, dict):
        raise ValueError(f"{ANNOTATION}: {container} has no JSON object")
    cards, parameters = said.get("devices", []), said.get("parameters", {})
    if not (isinstance(cards, list) and isinstance(parameters, dict)):
        raise ValueError(f"{ANNOTATION}: {container} has no list of devices or no object of parameters")
    strange = [it for it in cards if it not in tuple(devices)]
    if strange:
        raise ValueError(f"{ANNOTATION}: {container} names {strange[0]!r}, which is not here")
    texts = {str(key): str(value) for key, value in parameters.items()}
    return Claim(pod.uid, pod.namespace, pod.name, container, tuple(cards), texts)


def receipt(pod: Candidate, given: Sequence[ServedClaim]) -> Mapping[str, str]:
    """What each container of the pod has; it grows with each."""
    found: dict[str, dict[str, Sequence[str]]] = {}
    for it in given:
        found.setdefault(it.container, {})[it.resource] = it.devices
    return {GIVEN: json.dumps(found, sort_keys=True)}


DIALECT = Dialect("simulated", claims)
WITH_RECEIPT = Dialect("simulated", claims, receipt=receipt, receipt_keys=(GIVEN,))
