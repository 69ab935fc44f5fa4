"""The names of MetaX's resources, and the domain of its labels and annotations."""

from __future__ import annotations

DOMAIN = "metax-tech.com/"
#: The resource of whole cards and of virtual functions, and the resource of slices.
GPU, SGPU = f"{DOMAIN}gpu", f"{DOMAIN}sgpu"
