"""What MetaX calls its resources, labels and annotations."""

from __future__ import annotations

DOMAIN = "metax-tech.com/"
#: A whole card or a virtual function of one; a slice.
GPU, SGPU = f"{DOMAIN}gpu", f"{DOMAIN}sgpu"
