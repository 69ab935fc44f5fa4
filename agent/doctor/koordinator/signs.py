"""How pods and Device show that a koordlet here reports accelerators."""

from __future__ import annotations

from agent.cluster import koordlet
from agent.cluster.api import Object
from agent.core.koordinator.device import told
from agent.core.parts import part_of
from agent.doctor.koordinator.programs import LABEL, running
from agent.doctor.surroundings import Surroundings


def sign(around: Surroundings) -> str:
    """In the words of the agent, which believes no other; empty where none does."""
    mine = (it for it in around.cluster.pods.value or () if _is_labelled(it))
    return next((words for it in mine if (words := koordlet.reporting(it))), "")


def is_emptied(around: Surroundings) -> bool:
    """Whether a koordlet that no pod shows keeps the Device without cards."""
    there = around.cluster.koordinator.device.value or ()
    here = running(around.cluster.pods.value or (), koordlet.NAME)
    return not here and any(koordlet.keeps(it) and told(it) is None for it in there)


def _is_labelled(pod: Object) -> bool:
    return part_of(part_of(pod, "metadata"), "labels").get(LABEL) == koordlet.NAME
