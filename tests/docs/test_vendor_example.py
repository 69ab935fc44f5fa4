"""The vendor of docs/vendor-guide.md, installed as a stranger's distribution and served on a node."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import anyio
import pytest
from support.installed_example import installed
from support.short_places import SHORT_PLACE

from agent.testing.kubelet import SimKubelet
from agent.testing.node_kubelet import Capacity, Container, Pod

EXAMPLE = Path(__file__).parents[2] / "docs/examples/vendor"
CARD = "acme.com/card"
#: One process has all of these, for the environment that they share takes seconds to make.
pytestmark = pytest.mark.xdist_group("vendor-example")


@dataclass(frozen=True)
class Installed:
    """An environment of its own that has the agent and the vendor, and the stub that plays the library."""

    root: Path

    @property
    def python(self) -> str:
        return str(self.root / "env/bin/python")

    @property
    def library(self) -> Path:
        return self.root / "libacme.so"

    @property
    def environ(self) -> dict[str, str]:
        return {"PATH": os.environ["PATH"], "XPU_ACME_CARDS": str(self.root / "cards")}

    def set(self, first: str, second: str) -> None:
        """What the two cards are: ok, down or mute."""
        fresh = self.root / "cards.new"
        fresh.write_text(f"ACME-0001 {first}\nACME-0002 {second}\n")
        fresh.replace(self.root / "cards")

    def agent(self, *args: str) -> str:
        """What a verb of the agent's prints; it has to succeed."""
        return self._ran("-m", "agent", *args)

    def config(self) -> Path:
        """The guide's, and where the library is."""
        text = (EXAMPLE / "xpu-agent.yaml").read_text()
        path = self.root / "config.yaml"
        path.write_text(text.replace("enabled: true", f"enabled: true\n    library: {self.library}"))
        return path

    def doctor(self, *args: str) -> list[dict[str, str]]:
        """The doctor's findings on a node without a kubelet."""
        names = ("state-dir", "kubelet-dir", "pod-resources-socket", "cdi-dir", "device-infos-dir")
        places = [word for name in names for word in (f"--{name}", str(self.root / name))]
        ran = subprocess.run(
            [
                *(self.python, "-m", "agent", "doctor", "--json", "--config", str(self.config())),
                *(*places, "--http", "off", *args),
            ],
            env=self.environ,
            capture_output=True,
            text=True,
            cwd=self.root,
        )
        findings: list[dict[str, str]] = json.loads(ran.stdout)["findings"]
        return findings

    def tests(self) -> str:
        """The vendor's own, as its author runs them."""
        return self._ran("-m", "pytest", "-q", "-p", "no:cacheprovider", str(EXAMPLE / "test_acme.py"))

    def _ran(self, *args: str) -> str:
        ran = subprocess.run(
            [self.python, *args], env=self.environ, capture_output=True, text=True, cwd=self.root
        )
        assert ran.returncode == 0, ran.stdout + ran.stderr
        return ran.stdout


@pytest.fixture(scope="module")
def vendor() -> Iterator[Installed]:
    with TemporaryDirectory(prefix="xpu-", dir=SHORT_PLACE) as name:
        root = Path(name)
        installed(root, EXAMPLE)
        stub = EXAMPLE / "stub/libacme.c"
        subprocess.run(
            ["cc", "-shared", "-fPIC", "-Wall", "-Werror", "-o", root / "libacme.so", stub], check=True
        )
        yield Installed(root)


@asynccontextmanager
async def serving(vendor: Installed) -> AsyncIterator[SimKubelet]:
    """`xpu-agent run` from that environment, beside a kubelet."""
    with TemporaryDirectory(prefix="xpu-", dir=SHORT_PLACE) as name:
        root = Path(name)
        async with SimKubelet(root / "k") as kubelet:
            agent = await asyncio.create_subprocess_exec(
                vendor.python,
                *("-m", "agent", "run", "--config", str(vendor.config()), "--state-dir", str(root / "state")),
                *("--kubelet-dir", str(kubelet.plugin_dir), "--http", "off", "--node-name", "n"),
                *("--pod-resources-socket", str(kubelet.pod_resources_socket)),
                *("--cdi-dir", str(root / "cdi"), "--device-infos-dir", str(root / "infos")),
                env=vendor.environ,
                cwd=root,
                stderr=asyncio.subprocess.DEVNULL,
            )
            try:
                with anyio.fail_after(30):
                    yield kubelet
            finally:
                agent.kill()
                await agent.wait()


def test_the_entry_point_makes_it_one_of_the_vendors(vendor: Installed) -> None:
    (row,) = (it for it in json.loads(vendor.agent("plugins", "--json")) if it["name"] == "acme")

    assert row == {
        "name": "acme",
        "origin": "acme-xpu",
        "version": "1.0.0",
        "resource": CARD,
        "reason": "",
    }


def test_it_conforms(vendor: Installed) -> None:
    vendor.set("ok", "ok")

    assert "acme: conforms" in vendor.agent("conformance", "acme", "--config", str(vendor.config()))


def test_its_own_tests_pass(vendor: Installed) -> None:
    assert "1 passed" in vendor.tests()


def test_its_settings_are_shown(vendor: Installed) -> None:
    rows = json.loads(vendor.agent("plugins", "--settings", "acme", "--json"))

    assert rows == [{"setting": "library", "fits": "the file of libacme.so", "default": None}]


def test_its_check_is_a_check_of_the_doctor(vendor: Installed) -> None:
    vendor.set("ok", "ok")
    version = vendor.root / "host/sys/module/acme/version"
    version.parent.mkdir(parents=True)
    version.write_text("1.9\n")

    findings = vendor.doctor("--host-root", str(vendor.root / "host"))

    (found,) = (it for it in findings if it["check"] == "acme-driver")
    assert (found["ailment"], found["what"]) == (
        "acme-driver-old",
        "/sys/module/acme/version has 1.9",
    )


def test_flag_variable_and_file_of_the_old_plugin_name_the_library(vendor: Installed) -> None:
    file, config = vendor.root / "acme.yaml", vendor.root / "old.yaml"
    file.write_text("library: /of/file.so\n")
    config.write_text(f"vendors: {{acme: {{configFile: {file}}}}}")

    assert "library: /of/flag.so" in vendor.agent("config", "check", "--acme-library", "/of/flag.so")
    shown = vendor.agent("config", "check", "--config", str(config))
    assert "library: /of/file.so" in shown
    assert f"# vendors.acme.settings.library: {file}:1: library" in shown


async def test_a_pod_gets_a_card_and_the_other_one_is_lost_when_its_link_goes_down(vendor: Installed) -> None:
    vendor.set("ok", "ok")
    async with serving(vendor) as kubelet:
        await kubelet.wait(lambda it: it.counts().get(CARD) == Capacity(2, 2))
        pod = Pod("p", (Container({CARD: 1}),))

        verdict = await kubelet.admit(pod)
        given = await kubelet.run_options(pod.uid, "main")
        vendor.set("down", "down")
        await kubelet.wait(lambda it: it.counts().get(CARD) == Capacity(2, 0))

    assert verdict.admitted, verdict.message
    (device,) = given.devices
    assert dict(given.env) == {
        "ACME_VISIBLE_DEVICES": f"ACME-000{int(device[0].removeprefix('/dev/acme')) + 1}"
    }


async def test_a_card_that_can_not_tell_its_name_is_offered_to_nobody_and_hides_no_other(
    vendor: Installed,
) -> None:
    vendor.set("mute", "ok")
    async with serving(vendor) as kubelet:
        await kubelet.wait(lambda it: it.counts().get(CARD) == Capacity(1, 1))
