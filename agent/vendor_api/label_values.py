"""Free text as what Kubernetes takes for the value of a label."""

from __future__ import annotations

import re

_STRANGE = re.compile(r"[^-A-Za-z0-9_. ]")
#: Characters of a label's value, and of its key after the domain.
LABEL_LIMIT = 63


def label_value(text: str, limit: int = LABEL_LIMIT) -> str:
    """Free text as the value of a label, the way GPU feature discovery does it, and never a wrong one.

    Source: k8s-device-plugin internal/lm/resource.go, `sanitise`: strange characters are dropped, blanks
    become '-'. Signs at the ends and what is too long are cut, too, which Kubernetes would refuse.
    """
    value = "-".join(_STRANGE.sub("", text).split())
    return value.lstrip("-_.")[:limit].rstrip("-_.")
