"""Registers Acme's scheduler, which chooses cards of any vendor and waits to read that a pod has them."""

import json
from collections.abc import Mapping, Sequence

from agent.scheduler_api import Candidate, Cards, Claim, Dialect, Part, Scheduler, ServedClaim
from agent.scheduler_api.hooks import hookimpl

from .checks import CHECKS

#: Annotations of a pod. JSON: container to {"card": uuid, "percent": how much of it}; and our answer.
CHOSEN, GIVEN = "sched.acme.com/cards", "sched.acme.com/given"
#: The annotation of the Node that the scheduler sets before it binds a pod.
LOCK = "sched.acme.com/lock"


def claims(pod: Candidate, resource: str, cards: Cards) -> Sequence[Claim]:
    """The claims of the containers that ask for the resource.

    Raises:
        ValueError: The annotation is not what the scheduler writes.
    """
    asking = [it.name for it in pod.containers if it.limits.get(resource)]
    if CHOSEN not in pod.annotations or not asking:
        return []
    chosen = _chosen(pod.annotations[CHOSEN])
    return [_claim(pod, name, chosen[name], cards) for name in asking if name in chosen]


def _chosen(text: str) -> Mapping[str, object]:
    try:
        chosen = json.loads(text)
    except RecursionError as exc:
        raise ValueError(f"{CHOSEN} is too deep to be read") from exc
    if not isinstance(chosen, dict):
        raise ValueError(f"{CHOSEN} is no JSON object")
    return chosen


def _claim(pod: Candidate, container: str, choice: object, cards: Cards) -> Claim:
    card, percent = (choice.get("card"), choice.get("percent")) if isinstance(choice, dict) else (None, None)
    if not isinstance(card, str) or card not in cards:
        raise ValueError(f"{CHOSEN} names a card for container {container} that is not here")
    if type(percent) is not int or not 0 < percent <= 100:
        raise ValueError(f"{CHOSEN} has no percentage from 1 to 100 for container {container}")
    return Claim(pod.uid, pod.namespace, pod.name, container, (card,), {"percent": str(percent)})


def measure(parameters: Mapping[str, str], memory: int) -> Part | None:
    """The same part of the card's cores and of its memory; parameters may come from a file."""
    percent = parameters.get("percent", "")
    return Part(int(percent) / 100, int(percent) / 100) if percent.isdecimal() and len(percent) < 4 else None


def receipt(pod: Candidate, given: Sequence[ServedClaim]) -> Mapping[str, str]:
    """Which containers have their cards."""
    return {GIVEN: ",".join(it.container for it in given)} if given else {}


@hookimpl
def register_scheduler() -> Scheduler:
    dialect = Dialect("acme", claims, measure=measure, receipt=receipt, receipt_keys=(GIVEN,))
    return Scheduler(
        "acme",
        program="acme-scheduler",
        writes=CHOSEN,
        reads=("sched.acme.com/",),
        dialects=(dialect,),
        locks=(LOCK,),
        checks=CHECKS,
    )
