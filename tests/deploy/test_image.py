"""The image that a build left: it works as the chart runs it, and has nothing in it to build with."""

from __future__ import annotations

import json
import os
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from .chart import ROOT

#: What `make image` leaves, and what tests/realnode/build.sh does, on a base of its own.
ARCHIVES = [ROOT / "build" / it / "xpu-agent.tar" for it in ("image", "realnode-images")]
BUILT: list[Path | None] = [it for it in ARCHIVES if it.is_file()]
#: As a runtime makes it of the chart's securityContext: a read-only root, a /tmp, no rights.
CONTAINED = """
set -e
mount --bind "$1" "$1"
mount -t proc proc "$1/proc"
mount -t tmpfs tmpfs "$1/tmp"
mount --rbind /dev "$1/dev"
mount -o remount,bind,ro "$1"
root=$1; shift
exec chroot "$root" setpriv --bounding-set=-all --inh-caps=-all --no-new-privs "$@"
"""


def where(archive: Path | None) -> str:
    return str(archive.relative_to(ROOT)) if archive else "no image"


@pytest.fixture(scope="module", params=BUILT or [None], ids=where)
def archive(request: pytest.FixtureRequest) -> Path:
    """Each archive that there is. Without any a test is skipped, or fails where one was to be built."""
    if request.param is None:
        lacking = f"there is none of {', '.join(where(it) for it in ARCHIVES)} (make image)"
        assert not request.config.getoption("--require-realnode"), lacking
        pytest.skip(f"not run: {lacking}")
    assert isinstance(request.param, Path)
    return request.param


@pytest.fixture(scope="module")
def config(archive: Path) -> dict[str, list[str]]:
    """What the image says of how it is run."""
    with tarfile.open(archive) as image:
        [one] = json.load(image.extractfile("manifest.json"))  # type: ignore[arg-type]
        told = json.load(image.extractfile(one["Config"]))["config"]  # type: ignore[arg-type]
        assert isinstance(told, dict)
        return told


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory, archive: Path) -> Iterator[Path]:
    """The image's files, unpacked."""
    if os.geteuid() != 0:
        pytest.skip("not run: to enter the image takes root")
    path = tmp_path_factory.mktemp("image")
    with tarfile.open(archive) as image:
        [one] = json.load(image.extractfile("manifest.json"))  # type: ignore[arg-type]
        for name in one["Layers"]:
            unpack = subprocess.Popen(["tar", "-x", "-C", str(path)], stdin=subprocess.PIPE)
            assert unpack.stdin is not None
            layer = image.extractfile(name)
            assert layer is not None
            while chunk := layer.read(1 << 20):
                unpack.stdin.write(chunk)
            unpack.stdin.close()
            assert unpack.wait(60) == 0
    yield path
    subprocess.run(["rm", "-rf", str(path)], check=True)


def contained(root: Path, *command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["unshare", "--mount", "--pid", "--fork", "sh", "-c", CONTAINED, "sh", str(root), *command],
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.mark.timeout(180)
def test_the_demo_holds_in_the_image_without_rights_on_a_read_only_root(
    root: Path, config: dict[str, list[str]]
) -> None:
    told = contained(root, *config["Entrypoint"], "demo", "--fast")

    assert told.returncode == 0, told.stdout[-2000:] + told.stderr
    assert "Every step held" in told.stdout


@pytest.mark.timeout(180)
def test_pid_1_buries_orphans_and_is_not_the_agent(root: Path, config: dict[str, list[str]]) -> None:
    *init, agent = config["Entrypoint"]
    orphan = "pid=$(sh -c 'sleep 0.1 >/dev/null & echo $!'); while [ -d /proc/$pid ]; do sleep 0.02; done"

    told = contained(root, *init, "sh", "-c", f"{orphan}; cat /proc/1/comm")

    assert agent.endswith("/xpu-agent")
    assert "-s" in init, "with the host's PIDs tini is not PID 1"
    assert told.stdout == "tini\n", told.stderr


def test_there_is_nothing_in_it_to_build_or_install_with(root: Path) -> None:
    programs = {
        it.name
        for place in ("usr/bin", "usr/local/bin", "opt/xpu-agent/bin")
        for it in (root / place).glob("*")
    }

    assert not programs & {"gcc", "cc", "ld", "as", "make"}
    assert {it.name for it in (root / "opt/xpu-agent/bin").iterdir()} - {"python", "python3"} <= {
        "tini",
        "xpu-agent",
        *(f"python3.{minor}" for minor in range(11, 20)),
    }
    assert not list((root / "opt/xpu-agent/lib").glob("*/site-packages/pip"))


def test_every_module_is_compiled_for_nothing_can_be_written_later(root: Path) -> None:
    package = next((root / "opt/xpu-agent/lib").glob("*/site-packages/agent"))

    sources = {it.relative_to(package).with_suffix("") for it in package.rglob("*.py")}
    compiled = {
        it.relative_to(package).parent.parent / it.name.partition(".")[0] for it in package.rglob("*.pyc")
    }
    assert sources == compiled


def test_only_what_the_lock_names_is_installed_beside_the_agent(root: Path) -> None:
    lock = (ROOT / "requirements/runtime.txt").read_text()
    locked = {line.partition("==")[0].lower().replace("-", "_") for line in lock.splitlines() if "==" in line}
    places = (root / "opt/xpu-agent/lib").glob("*/site-packages/*.dist-info")

    installed = {it.name.partition("-")[0].lower().replace("-", "_").replace(".", "_") for it in places}

    assert installed - {"xpu_agent"} <= {name.replace(".", "_") for name in locked}
