"""Claims and receipts of the simulated scheduler, which chooses cards and parameters of slices. Pure.

Once a pod has its cards, a receipt says so in another annotation, for that scheduler.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from agent.scheduler_api import Candidate, Cards, Claim, Dialect, ServedClaim

#: Annotation of a pod with claims: JSON, container to {"devices": [uuid, ...], "parameters": {name: text}}.
ANNOTATION = "xpu-agent.io/simulated-claim"
#: Annotation of a pod with its receipt: JSON, container to resource to [uuid, ...].
GIVEN = "xpu-agent.io/simulated-given"


def claims(pod: Candidate, resource: str, devices: Cards) -> Sequence[Claim]:
    """The claims of the pod's containers. Raises ValueError: the annotation is not valid."""
    text = pod.annotations.get(ANNOTATION)
    if text is None:
        return ()
    try:
        raw: Any = json.loads(text)
    except RecursionError as exc:
        raise ValueError(f"{ANNOTATION} is too deep to be read") from exc
    if not isinstance(raw, dict):
        raise ValueError(f"{ANNOTATION} is no JSON object: {text[:40]!r}")
    return [_claim(pod, container, claim, devices) for container, claim in raw.items()]


def _claim(pod: Candidate, container: str, raw: Any, devices: Cards) -> Claim:
    if not isinstance(raw, dict):
        raise ValueError(f"{ANNOTATION}: {container} has no JSON object")
    cards, parameters = raw.get("devices", []), raw.get("parameters", {})
    if not (isinstance(cards, list) and isinstance(parameters, dict)):
        raise ValueError(f"{ANNOTATION}: {container} has no list of devices or no object of parameters")
    unknown = [card for card in cards if card not in tuple(devices)]
    if unknown:
        raise ValueError(f"{ANNOTATION}: {container} names {unknown[0]!r}, which is not here")
    texts = {str(key): str(value) for key, value in parameters.items()}
    return Claim(pod.uid, pod.namespace, pod.name, container, tuple(cards), texts)


def receipt(pod: Candidate, served: Sequence[ServedClaim]) -> Mapping[str, str]:
    """The receipt with the cards of each container that has been served so far."""
    by_container: dict[str, dict[str, Sequence[str]]] = {}
    for claim in served:
        by_container.setdefault(claim.container, {})[claim.resource] = claim.devices
    return {GIVEN: json.dumps(by_container, sort_keys=True)}


DIALECT = Dialect("simulated", claims)
WITH_RECEIPT = Dialect("simulated", claims, receipt=receipt, receipt_keys=(GIVEN,))
