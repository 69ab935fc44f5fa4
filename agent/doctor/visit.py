"""`xpu-agent doctor`: asks, looks, prints; exit 1 where something stops work."""

from __future__ import annotations

import json
import sys

import anyio

from agent import logs
from agent.config import LogSettings
from agent.doctor.checks import examined
from agent.doctor.report import document, show, stops
from agent.doctor.survey import Question, survey


def visit(question: Question, *, as_json: bool) -> int:
    """Look at this node once."""
    logs.configure(LogSettings(level="error"))  # what goes wrong is found, and told once
    around = anyio.run(survey, question)
    findings = tuple(examined(around))
    if as_json:
        sys.stdout.write(json.dumps(document(around.node, around.version, findings), indent=2) + "\n")
    else:
        show(around.node, around.version, findings)
    return 1 if stops(findings) else 0
