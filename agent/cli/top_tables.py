"""The tables of `top`: cards with bars of memory and utilization, and the containers on them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from agent.cli.fitted_table import TableColumn, fitted_table
from agent.cli.inspect_cells import A_WHILE, amount, lasting
from agent.cli.top_picture import Picture, ShownCard, ShownContainer
from agent.host import terminal

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table
    from rich.text import Text

#: Columns of a screen below which bars are left out, and those below which the figures stand without what
#: they are a part of.
_NARROW, _VERY_NARROW = 90, 60
#: Columns of a bar on a narrow pipe or terminal, and on a wide one.
_SHORT_BAR, _LONG_BAR = 10, 20
#: Names of processes that a row has.
_PROGRAMS = 3
#: The state of a vendor whose process answers.
_SERVED = "open"
#: A pod's name and what it uses are shown on each screen.
_CARD_COLUMNS = (
    TableColumn("card"),
    TableColumn("model", shortest=12, dispensable=5),
    TableColumn("memory"),
    TableColumn("utilization", dispensable=1),
    TableColumn("temp", dispensable=3),
    TableColumn("power", dispensable=4),
    TableColumn("health", dispensable=2),
)
_CONTAINER_COLUMNS = (
    TableColumn("card", dispensable=2),
    TableColumn("pod", shortest=16),
    TableColumn("container", shortest=9, dispensable=3),
    TableColumn("memory"),
    TableColumn("utilization", dispensable=1),
    TableColumn("idle", dispensable=4),
    TableColumn("processes", shortest=9, dispensable=5),
)


def render(
    picture: Picture, width: int, sort: str = "card", blocks: tuple[str, str] = ("█", "░")
) -> list[RenderableType]:
    """The picture for so many columns. `blocks` are the full and the empty part of a bar."""
    parts: list[RenderableType] = [_heading(picture)]
    parts += [terminal.styled(f"! {remark}", "yellow") for remark in picture.remarks]
    return [*parts, _cards(picture, width, blocks), _containers(picture, width, sort)]


def _heading(picture: Picture) -> Text:
    document, usage = picture.document, picture.usage
    words = [f"node {document.node or '?'}, xpu-agent {document.version or '?'}"]
    if usage is not None:
        known = ((vendor.vendor, vendor.age_seconds) for vendor in usage.sampling)
        ages = (f"{name} {seconds:.0f}s ago" for name, seconds in known if seconds is not None)
        words += [f"sampled every {usage.interval_seconds:g} s", *ages]
    return terminal.styled(", ".join(words), "bold")


def _cards(picture: Picture, width: int, blocks: tuple[str, str]) -> Table:
    lost = {it.name: it.state for it in picture.document.vendors if it.state != _SERVED}
    rows = [[*_card(card, lost.get(card.device.vendor, ""), width, blocks)] for card in picture.cards]
    return fitted_table("cards", _CARD_COLUMNS, rows, width)


def _card(card: ShownCard, lost: str, width: int, blocks: tuple[str, str]) -> Iterator[Text]:
    """`lost`: the state of a vendor whose process does not answer."""
    device, use = card.device, card.use
    yield terminal.styled(card.place)
    yield terminal.styled(device.model or "-")
    total = (use.memory_total_bytes if use else None) or device.memory_bytes
    taken = use.memory_used_bytes if use else None
    part = taken / total if taken is not None and total else None
    yield _bar(part, _amount(taken, total, width), width, blocks)
    busy = use.utilization if use else None
    yield _bar(busy, "-" if busy is None else f"{busy:.0%}", width, blocks)
    temperature, power = (use.temperature_celsius, use.power_watts) if use else (None, None)
    yield terminal.styled("-" if temperature is None else f"{temperature:.0f}C")
    yield terminal.styled("-" if power is None else f"{power:.0f}W")
    state = "cordoned" if device.cordon else device.health.state
    if lost and state == "healthy":
        state = f"vendor {lost}"  # the health is the last one known
    yield terminal.styled(
        state or "-", "green" if state == "healthy" else "red" if state == "unhealthy" else "yellow"
    )


def _containers(picture: Picture, width: int, sort: str) -> Table:
    rows = [[*_container(it, width)] for it in picture.containers(sort)]
    return fitted_table("containers", _CONTAINER_COLUMNS, rows, width)


def _container(shown: ShownContainer, width: int) -> Iterator[Text]:
    style = "" if shown.is_container else "dim"
    yield terminal.styled(shown.card, style)
    yield terminal.styled(shown.name, style)
    yield terminal.styled(shown.container or "-", style)
    limit, taken = shown.memory_limit, shown.memory
    is_over = taken is not None and limit is not None and taken > limit
    yield terminal.styled(_amount(taken, limit, width), "red" if is_over else style)
    yield terminal.styled(_busy(shown, width), style)
    is_idle = shown.idle is not None and shown.idle > A_WHILE
    idle = "-" if shown.idle is None else lasting(shown.idle) if is_idle else "0m"
    yield terminal.styled(idle, "yellow" if is_idle else style)
    yield terminal.styled(_processes(shown), style)


def _busy(shown: ShownContainer, width: int) -> str:
    if shown.utilization is None:
        return "-"
    is_limited = shown.compute_limit is not None and width >= _VERY_NARROW
    return (
        f"{shown.utilization:.0%} of {shown.compute_limit:.0%}" if is_limited else f"{shown.utilization:.0%}"
    )


def _processes(shown: ShownContainer) -> str:
    if shown.processes is None:
        return "-"
    names = [*shown.programs[:_PROGRAMS], *(["..."] if len(shown.programs) > _PROGRAMS else [])]
    return f"{shown.processes} {', '.join(names)}" if names else str(shown.processes)


def _amount(taken: int | None, total: int | None, width: int) -> str:
    return amount(taken, total if width >= _VERY_NARROW else None)


def _bar(part: float | None, text: str, width: int, blocks: tuple[str, str]) -> Text:
    """The text with a bar before it, where there is room for one and the part is known."""
    if part is None or width < _NARROW:
        return terminal.styled(text)
    length = _LONG_BAR if width >= 2 * _NARROW or width >= 140 else _SHORT_BAR
    share = min(1.0, max(0.0, part))
    full = round(share * length)
    color = "red" if share >= 0.9 else "yellow" if share >= 0.6 else "green"
    bar = terminal.styled(blocks[0] * full, color)
    bar.append(blocks[1] * (length - full), style="dim")
    bar.append(f" {text}")
    return bar
