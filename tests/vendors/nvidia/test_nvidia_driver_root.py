"""A path below the driver's root is what the driver would find at it, and never leads out."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.driver_tree import lay

from agent.vendors.nvidia.shared.driver_root import MAX_LINKS, Root

TREE = {
    "usr/lib/libcuda.so.1": "libcuda.so.580.1",
    "usr/lib/libcuda.so.580.1": "",
    "lib": "usr/lib",
    "lib64": "/usr/lib",
    "usr/lib/absolute": "/usr/lib/libcuda.so.1",
    "usr/lib/up": "../../lib/libcuda.so.1",
    "usr/lib/out": "../../../../../../usr/lib/libcuda.so.580.1",
    "usr/lib/self": "self",
    "usr/lib/gone": "no-such-file",
    "usr/lib/odd": "o\ndd/libcuda.so.1",
    "usr/lib/o\ndd/libcuda.so.1": "",
    **{f"chain/{number}": str(number + 1) for number in range(MAX_LINKS + 1)},
    f"chain/{MAX_LINKS + 1}": "",
}
CUDA = "/usr/lib/libcuda.so.580.1"


@pytest.mark.parametrize(
    ("path", "real"),
    [
        ("/", "/"),
        ("/usr/lib", "/usr/lib"),
        ("/usr/./lib//libcuda.so.580.1", CUDA),
        ("/usr/lib/libcuda.so.1", CUDA),
        ("/lib/libcuda.so.1", CUDA),
        ("/lib64/libcuda.so.1", CUDA),
        ("/usr/lib/absolute", CUDA),
        ("/usr/lib/up", CUDA),
        ("/usr/lib/out", CUDA),
        ("/../../usr/lib/libcuda.so.1", CUDA),
        ("/usr/lib/self", None),
        ("/usr/lib/gone", None),
        ("/usr/lib/libcuda.so.1/below", None),
        ("/usr/lib/odd", None),
        ("/chain/1", f"/chain/{MAX_LINKS + 1}"),
        ("/chain/0", None),
        ("/usr/lib/" + 300 * "x", None),
    ],
)
def test_links_are_followed_inside_of_the_root(tmp_path: Path, path: str, real: str | None) -> None:
    lay(tmp_path, TREE)
    assert Root(str(tmp_path), "/host").real(path) == real


def test_the_folders_of_a_root_are_listed_in_order_as_far_as_text_can_name_what_they_hold(
    tmp_path: Path,
) -> None:
    lay(tmp_path, TREE)
    lay(tmp_path, {"lib/\udcff": ""})
    names = ["absolute", "gone", "libcuda.so.1", "libcuda.so.580.1", "odd", "out", "self", "up"]
    assert Root(f"{tmp_path}/", "/host").names("/lib64") == names
    assert Root(str(tmp_path), "/host").names(CUDA) == []
