"""Tables and pictures, from the frames up."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree

import pytest

from mpiring.plan import (
    Action,
    Form,
    Message,
    Receive,
    ScheduleError,
    Send,
    Step,
    direct_allreduce,
    direct_reduce_scatter,
    frames,
    from_steps,
    ring_allgather,
    ring_allreduce,
    ring_reduce_scatter,
    svg,
    table,
)
from mpiring.plan.frames import contribution_name, value_name
from mpiring.plan.symbolic import order_of

from plan.written import CASES, chain_reduce, star_broadcast, written

SVG = "{http://www.w3.org/2000/svg}"
EXAMPLES = {
    "ring allreduce of 1": ring_allreduce(1),
    "ring allreduce of 2": ring_allreduce(2),
    "ring allreduce of 4": ring_allreduce(4),
    "ring allreduce of 16": ring_allreduce(16),
    "ring reduce_scatter of 8, offset 1": ring_reduce_scatter(8, 1),
    "direct allreduce of 8": direct_allreduce(8),
    **{f"{name} of {size}": written(name, size) for name, size in CASES if size < 8},
}


# ---- frames ---------------------------------------------------------------------------------------


def test_frames_of_the_ring_are_its_steps():
    found = frames(ring_allreduce(4))
    assert [frame.round for frame in found] == list(range(7))
    assert found[0].messages == () and found[0].steps == (0,) * 4
    # The purely local step that finishes belongs to the round of the exchange before it.
    assert [frame.steps[0] for frame in found] == [0, 1, 2, 4, 5, 6, 7]
    for frame in found[1:4]:
        for source, dest, segment, form in frame.messages:
            assert dest == (source + 1) % 4 and form is Form.PARTIAL
            assert segment == (source - frame.round) % 4
    assert found[4].messages[0] == Message(0, 1, 0, Form.RESULT)
    value = found[2].cells[3][0]
    assert value is not None and order_of(value) == (1, 2, 3)


def test_frames_line_up_a_send_with_its_receive():
    """In a chain of 4 with 2 segments, segment s reaches rank r in round r + s."""
    found = frames(written("chain broadcast, last root", 4))
    arrivals = {
        (message.dest, message.segment): frame.round
        for frame in found
        for message in frame.messages
    }
    place = {3: 0, 0: 1, 1: 2, 2: 3}
    assert arrivals == {
        (rank, segment): place[rank] + segment
        for rank in (0, 1, 2)
        for segment in (0, 1)
    }


@pytest.mark.parametrize("name", EXAMPLES)
def test_every_message_is_in_one_frame(name):
    schedule = EXAMPLES[name]
    found = frames(schedule)
    messages = sorted(m[:3] for frame in found for m in frame.messages)
    steps = [list(schedule.steps(rank)) for rank in range(schedule.size)]
    sends = [
        (r, s.peer, s.segment) for r, p in enumerate(steps) for x in p for s in x.sends
    ]
    assert messages == sorted(sends)
    assert found[-1].steps == tuple(map(len, steps))


def test_a_broken_schedule_is_not_drawn():
    broken = from_steps("allgather", [[Step((Send(1, 0, Form.RESULT),))], []])
    for draw in (frames, table, svg):
        with pytest.raises(ScheduleError, match="no matching receive"):
            draw(broken)


def test_what_is_too_large_is_refused():
    for draw in (frames, table, svg):
        with pytest.raises(ValueError, match="17 segments do not fit on a page, 16 do"):
            draw(ring_allreduce(17))
        with pytest.raises(
            ValueError, match="600 ranks x 16 segments x 1 rounds or more"
        ):
            draw(star_broadcast(600, segments=16))


# ---- names ----------------------------------------------------------------------------------------


def test_names():
    assert [contribution_name(r, 3) for r in (0, 1, 25, 26, 27)] == [
        "a3",
        "b3",
        "z3",
        "r26s3",
        "r27s3",
    ]
    assert value_name(ring_allgather(3, 1), 1, None) == ""
    last = frames(ring_reduce_scatter(8))[-1].cells[2][2]
    assert value_name(ring_reduce_scatter(8), 2, last) == "d2+e2+f2+g2+h2+a2+b2+c2*"
    assert value_name(ring_reduce_scatter(8), 2, last, short=True) == "d2..c2*"


def test_short_names_keep_what_is_not_a_run():
    """A tree's brackets become a set; a star's order that jumps stays a sum."""
    made = written("tree allreduce", 7)
    value = frames(made)[-1].cells[0][0]
    assert value_name(made, 0, value) == "a0+b0+(c0+d0)+(e0+f0+g0)*"
    assert value_name(made, 0, value, short=True) == "{a0..g0}*"
    value = frames(made)[1].cells[0][0]
    assert value_name(made, 0, value, short=True) == "a0+b0"
    made = written("doubling allreduce", 8)
    value = frames(made)[2].cells[5][0]
    assert value_name(made, 0, value) == "e0+f0+(g0+h0)"
    assert value_name(made, 0, value, short=True) == "{e0..h0}"


def test_beyond_the_alphabet():
    text = table(chain_reduce(28, root=27, segments=1))
    assert "r27s0" in text and "z0" in text and "b0..r27s0*" not in text
    assert text.startswith("chain reduce, 28 ranks, root 27\n")


# ---- text -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", EXAMPLES)
def test_tables_are_tidy(name):
    lines = table(EXAMPLES[name]).split("\n")
    assert all(line == line.rstrip() for line in lines)
    assert len("\n".join(lines)) < 100_000
    if EXAMPLES[name].size <= 8:
        assert max(map(len, lines)) <= 110


def test_the_direct_exchange():
    assert table(direct_reduce_scatter(3, "rank")).split("\n\n")[2:] == [
        "step 1  segment 0  segment 1  segment 2  received\n"
        "rank 0  a0+b0+c0*  a1         a2         segment 0 from 1, 2\n"
        "rank 1  b0         a1+b1+c1*  b2         segment 1 from 0, 2\n"
        "rank 2  c0         c1         a2+b2+c2*  segment 2 from 0, 1",
        "*: a finished result",
    ]


def test_many_messages_are_counted():
    assert "7 messages" in table(direct_allreduce(8))
    text = table(direct_allreduce(4))
    assert text.count("segment 0 from 1, 2, 3\n") == 1
    assert text.count("3 messages\n") == 4


def test_titles():
    assert table(ring_allreduce(1)).startswith("ring allreduce, 1 rank\n")
    first = table(written("tree broadcast, last root", 3)).split("\n")[0]
    assert first == "tree broadcast, 3 ranks, root 2"
    first = table(ring_allgather(3, 2)).split("\n")[0]
    assert first == "ring allgather, 3 ranks, offset 2"


def test_legends_say_what_is_used():
    def legend(schedule):
        return table(schedule).split("\n\n")[-1].split("\n")

    finished = "*: a finished result"
    run = "b0..a0: b0 + c0 + ... + a0, neighbours in the ring"
    group = "{...}: the sum of these, combined in another order or with brackets"
    assert legend(ring_reduce_scatter(8)) == [finished, run]
    assert legend(ring_allreduce(4)) == [finished]
    assert legend(written("halving-doubling allreduce", 8)) == [finished, run, group]
    assert legend(ring_allgather(3))[0].startswith("step 2")


def test_data_that_only_moves_carries_its_senders_letter():
    assert table(ring_allgather(2)).split("\n\n")[-1] == (
        "step 1  segment 0  segment 1  received\n"
        "rank 0  a0         b1         segment 1 from 1\n"
        "rank 1  a0         b1         segment 0 from 0"
    )
    assert "c0" in table(written("tree broadcast, last root", 3))


# ---- SVG ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", EXAMPLES)
def test_pictures_are_whole(name):
    """Valid XML with one arrow and one tip for each message and one text for each value held."""
    schedule = EXAMPLES[name]
    text = svg(schedule)
    assert len(text) < 800_000
    root = ElementTree.fromstring(text)
    assert root.tag == SVG + "svg"
    found = frames(schedule)
    messages = sum(len(frame.messages) for frame in found)
    classes = [(item.get("class") or "").split() for item in root.iter(SVG + "path")]
    assert sum("arrow" in c or "done" in c for c in classes) == messages
    assert sum("arrow-tip" in c or "done-tip" in c for c in classes) == messages
    values = sum(v is not None for f in found for row in f.cells for v in row)
    cells = [t for t in root.iter(SVG + "text") if "cell" in (t.get("class") or "")]
    assert len(cells) == values
    assert len(list(root.iter(SVG + "circle"))) == schedule.size * len(found)


def test_coordinates_stay_on_the_page():
    for schedule in EXAMPLES.values():
        root = ElementTree.fromstring(svg(schedule))
        width, height = float(root.get("width", 0)), float(root.get("height", 0))
        for group in root.iter(SVG + "g"):
            x, y = map(float, group.get("transform", "")[10:-1].split())
            for circle in group.iter(SVG + "circle"):
                assert 0 < x + float(circle.get("cx", 0)) < width
                assert 0 < y + float(circle.get("cy", 0)) < height


def test_every_class_has_a_style_and_dark_pages_have_theirs():
    for schedule in EXAMPLES.values():
        text = svg(schedule)
        style = text[text.index("<style>") : text.index("</style>")]
        used = {
            name
            for item in ElementTree.fromstring(text).iter()
            for name in (item.get("class") or "").split()
        }
        assert all(f".{name} {{" in style for name in used)
        assert "prefers-color-scheme: dark" in style


def test_colours_are_by_the_number_of_contributions():
    text = svg(ring_allreduce(4))
    assert ".of1 { fill: #eff6ff" in text and ".of3 { fill: #" in text
    assert ".of4" not in text
    assert ".of8 { fill: #60a5fa" in svg(waits_before_it_finishes(8))
    # The first step: 12 cells of one contribution, 4 of two, and these framed.
    panel = text.split('<g transform="')[2]
    boxes = {
        name: panel.split(f'<path class="{name}" d="')[1].split('"')[0].count("M")
        for name in ("of1", "of2", "changed")
    }
    assert boxes == {"of1": 12, "of2": 4, "changed": 4}


def waits_before_it_finishes(size):
    """The root has the whole sum in round 1 and finishes it in round 2."""
    steps = [[Step((Send(0, 0),))] for _ in range(size)]
    steps[0] = [
        Step((), tuple(Receive(rank, 0) for rank in range(1, size))),
        Step((Send(1, 0),)),
        Step(finishes=(0,)),
    ]
    steps[1].append(Step((), (Receive(0, 0, Action.STORE),)))
    return from_steps("reduce", steps, root=0, segments=1)


def test_names_are_escaped():
    hostile = from_steps("allgather", [[]], algorithm="<a & b>")
    assert "&lt;a &amp; b&gt;" in svg(hostile)
    ElementTree.fromstring(svg(hostile))
