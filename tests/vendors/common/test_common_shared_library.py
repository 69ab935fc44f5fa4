"""Which library of a vendor is there, and which is missing."""

from __future__ import annotations

from agent.vendors.common import shared_library


def test_a_library_of_the_loader_s_own_path_that_needs_another_one_is_there() -> None:
    needs_another = OSError("libdrm.so.2: cannot open shared object file: No such file or directory")

    assert not shared_library.is_missing("libmxsml.so", needs_another)
