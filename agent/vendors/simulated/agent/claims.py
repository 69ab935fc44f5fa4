"""The claims of the simulated scheduler: which container gets which cards, and how slices are made. Pure.

Once a pod has its cards, the receipt is written into the other annotation, for that scheduler to read.
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
    """The claims of the pod's containers. Raises ValueError where the annotation cannot be read."""
    text = pod.annotations.get(ANNOTATION)
    if text is None:
        return ()
    try:
        claimed: Any = json.loads(text)
    except RecursionError as exc:
        raise ValueError(f"{ANNOTATION} is too deep to be read") from exc
    if not isinstance(claimed, dict):
        raise ValueError(f"{ANNOTATION} is no JSON object: {text[:40]!r}")
    return [_claim(pod, name, container, devices) for name, container in claimed.items()]


def _claim(pod: Candidate, container: str, claimed: Any, devices: Cards) -> Claim:
    if not isinstance(claimed, dict):
        raise ValueError(f"{ANNOTATION}: {container} has no JSON object")
    cards, parameters = claimed.get("devices", []), claimed.get("parameters", {})
    if not (isinstance(cards, list) and isinstance(parameters, dict)):
        raise ValueError(f"{ANNOTATION}: {container} has no list of devices or no object of parameters")
    strange = [it for it in cards if it not in tuple(devices)]
    if strange:
        raise ValueError(f"{ANNOTATION}: {container} names {strange[0]!r}, which is not here")
    texts = {str(key): str(value) for key, value in parameters.items()}
    return Claim(pod.uid, pod.namespace, pod.name, container, tuple(cards), texts)


def receipt(pod: Candidate, given: Sequence[ServedClaim]) -> Mapping[str, str]:
    """The receipt of the pod: what each container has so far."""
    found: dict[str, dict[str, Sequence[str]]] = {}
    for claim in given:
        found.setdefault(claim.container, {})[claim.resource] = claim.devices
    return {GIVEN: json.dumps(found, sort_keys=True)}


DIALECT = Dialect("simulated", claims)
WITH_RECEIPT = Dialect("simulated", claims, receipt=receipt, receipt_keys=(GIVEN,))
