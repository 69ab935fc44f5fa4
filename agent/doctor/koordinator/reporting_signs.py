"""How pods show that a koordlet here reports accelerators."""

from __future__ import annotations

from agent.cluster.api import Object
from agent.doctor.koordinator.programs import LABEL
from agent.doctor.surroundings import Surroundings
from agent.scheduler_api.document_parts import part_of
from agent.schedulers.koordinator import koordlet_signs as koordlet


def sign(around: Surroundings) -> str:
    """In the words of the agent, which believes no other; empty where none does."""
    mine = (it for it in around.cluster.pods.value or () if _is_labelled(it))
    return next((words for it in mine if (words := koordlet.reporting(it))), "")


def _is_labelled(pod: Object) -> bool:
    return part_of(part_of(pod, "metadata"), "labels").get(LABEL) == koordlet.NAME
