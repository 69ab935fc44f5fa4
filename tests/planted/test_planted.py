"""The list of planted faults is sound, and the runner tells a fault that is caught from one that is not."""

from __future__ import annotations

import ast
import py_compile
from collections import Counter
from pathlib import Path

import pytest

from . import run as run_
from .copies import Unsound, copied
from .edit import Unplaced, definitions, planted
from .fault import ROOT, Fault, faults
from .rooms import demanded, drawn, room
from .run import Verdict, run

FAULTS = faults()
FEWEST = 50
#: Tests that need more than Python and a C compiler, and those that are about faults themselves.
UNFIT = ("tests/peers/", "tests/realnode/", "tests/planted/", "tests/deploy/")
SUM = """\
class Sum:
    def of(self, one, other):
        # one more line
        return one + other

    def twice(self, one):
        return self.of(one, one)
"""
TEST = """\
import subprocess, sys
from agent.sum import Sum

def test_a_sum_is_right_in_a_process_of_its_own_too():
    code = "from agent.sum import Sum; sys.exit(Sum().of(1, 2) != 3)"
    done = subprocess.run([sys.executable, "-I", "-c", f"import sys; {code}"], cwd="/")
    assert done.returncode == 0
"""


#: Without plugins that take a second to load, and do nothing there.
CONFIG = """\
[pytest]
addopts = -p no:asyncio -p no:anyio -p no:hypothesispytest
"""


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A tree of one module and one test."""
    tree = tmp_path / "tree"
    files = {"agent/__init__.py": "", "agent/sum.py": SUM, "tests/test_sum.py": TEST, "pytest.ini": CONFIG}
    for file, text in files.items():
        (tree / file).parent.mkdir(parents=True, exist_ok=True)
        (tree / file).write_text(text)
    return tree


def fault(name: str, function: str, code: str, instead: str, test: str = "tests/test_sum.py") -> Fault:
    return Fault(name, "agent/sum.py", function, code, instead, "wrong sums", (test,))


def test_every_fault_has_its_place_and_leaves_python_behind() -> None:
    lost = []
    for one in FAULTS:
        try:
            planted(ROOT, one)
        except Unplaced as exc:
            lost.append(str(exc))

    assert lost == []


def test_no_two_faults_have_one_name() -> None:
    assert [name for name, count in Counter(one.name for one in FAULTS).items() if count > 1] == []
    assert len(FAULTS) >= FEWEST


def test_every_fault_names_tests_that_are_there() -> None:
    missing = [(one.name, test) for one in FAULTS for test in one.caught_by if not is_there(test)]

    assert missing == []
    assert [one.name for one in FAULTS if not one.caught_by or not one.hurts] == []


def is_there(test: str) -> bool:
    file, _, name = test.partition("::")
    if file.startswith(UNFIT) or not (ROOT / file).is_file():
        return False
    function = name.partition("[")[0]
    return not name or f"def {function}(" in (ROOT / file).read_text()


def test_every_room_of_the_agent_has_a_fault() -> None:
    there = Counter(room(one.file) for one in FAULTS)

    lacking = {name: count for name, count in demanded(ROOT).items() if there[name] < count}
    assert lacking == {}, "plant some: CONTRIBUTING.md, 'Planted faults'"


def test_a_draw_is_the_same_again_and_another_one_for_another_seed(tree: Path) -> None:
    many = "".join(f"def f{number}():\n    return {number}\n" for number in range(50))
    (tree / "agent/many.py").write_text(many)

    assert len(drawn(tree, 1, 20)) == 20
    assert drawn(tree, 1, 20) == drawn(tree, 1, 20)
    assert drawn(tree, 1, 20) != drawn(tree, 2, 20)
    assert len(drawn(tree, 1, 60)) == 52


@pytest.mark.parametrize(
    ("function", "code", "why"),
    [
        ("Sum.off", "one", "has 0 definitions of Sum.off"),
        ("Sum.of", "one - other", "stands 0 times"),
        ("Sum.of", "one", "stands 3 times"),
        ("Sum.of", "one + other", "is no Python"),
    ],
)
def test_an_address_that_leads_nowhere_is_refused_with_the_reason(
    tree: Path, function: str, code: str, why: str
) -> None:
    with pytest.raises(Unplaced, match=why):
        planted(tree, fault("astray", function, code, "one +"))


def test_an_address_stays_good_where_its_function_moves_out_of_its_class(tree: Path) -> None:
    code, instead = "# one more line\n    return one + other", "return one - other"
    within = planted(tree, fault("within", "Sum.of", code, instead))
    (tree / "agent/sum.py").write_text("def of(one, other):\n    # one more line\n    return one + other\n")

    assert "        return one - other\n\n    def twice" in within
    assert (
        planted(tree, fault("without", "of", code, instead))
        == "def of(one, other):\n    return one - other\n"
    )


def test_functions_within_functions_are_named_by_them() -> None:
    names = [name for name, _ in definitions(ast.parse("class A:\n def b(self):\n  if 1:\n   def c(): ..."))]

    assert names == ["A", "A.b", "A.b.c"]


def test_a_fault_is_caught_or_survives_or_says_nothing(tree: Path) -> None:
    said: list[str] = []
    caught = fault("caught", "Sum.of", "one + other", "one - other")
    unseen = fault("unseen", "Sum.twice", "self.of(one, one)", "one")
    broken = fault("broken", "Sum", "class Sum:", "class Sum(Missing):")

    outcomes = run(tree, [caught, unseen, broken], 2, said.append)

    assert [outcome.verdict for outcome in outcomes] == [Verdict.CAUGHT, Verdict.SURVIVED, Verdict.UNSOUND]
    assert outcomes[0].by == "tests/test_sum.py::test_a_sum_is_right_in_a_process_of_its_own_too"
    assert "cannot be imported" in outcomes[2].by
    assert (tree / "agent/sum.py").read_text() == SUM
    assert len(said) == 4


def test_a_compiled_file_of_the_same_second_and_size_is_not_run_in_place_of_the_fault(tree: Path) -> None:
    copy = copied(tree, tree.parent / "copy", tree.parent)
    source = copy.path / "agent/sum.py"
    compiled = Path(str(py_compile.compile(str(source), doraise=True)))

    copy.write("agent/sum.py", SUM.replace("one + other", "one - other"))

    assert not compiled.exists()


@pytest.mark.parametrize(
    ("without", "verdict"),
    [(run_.PASSED, Verdict.CAUGHT), (run_.FAILED, Verdict.UNSOUND), (None, Verdict.UNSOUND)],
    ids=["alone", "fails, too", "hangs, too"],
)
@pytest.mark.parametrize(
    "hung",
    [
        (None, ""),
        (run_.FAILED, "Failed: Timeout (>1s)\nFAILED tests/test_sum.py::test_it - E\n"),
        (run_.INTERNAL_ERROR, "INTERNALERROR> Failed: Timeout (>1s)\n"),
    ],
    ids=["no end", "in a test", "in a hook of pytest"],
)
def test_a_fault_with_which_tests_hang_is_caught_where_they_end_without_the_fault(
    tree: Path,
    monkeypatch: pytest.MonkeyPatch,
    hung: tuple[int | None, str],
    without: int | None,
    verdict: Verdict,
) -> None:
    answers = iter([(run_.PASSED, "1 passed"), hung, (without, "")])
    monkeypatch.setattr(run_, "_pytest", lambda *given: next(answers))

    (outcome,) = run(tree, [fault("any", "Sum.of", "one + other", "one")], 1, lambda _: None)

    assert outcome.verdict is verdict


def test_an_error_of_pytest_itself_says_nothing_of_a_fault(
    tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = iter([(run_.PASSED, "1 passed"), (run_.INTERNAL_ERROR, "INTERNALERROR> KeyError\n")])
    monkeypatch.setattr(run_, "_pytest", lambda *given: next(answers))

    (outcome,) = run(tree, [fault("any", "Sum.of", "one + other", "one")], 1, lambda _: None)

    assert outcome.verdict is Verdict.UNSOUND


def test_tests_that_fail_without_a_fault_say_nothing_of_one(tree: Path) -> None:
    (tree / "tests/test_sum.py").write_text("def test_it(): assert False\n")

    with pytest.raises(Unsound, match="without a fault the tests do not pass either"):
        run(tree, [fault("any", "Sum.of", "one + other", "one")], 1, lambda _: None)
