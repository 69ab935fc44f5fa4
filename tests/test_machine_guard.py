"""The guard that holds tests to directories of their own sees each way to leave them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

import pytest
from machine_guard import hook
from machine_guard.traces import differences, traces

from agent.cluster.credentials import SERVICE_ACCOUNT
from agent.config import AgentSettings, ReportSettings, parse_address
from agent.doctor import container_runtime

TESTS = Path(__file__).parent
STATE = "/var/lib/xpu-agent"
HOME = os.environ.get(hook.HOME) or os.environ["HOME"]
CONFTEST = """
import machine_guard.plugin
import machine_guard.traces

machine_guard.traces.OWN = ({own!r},)

def pytest_configure(config):
    machine_guard.plugin.start(config)
"""
BEGINNING = """
import os, shutil, socket, subprocess, sys, types
from unittest import mock
from contextlib import suppress
from pathlib import Path
"""
CHILD = "subprocess.run([sys.executable, {flags!r}, '-c', {code!r}], {more})"
OPEN = f"import contextlib\nwith contextlib.suppress(OSError): open('{STATE}/x')"

#: What a test does, and what it is blamed for: path and call.
TOUCHES = {
    "a file": (f"open('{STATE}/x', 'w')", f"{STATE}/x: open"),
    "a file by its bytes": (f"os.open(b'{STATE}/x', os.O_RDONLY)", f"{STATE}/x: open"),
    "a way around": (f"os.listdir('/tmp/..{STATE}')", f"{STATE}: os.listdir"),
    "a directory": (f"Path('{STATE}/a').mkdir(parents=True)", f"{STATE}/a: os.mkdir"),
    "a list": ("list(Path('/etc/cdi').iterdir())", "/etc/cdi: os.listdir"),
    "a look": (f"Path('{STATE}').exists()", f"{STATE}: os.stat"),
    "a look that hears no error": (f"os.path.lexists('{STATE}')", f"{STATE}: os.lstat"),
    "a right": (f"os.access('{STATE}', os.W_OK)", f"{STATE}: os.access"),
    "a removal": ("os.remove('/run/cdi/x.json')", "/run/cdi/x.json: os.remove"),
    "a rename": (f"os.rename(__file__, '{STATE}/x')", f"{STATE}/x: os.rename"),
    "a tree": (f"shutil.rmtree('{STATE}')", f"{STATE}: os.lstat"),
    "a socket that listens": (f"socket.socket(socket.AF_UNIX).bind('{STATE}/s')", f"{STATE}/s: socket.bind"),
    "a socket that asks": (
        "socket.socket(socket.AF_UNIX).connect('/var/lib/kubelet/pod-resources/kubelet.sock')",
        "/var/lib/kubelet/pod-resources/kubelet.sock: socket.connect",
    ),
    "a port that is listened on": (
        "socket.socket().bind(('127.0.0.1', 9808))",
        "127.0.0.1:9808: socket.bind",
    ),
    "a port that is asked": ("socket.create_connection(('::1', 9808))", "::1:9808: socket.connect"),
    "a child": (CHILD.format(flags="-E", code=OPEN, more=""), f"{STATE}/x: open"),
    "a child by itself": (CHILD.format(flags="-I", code=OPEN, more=""), f"{STATE}/x: open"),
    "a child with an environment of its own": (
        CHILD.format(flags="-I", code=OPEN, more="env={}"),
        f"{STATE}/x: open",
    ),
    "a child that begins there": (
        "subprocess.run(['true'], cwd='/etc/kubernetes')",
        "/etc/kubernetes: subprocess.Popen",
    ),
    "a child's own place, where its home is another": (
        CHILD.format(
            flags="-I",
            code=f"import os\nos.path.exists({HOME!r} + '/.kube/config')",
            more="env={'HOME': '/x'}",
        ),
        f"{HOME}/.kube/config: os.stat",
    ),
    "a path from a directory above": (
        CHILD.format(
            flags="-I", code="import os\nos.chdir('/var/lib')\nos.path.exists('xpu-agent')", more=""
        ),
        f"{STATE}: os.stat",
    ),
    "a test without variables": (
        f"mock.patch.dict(os.environ, {{}}, clear=True)(open)('{STATE}/x')",
        f"{STATE}/x: open",
    ),
    "a child's look": (
        CHILD.format(flags="-I", code=f"import os\nos.path.exists('{STATE}')", more=""),
        f"{STATE}: os.stat",
    ),
    "the agent itself": (
        "subprocess.run([sys.executable, '-m', 'agent', 'health', 'list'])",
        f"{STATE}/agent.sock: socket.connect",
    ),
}
#: What is nobody's business.
OWN = {
    "tmp": "(tmp_path / 'x').write_text('x'), list(tmp_path.iterdir()), shutil.rmtree(tmp_path)",
    "a neighbour of the name": f"Path('{STATE}-of-mine').exists()",
    "facts of the machine": "Path('/proc/self/status').read_text(), os.stat('/etc'), os.listdir('/var/lib')",
    "a child": CHILD.format(flags="-I", code="import json", more="check=True"),
    "a path that is only said": f"subprocess.run(['true', '{STATE}']), os.symlink('{STATE}', 'x')",
}


class Session(NamedTuple):
    """How a session of pytest ended, and each of its tests that failed, with what it was blamed for."""

    status: int
    output: str
    blamed: Mapping[str, str]


def session(root: Path, *codes: str, own: str = "") -> Session:
    """Run tests in a pytest of their own, one for each code."""
    tests = "".join(
        f"\ndef test_{number}(tmp_path):\n    with suppress(OSError):\n        {code}\n"
        for number, code in enumerate(codes)
    )
    (root / "test_it.py").write_text(BEGINNING + tests)
    (root / "conftest.py").write_text(CONFTEST.format(own=own or str(root / "own")))
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--junitxml=found.xml", str(root)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join((str(TESTS), str(TESTS.parent)))},
        cwd=root,
        capture_output=True,
        text=True,
        check=False,
    )
    cases = ElementTree.parse(root / "found.xml").iter("testcase")
    blamed = {case.attrib["name"]: it.attrib["message"] for case in cases for it in case.findall("failure")}
    return Session(ran.returncode, ran.stdout + ran.stderr, blamed)


@pytest.fixture(scope="module")
def blamed(tmp_path_factory: pytest.TempPathFactory) -> Session:
    codes = [*(code for code, _ in TOUCHES.values()), *OWN.values()]
    return session(tmp_path_factory.mktemp("guarded"), *codes)


@pytest.mark.parametrize("kind", TOUCHES)
def test_a_test_that_touches_a_place_of_the_machine_fails_and_is_told_path_and_call(
    kind: str, blamed: Session
) -> None:
    _, expected = TOUCHES[kind]

    told = blamed.blamed[f"test_{[*TOUCHES].index(kind)}"]

    assert told.splitlines()[0] == f"Failed: {expected}", blamed.output


@pytest.mark.parametrize("kind", OWN)
def test_a_test_that_keeps_to_its_own_is_not_blamed(kind: str, blamed: Session) -> None:
    assert f"test_{len(TOUCHES) + [*OWN].index(kind)}" not in blamed.blamed


def test_what_is_touched_is_refused_so_that_nothing_is_read_or_written(tmp_path: Path) -> None:
    ended = session(tmp_path, "open('/etc/cdi/x', 'w'); Path('went-on').touch()")

    assert ended.blamed.keys() == {"test_0"}
    assert not (tmp_path / "went-on").exists()


@pytest.mark.parametrize(
    "code",
    [
        CHILD.format(flags="-I", code=OPEN, more="env=types.MappingProxyType({})"),
        f"os.waitpid(os.posix_spawn(sys.executable, ['p', '-c', {OPEN!r}], {{}}), 0)",
        f"os.execve(sys.executable, ['p', '-c', {OPEN!r}], {{}})",
    ],
    ids=["frozen", "posix_spawn", "exec"],
)
def test_a_child_s_environment_that_can_not_be_added_to_is_refused(code: str, tmp_path: Path) -> None:
    assert "guard cannot be added" in session(tmp_path, code).blamed["test_0"]


def test_a_program_that_is_no_python_fails_the_session_by_what_it_leaves(tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.mkdir()

    ended = session(tmp_path, f"subprocess.run(['sh', '-c', 'echo x >{own}/x'], check=True)", own=str(own))

    assert (ended.status, ended.blamed) == (1, {})
    assert f"{own}/x was made while the tests ran" in ended.output


def test_what_a_process_does_after_its_test_is_told_with_the_test_that_started_it(tmp_path: Path) -> None:
    late = f"import sys\nsys.stdin.read()\n{OPEN}"
    start = f"globals().update(it=subprocess.Popen([sys.executable, '-c', {late!r}], stdin=subprocess.PIPE))"

    ended = session(tmp_path, start, "it.communicate(b'')")

    assert ended.blamed["test_1"].startswith(f"Failed: {STATE}/x: open\n")
    assert "started by test_it.py::test_0" in ended.blamed["test_1"]


def test_every_place_that_the_agent_has_by_default_is_guarded() -> None:
    settings = AgentSettings()
    found = [getattr(settings, name) for name in AgentSettings.__slots__]
    places = [it for it in found if isinstance(it, Path)]

    for it in (*places, SERVICE_ACCOUNT, *container_runtime.DEFAULTS, ReportSettings().device_infos_dir):
        assert hook.guarded(it), it
    address = parse_address(settings.http)
    assert hook.guarded((address.host, address.port))


def test_traces_tell_what_came_what_went_and_what_was_written(tmp_path: Path) -> None:
    for name in ("kept", "gone", "written"):
        (tmp_path / "own" / name).mkdir(parents=True)
    before = traces((str(tmp_path / "own"),))

    (tmp_path / "own/gone").rmdir()
    (tmp_path / "own/written/x").touch()

    told = differences(before, traces((str(tmp_path / "own"),)))
    root = tmp_path / "own"
    assert told == (
        f"{root} was changed",
        f"{root}/gone was removed",
        f"{root}/written was changed",
        f"{root}/written/x was made",
    )


def test_traces_of_what_is_not_there_are_none(tmp_path: Path) -> None:
    assert traces((str(tmp_path / "none"),)) == {}
