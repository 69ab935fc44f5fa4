"""Each vendor has a directory of its own, and nobody else's is taken for it."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from agent.state import vendor_directories


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def refused(state_dir: Path, vendor: str = "acme") -> str:
    """Why it has none, as it is said."""
    with capture_logs() as logs:
        assert vendor_directories.of(state_dir, vendor) is None
    (entry,) = logs
    assert entry["log_level"] == "error"
    return str(entry["error"])


def test_a_directory_is_made_closed_to_others_and_found_again_with_what_it_holds(tmp_path: Path) -> None:
    made = vendor_directories.of(tmp_path / "state", "acme")

    assert made == tmp_path / "state" / "vendors" / "acme"
    assert [mode(it) for it in (made, made.parent, made.parent.parent)] == [0o700] * 3
    (made / "journal").touch()
    assert vendor_directories.of(tmp_path / "state", "acme") == made
    assert (made / "journal").exists()


def test_one_that_is_open_to_others_is_closed(tmp_path: Path) -> None:
    (tmp_path / "vendors" / "acme").mkdir(parents=True)
    (tmp_path / "vendors" / "acme").chmod(0o777)

    made = vendor_directories.of(tmp_path, "acme")

    assert made is not None
    assert mode(made) == mode(made.parent) == 0o700


@pytest.mark.parametrize("place", ["vendors", "vendors/acme"])
def test_a_link_in_its_place_is_not_followed(tmp_path: Path, place: str) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir(mode=0o755)
    link = tmp_path / "state" / place
    link.parent.mkdir(parents=True)
    link.symlink_to(elsewhere)

    assert refused(tmp_path / "state")

    assert mode(elsewhere) == 0o755
    assert list(elsewhere.iterdir()) == []


def test_a_file_in_its_place_is_told(tmp_path: Path) -> None:
    (tmp_path / "vendors").touch()

    assert refused(tmp_path) == "Not a directory"


def test_one_of_another_user_is_refused_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "vendors").mkdir()
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)

    assert refused(tmp_path) == f"{tmp_path / 'vendors'} belongs to the user {os.getuid()}; move it away"


@pytest.mark.parametrize("name", ["..", "../elsewhere", "a/b", "."])
def test_a_vendors_name_leads_nowhere_else(tmp_path: Path, name: str) -> None:
    assert "no directory" in refused(tmp_path, name)

    assert list(tmp_path.iterdir()) == []
