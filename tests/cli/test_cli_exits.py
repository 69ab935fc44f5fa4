"""How verbs end: 0 done, 1 their own answer is a bad one, 2 used wrongly."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.cli import VERBS, main
from agent.state.state_directory_lock import StateDirectoryLock

#: What keeps a verb from the places where it looks by default.
ELSEWHERE = (
    "--state-dir {empty} --kubelet-dir {missing}/k --pod-resources-socket {missing}/s --cdi-dir {missing}/c "
    "--device-infos-dir {missing}/i --http="
)
#: `{words}` stand for what `places` makes; what is done without an error has its own tests as well.
EXITS = [
    ("--version", 0),
    ("", 2),
    ("--colour", 2),
    ("dance", 2),
    # What ends `run` with 1 or 0 needs a process: test_process.
    ("run --cofnig x", 2),
    ("run --config {missing} {elsewhere}", 2),
    ("run --config {refused} {elsewhere}", 2),
    ("run --http nonsense", 2),
    ("run --kubeconfig {missing}", 2),
    ("demo --slow", 2),
    ("inspect --state-dir {empty}", 1),
    ("inspect --jsno", 2),
    ("top --once --state-dir {empty}", 1),
    ("top --json --state-dir {empty}", 1),
    ("top --interval 0", 2),
    ("top --interval nan", 2),
    ("top --sort size", 2),
    ("health list --state-dir {empty}", 1),
    ("health cordon GPU-1 --state-dir {empty}", 1),
    ("health cordon", 2),
    ("health cordon GPU-1 --reason \udcff", 2),
    ("plugins --json", 0),
    ("plugins nvidia", 2),
    ("labels --config {good} --machine-type-file {good}", 0),
    ("labels --config {none} --machine-type-file {good}", 1),
    ("labels --config {refused}", 2),
    ("labels --config {good} --machine-type-file {good} --output-file {missing}/labels", 2),
    ("config check --config {good}", 0),
    ("config check --config {refused}", 1),
    ("config check --pass-device-specs=perhaps", 1),
    ("config check --config {missing}", 2),
    ("config check --config {empty}", 2),
    ("config check --node-label pool", 2),
    ("config", 2),
    ("conformance simulated --config {good}", 0),
    ("conformance nvidia --config {none}", 1),
    ("conformance acme", 2),
    ("conformance simulated", 2),
    ("conformance nvidia --config {refused}", 2),
    ("uninstall --state-dir {empty} --kubelet-dir {missing}", 0),
    ("uninstall --state-dir {served} --kubelet-dir {empty}", 1),
    ("uninstall --await-nodes a", 2),
    ("uninstall --within long", 2),
    ("doctor --config {refused} {elsewhere}", 1),
    ("doctor --config {missing} {elsewhere}", 1),
    ("doctor --pass-device-specs=perhaps {elsewhere}", 1),
    ("doctor --jsno", 2),
]

#: What a verb ends with whose reader went away early: one whose exit code is its verdict has none then.
UNHEARD = [
    ("plugins --json", 0),
    ("labels --config {good} --machine-type-file {good}", 0),
    ("config check --config {good}", 1),
    ("conformance simulated --config {good}", 1),
    ("uninstall --state-dir {empty} --kubelet-dir {missing}", 1),
    ("doctor --config {good} {elsewhere}", 1),
    ("doctor --json --config {good} {elsewhere}", 1),
]


@pytest.fixture
def places(tmp_path: Path) -> Iterator[dict[str, str]]:
    texts = {
        "good": "version: v1\nvendors: {simulated: {settings: {devices: 2}}}\n",
        "none": "version: v1\n",
        "refused": "version: v9\n",
    }
    found = {name: tmp_path / name for name in (*texts, "missing", "empty", "served")}
    for name, text in texts.items():
        found[name].write_text(text)
    for name in ("empty", "served"):
        found[name].mkdir(mode=0o700)
    with StateDirectoryLock(found["served"] / "agent.lock") as lock:
        assert lock.take() == ""
        yield {**{name: str(path) for name, path in found.items()}, "elsewhere": ELSEWHERE.format(**found)}


@pytest.mark.parametrize(("given", "code"), EXITS)
def test_a_verb_ends_with_what_its_exit_code_says(given: str, code: int, places: dict[str, str]) -> None:
    arguments = given.format(**places).split()

    try:
        ended: object = main(arguments)
    except SystemExit as exc:
        ended = exc.code

    assert ended == code


@pytest.mark.parametrize(("given", "code"), UNHEARD)
def test_a_verb_whose_reader_went_away_says_0_only_where_it_has_nothing_to_prove(
    given: str, code: int, places: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as stdout:
        monkeypatch.setattr(sys, "stdout", stdout)

        ended = main(given.format(**places).split())

    assert ended == code


@pytest.mark.parametrize("given", ["plugins", "--version", ""])
def test_an_output_that_is_full_is_said_in_a_sentence(
    given: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    with open("/dev/full", "w") as stdout:
        monkeypatch.setattr(sys, "stdout", stdout)

        assert main(given.split()) == 1

    assert capfd.readouterr().err == "xpu-agent: the output cannot be written: No space left on device\n"


def test_a_full_disk_of_a_verb_that_writes_files_is_not_taken_for_the_output(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("agent.demo.player.main", full)

    with pytest.raises(OSError, match="No space left on device"):
        main(["demo"])


def test_a_verb_without_an_output_ends_as_with_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", None)  # as Python sets it where the shell closed it

    assert main(["plugins"]) == 0

    sys.stdout.close()


def test_the_table_has_every_verb_used_wrongly() -> None:
    assert {given.split()[0] for given, code in EXITS if given and code == 2} >= set(VERBS)
