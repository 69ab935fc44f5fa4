"""The docs say what is there: every flag, verb, example and link."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from support.vendor_inputs import INPUTS

from agent.cli import command_line
from agent.config import parse
from agent.core.errors import ConfigError
from agent.core.event_notices import ACTIONS
from agent.vendors import enflame, metax, nvidia, simulated

ROOT = Path(__file__).parent.parent
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_link_to_a_file_leads_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), f"{page}: {target}"


def test_the_readme_s_configs_are_valid() -> None:
    blocks = re.findall(r"```yaml\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)

    assert blocks
    for block in blocks:
        parse(block, "README.md", "a-node", inputs=INPUTS)


def test_the_readme_names_every_verb() -> None:
    readme = (ROOT / "README.md").read_text()
    verbs = next(it.choices for it in command_line()._actions if isinstance(it.choices, dict))

    for verb in verbs:
        assert f"xpu-agent {verb}" in readme


def test_the_first_steps_config_is_valid() -> None:
    config = re.findall(
        r"^```yaml\n(.*?)```", (ROOT / "docs/start.md").read_text(), re.DOTALL | re.MULTILINE
    )[0]

    assert parse(config, "my.yaml", "a-node", inputs=INPUTS).vendors["simulated"].settings == {"devices": 4}


def test_the_rooms_of_the_architecture_name_every_package() -> None:
    page = (ROOT / "docs/architecture.md").read_text()
    rooms = {line.split("`")[1].removesuffix("/NAME") for line in page.splitlines() if line.startswith("| `")}
    there = {path.parent for path in (ROOT / "agent").rglob("__init__.py")} - {ROOT / "agent"}
    packages = {str(path.relative_to(ROOT / "agent")) for path in there}
    inside = ("kubelet/pb", "vendors/", "schedulers/", "testing/", "doctor/")

    assert rooms == {name for name in packages if not name.startswith(inside)}


def test_directly_in_the_agent_lie_rooms_alone() -> None:
    files = {path.name for path in (ROOT / "agent").iterdir() if path.is_file()}

    assert files == {"__init__.py", "__main__.py", "py.typed"}


@pytest.mark.parametrize(
    "wrong",
    [
        *(f"sharing: {{kind: {it}}}" for it in ("slices", "fraction")),
    ],
)
def test_what_other_plugins_have_and_this_one_does_not_is_refused_by_name(wrong: str) -> None:
    config = f"vendors: {{simulated: {{resources: [{{name: a.com/b, {wrong}}}]}}}}"

    with pytest.raises(ConfigError, match="is not served by this release"):
        parse(config, "my.yaml", "a-node", inputs=INPUTS)


def test_the_vendor_guide_shows_what_its_example_is_made_of() -> None:
    """tests/docs/test_vendor_example.py runs these files."""
    guide = (ROOT / "docs/vendor-guide.md").read_text()
    example = ROOT / "docs/examples"
    files = (it for it in example.glob("vendor/**/*") if it.suffix in {".py", ".toml", ".yaml", ".md"})

    for file in (it for it in files if it.name != "__init__.py"):
        assert f"<!-- made: file {file.relative_to(ROOT / 'docs')} -->" in guide


@pytest.mark.parametrize(
    "vendor", [enflame, metax, nvidia, simulated], ids=lambda it: it.__name__.rpartition(".")[2]
)
def test_a_vendor_s_readme_has_its_sections(vendor: object) -> None:
    page = Path(vendor.__file__).parent / "README.md"  # type: ignore[attr-defined]

    for section in ("Settings", "Resources", "Health reasons", "Tested with"):
        assert f"## {section}" in page.read_text()


def test_the_events_page_has_every_reason_and_no_other() -> None:
    rows = [line for line in (ROOT / "docs/events.md").read_text().splitlines() if line.startswith("| `")]

    assert {name for row in rows for name in re.findall(r"`(\w+)`", row.split(" | ")[0])} == ACTIONS.keys()


@pytest.mark.parametrize("name", ["nvidia.md", "peer-bugs.md", "vendors.md"])
def test_the_tests_that_a_page_on_others_bugs_names_are_there(name: str) -> None:
    """`name_...` stands for all that begin so."""
    page = (ROOT / "docs" / name).read_text()
    rows = [line for line in page.splitlines() if line.startswith("| ") and line.count(" | ") == 2]
    named = {
        name for row in rows for name in re.findall(r"`([a-z0-9]+(?:_[a-z0-9]+){2,}_?(?:\.\.\.)?)`", row)
    }
    sources = (path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    tests = "\n".join(name for text in sources for name in re.findall(r"def test_(\w+)\(", text))

    missing = [
        name
        for name in named
        if not re.search(
            rf"^{re.escape(name.removesuffix('...'))}{'' if name.endswith('...') else '$'}", tests, re.M
        )
    ]

    assert len(named) > 20
    assert missing == []


def test_the_files_that_the_architecture_names_are_there() -> None:
    """NAME in a path stands for a folder: at least one has the file."""
    page = (ROOT / "docs/architecture.md").read_text()
    named = set(re.findall(r"`([a-z_A-Z]+(?:/[a-z_A-Z]+)+\.py)`", page))

    assert len(named) > 60
    assert [it for it in sorted(named) if not list((ROOT / "agent").glob(it.replace("NAME", "*")))] == []


def test_the_table_of_changes_has_a_file_to_begin_with_in_each_row() -> None:
    page = (ROOT / "docs/architecture.md").read_text()
    table = page[page.index("## Where do I change") : page.index("## Four ideas")]
    rows = [line.split(" | ") for line in table.splitlines() if line.startswith("| ")][1:]

    assert len(rows) >= 20
    assert all(begin.startswith("`") for _, begin, _ in rows)


def test_a_term_of_the_glossary_that_names_code_is_in_the_code() -> None:
    page = (ROOT / "docs/glossary.md").read_text()
    rows = [
        line.split(" | ") for line in page.splitlines() if line.startswith("| ") and line.count(" | ") == 2
    ]
    named = {name for row in rows for cell in row[2:] for name in re.findall(r"`([^`]+)`", cell)}
    code = "\n".join(path.read_text() for path in (ROOT / "agent").rglob("*.py"))

    assert len(rows) > 50
    assert [it for it in sorted(named) if not _is_in_the_code(it, code)] == []


def _is_in_the_code(name: str, code: str) -> bool:
    """A path below agent/, or a name that some file there has as a word."""
    if "/" in name or name.endswith(".py"):
        return (ROOT / "agent" / name).exists()
    return re.search(rf"\b{re.escape(name)}\b", code) is not None


def test_the_drawing_is_in_readme_and_architecture_and_loads_nothing() -> None:
    """GitHub shows pictures under a policy that lets them load nothing and run no script."""
    svg = (ROOT / "docs/images/floors.svg").read_text()

    assert "](docs/images/floors.svg)" in (ROOT / "README.md").read_text()
    assert "](images/floors.svg)" in (ROOT / "docs/architecture.md").read_text()
    assert re.findall(r"\w+://[^\"' )]*", svg) == ["http://www.w3.org/2000/svg"]
    assert not re.search(r"<script|@import|href|url\((?!#)", svg)
