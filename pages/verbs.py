"""Every verb of the command line with its arguments; NVIDIA's flags have tables of their own."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from agent.cli import command_line
from pages.table import code, table

_RUN = "xpu-agent run"


def verbs() -> Iterator[str]:
    """A section for each verb that does something, with a table where it takes arguments."""
    leaves = [*_leaves("xpu-agent", command_line(), "")]
    of_run = next([*_rows(parser)] for name, _, parser in leaves if name == _RUN)
    for name, help_, parser in leaves:
        rows = [*_rows(parser)]
        configured = name != _RUN and all(it in rows for it in of_run)
        own = [it for it in rows if not configured or it not in of_run]
        more = f" Takes the flags of `{_RUN}`, too." if configured else ""
        yield from (f"## {code(name)}", "", f"{help_[:1].upper()}{help_[1:]}.{more}", "")
        yield from (*table(("argument", "meaning"), own), "") if own else ()


def _leaves(
    name: str, parser: argparse.ArgumentParser, help_: str
) -> Iterator[tuple[str, str, argparse.ArgumentParser]]:
    """Each verb that has none below it: its words, its help, its parser."""
    inner = [it for it in parser._actions if isinstance(it, argparse._SubParsersAction)]
    if not inner:
        yield name, help_, parser
    for verb in inner:
        told = {it.dest: it.help or "" for it in verb._choices_actions}
        for word, below in verb.choices.items():
            yield from _leaves(f"{name} {word}", below, told[word])


def _rows(parser: argparse.ArgumentParser) -> Iterator[tuple[str, str]]:
    groups = (it for it in parser._action_groups if it.title == "NVIDIA's flags")
    theirs = {it.dest for group in groups for it in group._group_actions if it.dest != "config"}
    seen: set[str] = {"help", *theirs}
    for it in parser._actions:
        if it.dest not in seen:
            seen.add(it.dest)
            yield _written(it), (it.help or "") % vars(it)


def _written(it: argparse.Action) -> str:
    value = it.metavar or ("|".join(it.choices) if it.choices else "")
    flag = it.option_strings[0] if it.option_strings else ""
    return code(" ".join(part for part in (flag, str(value)) if part))
