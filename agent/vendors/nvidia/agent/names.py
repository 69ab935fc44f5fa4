"""The names of NVIDIA's resources."""

from __future__ import annotations

import re

from agent.vendor_api.agent import SettingsError
from agent.vendor_api.text import shorten

#: The beginning of every name that NVIDIA's plugin advertises.
DOMAIN = "nvidia.com/"
#: The resource of whole GPUs, unless a pattern names another one.
GPU = f"{DOMAIN}gpu"
#: Bytes of a full name, in NVIDIA's plugin (api/config/v1/consts.go).
_MAX_BYTES = 63

_LABEL = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_SUBDOMAIN = re.compile(rf"{_LABEL}(\.{_LABEL})*")
# The sentence of k8s.io/apimachinery, as NVIDIA's program prints it.
_SUBDOMAIN_RULE = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', "
    "and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is "
    rf"'{_LABEL}(\.{_LABEL})*')"
)


def full_name(name: str, *path: str) -> str:
    """The resource's name with its domain, as NVIDIA's plugin completes it (api/config/v1/resources.go).

    Raises:
        SettingsError: At this path, in NVIDIA's words.
    """
    full = name if name.startswith(DOMAIN) else f"{DOMAIN}{name}"
    if len(full.encode(errors="surrogatepass")) > _MAX_BYTES:
        why = f"fully-qualified resource name must be {_MAX_BYTES} characters or less: {shorten(full, 200)}"
        raise SettingsError(why, path)
    if not _SUBDOMAIN.fullmatch(full.removeprefix(DOMAIN)):
        why = f"incorrect format for resource name '{shorten(full)}': [{_SUBDOMAIN_RULE}]"
        raise SettingsError(why, path)
    return full
