"""Acme's scheduler against the contract, with pods as it wrote them."""

from pathlib import Path

from acme_scheduler.plugin import register_scheduler

from agent.testing.scheduler_scenes import check_scheduler, scenes

SCENES = Path(__file__).with_name("scenes.json")


def test_the_scheduler_keeps_the_contract() -> None:
    found = [*check_scheduler(register_scheduler(), scenes(SCENES))]

    assert found
    assert [it for it in found if not it.ok] == []
