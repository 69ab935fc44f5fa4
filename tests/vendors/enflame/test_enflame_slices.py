"""Slices of the hardware (DRS): made as asked, known for ours, removed with their allocation."""

from __future__ import annotations

import json
from contextlib import suppress

import pytest
from efml_stub import FORMATS, EfmlStub
from enflame_host import OTHER, OURS, THIRD, Host, asked, marks, uuid

from agent.vendor_api.agent import NoRoom, Partition, RequestRefused
from agent.vendors.enflame.child import slice_profiles
from agent.vendors.enflame.child.abi import VirtMode
from agent.vendors.enflame.child.backend import EnflameBackend
from agent.vendors.enflame.child.efsmi import EfsmiError

pytest_plugins = ["efml_fixtures", "enflame_fixtures"]


def _attributes(backend: EnflameBackend, slot: int) -> dict[str, str]:
    return dict(backend.discover()[slot].attributes)


# Making


@pytest.mark.parametrize(("count", "profile"), [(1, "1g.6gb"), (3, "3g.20gb"), (6, "6g.40gb")])
def test_the_number_of_ids_is_the_size_of_the_slice(
    backend: EnflameBackend, stub: EfmlStub, count: int, profile: str
) -> None:
    [made] = backend.prepare(asked(count), [uuid(2)])

    [there] = stub.instances()
    assert (there.slot, there.profile) == (2, profile)
    assert made == Partition(f"{there.id}:{there.uuid}", uuid(2), OURS)
    assert list(backend.partitions()) == [made]


def test_a_scheduler_names_the_profile(backend: EnflameBackend, stub: EfmlStub) -> None:
    backend.prepare(asked(1, profile="3g.20gb", profile_id="1"), [uuid(2)])

    assert [it.profile for it in stub.instances()] == ["3g.20gb"]


def test_asked_twice_it_makes_nothing_new(backend: EnflameBackend, stub: EfmlStub) -> None:
    first = backend.prepare(asked(3), [uuid(2)])

    assert backend.prepare(asked(3), [uuid(2)]) == first
    assert len(stub.instances()) == 1


def test_a_slice_of_another_size_or_card_is_replaced(backend: EnflameBackend, stub: EfmlStub) -> None:
    backend.prepare(asked(3), [uuid(2)])
    backend.prepare(asked(1), [uuid(2)])
    assert [(it.slot, it.profile) for it in stub.instances()] == [(2, "1g.6gb")]

    backend.prepare(asked(1), [uuid(5)])

    assert [(it.slot, it.profile) for it in stub.instances()] == [(5, "1g.6gb")]
    assert stub.drs() == [5]


def test_slices_of_several_allocations_lie_on_one_card(backend: EnflameBackend, stub: EfmlStub) -> None:
    for allocation in (OURS, OTHER):
        backend.prepare(asked(3, allocation=allocation), [uuid(2)])

    assert marks(backend.partitions()) == [OURS, OTHER]
    backend.release(OURS)
    assert marks(backend.partitions()) == [OTHER]


def test_a_slice_that_a_reboot_took_is_made_again(
    host: Host, backend: EnflameBackend, stub: EfmlStub
) -> None:
    [before] = backend.prepare(asked(3), [uuid(2)])
    stub.driver_reload()
    again = host.opened()
    assert again.partitions() == []

    [made] = again.prepare(asked(3), [uuid(2)])

    assert made.id != before.id
    assert marks(again.partitions()) == [OURS]
    again.release(OURS)
    assert (stub.instances(), stub.drs(), host.journal) == ([], [], [])


def test_the_slice_lies_on_the_card_of_the_address_whatever_its_index(host: Host, stub: EfmlStub) -> None:
    stub.order(*reversed(range(8)))
    stub.minor(2, 30)
    host.opened().prepare(asked(3), [uuid(2)])

    assert [it.slot for it in stub.instances()] == [2]


