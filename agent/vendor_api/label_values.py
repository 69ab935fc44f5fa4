"""Makes values of Kubernetes labels out of free text."""

from __future__ import annotations

import re

_STRANGE = re.compile(r"[^-A-Za-z0-9_. ]")
#: Characters of a label's value, and of its key after the domain.
LABEL_LIMIT = 63


def label_value(text: str, limit: int = LABEL_LIMIT) -> str:
    """Free text as a valid value of a label, made as GPU feature discovery makes it.

    Source: k8s-device-plugin internal/lm/resource.go, `sanitise`: characters that Kubernetes refuses are
    dropped, blanks become '-'. Here signs at the ends and characters beyond `limit` are cut, too.
    """
    value = "-".join(_STRANGE.sub("", text).split())
    return value.lstrip("-_.")[:limit].rstrip("-_.")