def test_slices_are_their_cards_also_when_library_and_tool_count_anew(
    host: Host, backend: EnflameBackend, stub: EfmlStub
) -> None:
    [made] = backend.prepare(asked(3), [uuid(2)])
    backend.period = 30.0
    backend.discover()
    stub.remove(0)
    host.tree.remove(0)
    backend.discover()

    assert list(backend.partitions()) == [made]


def test_a_product_whose_published_profiles_are_not_its_own_has_its_own(
    backend: EnflameBackend, stub: EfmlStub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(slice_profiles.PUBLISHED, "S60", {"1g.9gb": 7})

    backend.prepare(asked(profile="3g.20gb"), [uuid(2)])

    assert [it.profile for it in stub.instances()] == ["3g.20gb"]


@pytest.mark.parametrize("release", FORMATS)
def test_every_release_of_the_tool_makes_slices(
    backend: EnflameBackend, stub: EfmlStub, release: str
) -> None:
    stub.efsmi_format(release)

    backend.prepare(asked(3), [uuid(2)])

    assert marks(backend.partitions()) == [OURS]


def test_a_create_whose_answer_is_lost_is_made_all_the_same(backend: EnflameBackend, stub: EfmlStub) -> None:
    stub.efsmi_fails("create", late=True)

    [made] = backend.prepare(asked(3), [uuid(2)])

    assert [f"{it.id}:{it.uuid}" for it in stub.instances()] == [made.id]


# Refused


def _sriov(stub: EfmlStub) -> None:
    stub.virt(2, VirtMode.HOST, "SRIOV")


REFUSED = {
    "no such size": (lambda it: None, asked(2), "2 of enflame.com/drs-gcu: .*1g.6gb, 3g.20gb, 6g.40gb"),
    "no such profile": (lambda it: None, asked(profile="2g.12gb"), "2g.12gb: .*1g.6gb, 3g.20gb, 6g.40gb"),
    "no profile": (lambda it: None, asked(profile="; reboot"), "no profile of a slice, such as 3g.20gb"),
    "no number": (lambda it: None, asked(profile="1g.6gb", profile_id="$(id)"), "no number"),
    "another number": (
        lambda it: None,
        asked(profile="1g.6gb", profile_id="7"),
        "has number 0 .* the claim says 7",
    ),
    "a full card": (
        lambda it: it.make_instance(2, "3g.20gb"),
        asked(6),
        (
            "6g.40gb takes 6 of 6 slices, .* has 3 left, 1 slices on it are not the agent's; "
            "what fits: 1g.6gb, 3g.20gb"
        ),
    ),
    "another mode": (_sriov, asked(1), "in mode SRIOV: only in mode Disable or DRS"),
    "a card in use": (lambda it: it.run_process(2, 7), asked(1), "may be in use"),
    "the tool's own word": (
        lambda it: it.efsmi_fails("create", text="Error: no way"),
        asked(1),
        "no slice 1g.6gb .*no way",
    ),
}


@pytest.mark.parametrize(("change", "request_", "says"), REFUSED.values(), ids=REFUSED.keys())
def test_what_can_not_be_served_is_refused_with_what_works_and_leaves_nothing(
    host: Host, stub: EfmlStub, change: object, request_: object, says: str
) -> None:
    change(stub)  # type: ignore[operator]
    before = (stub.instances(), stub.drs())
    backend = host.opened()

    with pytest.raises(RequestRefused, match=says) as refused:
        backend.prepare(request_, [uuid(2)])  # type: ignore[arg-type]

    assert isinstance(refused.value, NoRoom) == ("left" in says)

    assert (stub.instances(), stub.drs()) == before
    assert host.journal == []


def test_free_slices_that_make_no_profile_beside_others_are_no_room(
    backend: EnflameBackend, stub: EfmlStub
) -> None:
    stub.make_instance(2, "1g.6gb")
    stub.efsmi_fails("create", text="Error: no place for it")

    with pytest.raises(NoRoom, match="no place for it"):
        backend.prepare(asked(3), [uuid(2)])


def test_a_card_of_another_product_is_asked_for_its_profiles_and_let_be_whole_again(
    host: Host, stub: EfmlStub
) -> None:
    stub.product(2, "S90")
    backend = host.opened()
    assert "profiles" not in _attributes(backend, 2)

    with pytest.raises(RequestRefused, match=r"1g\.6gb, 3g\.20gb, 6g\.40gb"):
        backend.prepare(asked(2), [uuid(2)])

    assert stub.drs() == []
    assert _attributes(backend, 2)["profiles"] == "1g.6gb:0,3g.20gb:1,6g.40gb:2"
    assert _attributes(host.opened(), 2)["profiles"] == "1g.6gb:0,3g.20gb:1,6g.40gb:2"


def test_profiles_of_a_card_that_tells_no_sku_are_remembered_by_its_name(host: Host, stub: EfmlStub) -> None:
    stub.unsupported("EfmlGetDevSKU", 2)
    stub.set_drs(2)
    stub.set_drs(3)

    learned = _attributes(host.opened(), 2)

    assert "product" not in learned
    assert learned["profiles"] == "1g.6gb:0,3g.20gb:1,6g.40gb:2"


@pytest.mark.parametrize("uuids", [[], [uuid(1), uuid(2)]])
def test_a_slice_lies_on_one_card(backend: EnflameBackend, uuids: list[str]) -> None:
    with pytest.raises(RequestRefused, match="a slice of one card"):
        backend.prepare(asked(2), uuids)


def test_a_card_that_nobody_knows_has_no_slices(backend: EnflameBackend) -> None:
    with pytest.raises(RequestRefused, match="GCU-nobody is not among the cards here"):
        backend.prepare(asked(), ["GCU-nobody"])


def test_no_slice_is_made_on_a_lost_card(backend: EnflameBackend, stub: EfmlStub) -> None:
    stub.lose(2)
    backend.discover()

    with pytest.raises(RequestRefused, match="the card is lost"):
        backend.prepare(asked(), [uuid(2)])


def test_without_the_tool_slices_are_refused_and_cards_are_not(host: Host) -> None:
    backend = host.opened(efsmi="/nowhere/efsmi")

    assert [it.fault for it in backend.discover()] == [None] * 8
    assert list(backend.partitions()) == []
    backend.release(OURS)
    with pytest.raises(RequestRefused, match="efsmi is not here"):
        backend.prepare(asked(), [uuid(0)])


def test_slices_that_are_ours_are_not_taken_for_gone_where_the_tool_went_away(
    host: Host, backend: EnflameBackend
) -> None:
    backend.prepare(asked(), [uuid(0)])
    without = host.opened(efsmi="/nowhere/efsmi")

    with pytest.raises(EfsmiError):
        without.partitions()
    with pytest.raises(EfsmiError):
        without.release(OURS)


@pytest.mark.parametrize("command", ["table", "create", "list"])
def test_a_tool_that_fails_in_the_middle_leaves_nothing_once_it_works(
    host: Host, backend: EnflameBackend, stub: EfmlStub, command: str
) -> None:
    stub.efsmi_kills(command)
    with suppress(EfsmiError):  # of a create whose answer is lost the slice may be there
        backend.prepare(asked(), [uuid(2)])

    backend.release(OURS)

    assert (stub.instances(), stub.drs(), host.journal) == ([], [], [])


# Letting cards be sliced, and be whole again


def test_the_card_is_let_be_whole_again_with_the_last_slice_of_ours(
    backend: EnflameBackend, stub: EfmlStub
) -> None:
    for allocation in (OURS, OTHER):
        backend.prepare(asked(allocation=allocation), [uuid(2)])
    assert stub.drs() == [2]

    backend.release(OURS)
    assert stub.drs() == [2]
    backend.release(OTHER)
    assert stub.drs() == []


def test_a_card_that_others_let_be_sliced_stays_so(host: Host, stub: EfmlStub) -> None:
    stub.set_drs(2)
    backend = host.opened()

    backend.prepare(asked(), [uuid(2)])
    backend.release(OURS)

    assert (stub.instances(), stub.drs()) == ([], [2])


def test_a_card_on_which_others_made_a_slice_meanwhile_stays_sliced_until_it_is_gone(
    backend: EnflameBackend, stub: EfmlStub
) -> None:
    backend.prepare(asked(), [uuid(2)])
    theirs = stub.make_instance(2)
    stub.trace()
    backend.release(OURS)
    assert stub.calls("efsmi:drs-off") == 0
    assert ([it.uuid for it in stub.instances()], stub.drs()) == ([theirs.uuid], [2])

    stub.vanish(theirs.uuid)
    backend.discover()

    assert stub.drs() == []


def test_a_card_that_can_not_be_made_whole_now_is_made_so_later(
    backend: EnflameBackend, stub: EfmlStub
) -> None:
    backend.prepare(asked(), [uuid(2)])
    stub.efsmi_fails("drs-off")
    backend.release(OURS)
    assert stub.drs() == [2]

    stub.efsmi_works()
    backend.discover()

    assert stub.drs() == []


def test_a_card_is_made_whole_also_where_no_slices_are_wanted_any_more(
    host: Host, backend: EnflameBackend, stub: EfmlStub
) -> None:
    backend.prepare(asked(), [uuid(2)])
    stub.efsmi_fails("drs-off")
    backend.release(OURS)
    stub.efsmi_works()

    host.opened(drs=False)

    assert (stub.drs(), host.journal) == ([], [])


def test_that_we_sliced_a_card_is_forgotten_with_a_reboot(
    host: Host, backend: EnflameBackend, stub: EfmlStub
) -> None:
    backend.prepare(asked(), [uuid(2)])
    stub.driver_reload()
    host.opened()
    stub.set_drs(2)

    again = host.opened()
    again.prepare(asked(), [uuid(2)])
    again.release(OURS)

    assert stub.drs() == [2]


def test_b20_no_start_lets_a_card_be_sliced_or_whole_only_to_look(host: Host, stub: EfmlStub) -> None:
    stub.set_drs(1)
    stub.trace()
    backend = host.opened()
    backend.partitions()
    backend.cdi()

    assert (stub.calls("efsmi:drs-on"), stub.calls("efsmi:drs-off"), stub.drs()) == (0, 0, [1])
    assert _attributes(backend, 0)["profiles"] == "1g.6gb:0,3g.20gb:1,6g.40gb:2"


# Removing


def test_what_is_not_there_is_released_quietly(backend: EnflameBackend, stub: EfmlStub) -> None:
    stub.trace()
    backend.release(THIRD)
    backend.release("")

    assert stub.calls("efsmi:list") == 0


def test_a_slice_in_use_is_said_and_removed_later(backend: EnflameBackend, stub: EfmlStub) -> None:
    backend.prepare(asked(), [uuid(2)])
    [there] = stub.instances()
    stub.use_instance(there.uuid)
    with pytest.raises(EfsmiError, match="instance is in use"):
        backend.release(OURS)
    assert marks(backend.partitions()) == [OURS]

    stub.use_instance(there.uuid, used=False)
    backend.release(OURS)

    assert stub.instances() == []


def test_a_slice_that_somebody_removed_is_released(
    host: Host, backend: EnflameBackend, stub: EfmlStub
) -> None:
    backend.prepare(asked(), [uuid(2)])
    stub.vanish(stub.instances()[0].uuid)
    theirs = stub.make_instance(2)  # it has the number of ours

    backend.release(OURS)

    assert [it.uuid for it in stub.instances()] == [theirs.uuid]


def test_a_removal_whose_answer_is_lost_is_done(host: Host, backend: EnflameBackend, stub: EfmlStub) -> None:
    backend.prepare(asked(), [uuid(2)])
    stub.efsmi_fails("destroy", late=True)

    backend.release(OURS)

    assert (stub.instances(), host.journal) == ([], [])


def test_the_slice_of_a_lost_card_is_released_and_swept_when_it_comes_back_with_it(
    backend: EnflameBackend, stub: EfmlStub
) -> None:
    backend.prepare(asked(), [uuid(2)])
    stub.lose(2)
    backend.discover()
    backend.release(OURS)

    stub.restore(2)
    backend.discover()

    assert marks(backend.partitions()) == [OURS]  # which is in nobody's books: it is released again
    backend.release(OURS)
    assert stub.instances() == []


def test_b18_what_was_deleted_while_nobody_was_there_is_known_for_ours(
    host: Host, backend: EnflameBackend, stub: EfmlStub
) -> None:
    backend.prepare(asked(3), [uuid(2)])
    backend.close()

    later = host.opened()

    assert marks(later.partitions()) == [OURS]
    later.release(OURS)
    assert (stub.instances(), stub.drs()) == ([], [])


def test_b19_what_was_reserved_and_never_made_is_released(backend: EnflameBackend, stub: EfmlStub) -> None:
    with pytest.raises(RequestRefused):
        backend.prepare(asked(2), [uuid(2)])

    backend.release(OURS)

    assert stub.instances() == []


# Of others


def test_b17_a_leaked_slice_stops_nothing(host: Host, stub: EfmlStub) -> None:
    leaked = stub.make_instance(2, "1g.6gb")
    backend = host.opened()

    assert [it.fault for it in backend.discover()] == [None] * 8
    assert list(backend.partitions()) == [Partition(f"{leaked.id}:{leaked.uuid}", uuid(2), None)]
    backend.prepare(asked(3), [uuid(2)])
    backend.prepare(asked(6, allocation=OTHER), [uuid(3)])
    backend.release(OURS)
    backend.release(OTHER)
    assert [it.uuid for it in stub.instances()] == [leaked.uuid]


@pytest.mark.parametrize("release", FORMATS)
def test_b17_a_node_whose_cards_can_not_be_sliced_has_its_cards(
    host: Host, stub: EfmlStub, release: str
) -> None:
    stub.efsmi_format(release)
    for slot in range(8):
        stub.virt(slot, VirtMode.HOST, "SRIOV")
    backend = host.opened()

    devices = backend.discover()

    assert [it.fault for it in devices] == [None] * 8
    assert {it.attributes["virtual"] for it in devices} == {"SRIOV"}
    assert not any("profiles" in it.attributes for it in devices)
    assert backend.partitions() == []


@pytest.mark.parametrize("command", ["table", "list", "list-profile"])
@pytest.mark.parametrize("how", ["fails", "garbage"])
def test_b17_a_tool_that_can_not_be_understood_hides_no_card(
    host: Host, stub: EfmlStub, command: str, how: str
) -> None:
    stub.set_drs(0)
    if how == "fails":
        stub.efsmi_fails(command)
    else:
        stub.efsmi_says(command, "| 0 | what | 1g.6gb | 9 | is this |")

    assert [it.fault for it in host.opened().discover()] == [None] * 8


def test_slices_of_others_are_counted(backend: EnflameBackend, stub: EfmlStub) -> None:
    stub.make_instance(2, "3g.20gb")
    stub.make_instance(2, "1g.6gb")
    backend.prepare(asked(1), [uuid(2)])

    said = _attributes(backend, 2)

    assert (said["virtual"], said["foreign-slices"], said["foreign-sixths"]) == ("DRS", "2", "4")
    assert "foreign-slices" not in _attributes(backend, 1)


def test_of_two_cards_that_the_tool_tells_apart_in_nothing_neither_is_sliced(
    host: Host, stub: EfmlStub
) -> None:
    stub.address(1, "0100:20:00.0")
    backend = host.opened()

    with pytest.raises(EfsmiError, match="no row of its own for GCU-"):
        backend.prepare(asked(), [uuid(1)])
    backend.prepare(asked(), [uuid(2)])

    assert [it.slot for it in stub.instances()] == [2]


def test_a_card_that_two_rows_of_the_tool_may_mean_is_not_sliced(host: Host, stub: EfmlStub) -> None:
    stub.address(1, "0100:20:00.0")
    stub.count(1)

    with pytest.raises(EfsmiError, match="no row of its own for GCU-"):
        host.opened().prepare(asked(), [uuid(0)])


def test_slices_of_others_are_seen_also_where_none_are_offered(host: Host, stub: EfmlStub) -> None:
    """The card must be given to nobody as a whole. Without the tool nobody can see them."""
    stub.make_instance(0)

    assert _attributes(host.opened(drs=False), 0)["foreign-slices"] == "1"
    assert "virtual" not in _attributes(host.opened(drs=False, efsmi="/nowhere/efsmi"), 0)


def test_the_tool_is_not_run_with_each_list(host: Host, backend: EnflameBackend, stub: EfmlStub) -> None:
    backend.period = 30.0
    backend.discover()
    stub.trace()
    host.clock.now += 29
    backend.discover()
    assert stub.calls("efsmi:table") == 0

    host.clock.now += 1
    backend.discover()

    assert stub.calls("efsmi:table") == 1


# Containers


def test_a_container_gets_its_slice_by_a_name_of_its_allocation(
    backend: EnflameBackend, stub: EfmlStub
) -> None:
    backend.prepare(asked(3), [uuid(2)])
    [there] = stub.instances()

    [(file, text)] = backend.cdi().items()

    assert file == "enflame.com-drs-gcu.json"
    spec = json.loads(text)
    assert spec["kind"] == "enflame.com/drs-gcu"
    assert spec["devices"] == [
        {
            "name": OURS,
            "containerEdits": {
                "env": [f"TOPS_VISIBLE_DEVICES=DRS-{there.uuid}", "ENFLAME_VISIBLE_DEVICES=2"],
                "deviceNodes": [
                    {"path": "/dev/gcuctl", "permissions": "rw"},
                    {"path": "/dev/gcu2", "permissions": "rw"},
                ],
            },
        }
    ]


def test_without_slices_of_ours_there_is_no_spec(backend: EnflameBackend, stub: EfmlStub) -> None:
    stub.make_instance(2)
    backend.prepare(asked(), [uuid(3)])
    backend.release(OURS)

    assert backend.cdi() == {"enflame.com-drs-gcu.json": ""}


def test_a_slice_that_somebody_removed_stands_in_no_spec(backend: EnflameBackend, stub: EfmlStub) -> None:
    stub.set_drs(3)
    backend.prepare(asked(), [uuid(3)])
    stub.vanish(stub.instances()[0].uuid)
    backend.discover()

    assert backend.cdi() == {"enflame.com-drs-gcu.json": ""}


def test_a_slice_that_a_reboot_took_stands_in_no_spec(
    host: Host, backend: EnflameBackend, stub: EfmlStub
) -> None:
    backend.prepare(asked(), [uuid(3)])
    stub.driver_reload()

    assert host.opened().cdi() == {"enflame.com-drs-gcu.json": ""}


@pytest.mark.parametrize(
    "text", ["", "[", "7", '{"S60": 7}', '{"S60": {"x": 1}}', '{"S60": {"1g.6gb": "0"}}']
)
def test_profiles_on_disk_that_make_no_sense_are_learned_anew(host: Host, text: str) -> None:
    (host.directory / slice_profiles.FILE).write_text(text)

    assert _attributes(host.opened(), 0)["profiles"] == "1g.6gb:0,3g.20gb:1,6g.40gb:2"


def test_without_a_claim_it_is_the_smallest_profile_of_as_many_sixths() -> None:
    there = {"1g.12gb": 4, "1g.6gb": 0, "3g.20gb": 1}

    assert slice_profiles.chosen(slice_profiles.wanted(asked(1)), there, "GCU-0") == ("1g.6gb", 0)
    assert slice_profiles.chosen(slice_profiles.wanted(asked(1, profile="1g.12gb")), there, "GCU-0") == (
        "1g.12gb",
        4,
    )
    with pytest.raises(RequestRefused, match=r"can have no such slice, it can have 1g\.12gb, 1g\.6gb, 3g"):
        slice_profiles.chosen(slice_profiles.wanted(asked(2)), there, "GCU-0")
