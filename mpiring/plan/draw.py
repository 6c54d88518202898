"""The lecture's picture of any schedule: which rank holds which sum after each step, text and SVG.

Both are drawn from :func:`~mpiring.plan.frames.frames`, which also says what a round is and how a sum
is written.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import cos, hypot, pi, sin
from xml.sax.saxutils import escape

from .frames import Frame, Message, frames, value_name
from .schedules import Form, Schedule
from .symbolic import Value

FULL_WIDTH = 100  # sums are abbreviated where the table would be wider, in characters

# ---- text -----------------------------------------------------------------------------------------


def table(schedule: Schedule) -> str:
    """The schedule as text: for each round a row for each rank, a column for each segment.

    >>> from mpiring.plan.schedules import ring_allreduce
    >>> print(table(ring_allreduce(4)))
    ring allreduce, 4 ranks
    <BLANKLINE>
    start   segment 0     segment 1     segment 2     segment 3
    rank 0  a0            a1            a2            a3
    rank 1  b0            b1            b2            b3
    rank 2  c0            c1            c2            c3
    rank 3  d0            d1            d2            d3
    <BLANKLINE>
    step 1  segment 0     segment 1     segment 2     segment 3     received
    rank 0  a0            a1            d2+a2         a3            segment 2 from 3
    rank 1  b0            b1            b2            a3+b3         segment 3 from 0
    rank 2  b0+c0         c1            c2            c3            segment 0 from 1
    rank 3  d0            c1+d1         d2            d3            segment 1 from 2
    <BLANKLINE>
    step 2  segment 0     segment 1     segment 2     segment 3     received
    rank 0  a0            c1+d1+a1      d2+a2         a3            segment 1 from 3
    rank 1  b0            b1            d2+a2+b2      a3+b3         segment 2 from 0
    rank 2  b0+c0         c1            c2            a3+b3+c3      segment 3 from 1
    rank 3  b0+c0+d0      c1+d1         d2            d3            segment 0 from 2
    <BLANKLINE>
    step 3  segment 0     segment 1     segment 2     segment 3     received
    rank 0  b0+c0+d0+a0*  c1+d1+a1      d2+a2         a3            segment 0 from 3
    rank 1  b0            c1+d1+a1+b1*  d2+a2+b2      a3+b3         segment 1 from 0
    rank 2  b0+c0         c1            d2+a2+b2+c2*  a3+b3+c3      segment 2 from 1
    rank 3  b0+c0+d0      c1+d1         d2            a3+b3+c3+d3*  segment 3 from 2
    <BLANKLINE>
    step 4  segment 0     segment 1     segment 2     segment 3     received
    rank 0  b0+c0+d0+a0*  c1+d1+a1      d2+a2         a3+b3+c3+d3*  segment 3 from 3
    rank 1  b0+c0+d0+a0*  c1+d1+a1+b1*  d2+a2+b2      a3+b3         segment 0 from 0
    rank 2  b0+c0         c1+d1+a1+b1*  d2+a2+b2+c2*  a3+b3+c3      segment 1 from 1
    rank 3  b0+c0+d0      c1+d1         d2+a2+b2+c2*  a3+b3+c3+d3*  segment 2 from 2
    <BLANKLINE>
    step 5  segment 0     segment 1     segment 2     segment 3     received
    rank 0  b0+c0+d0+a0*  c1+d1+a1      d2+a2+b2+c2*  a3+b3+c3+d3*  segment 2 from 3
    rank 1  b0+c0+d0+a0*  c1+d1+a1+b1*  d2+a2+b2      a3+b3+c3+d3*  segment 3 from 0
    rank 2  b0+c0+d0+a0*  c1+d1+a1+b1*  d2+a2+b2+c2*  a3+b3+c3      segment 0 from 1
    rank 3  b0+c0+d0      c1+d1+a1+b1*  d2+a2+b2+c2*  a3+b3+c3+d3*  segment 1 from 2
    <BLANKLINE>
    step 6  segment 0     segment 1     segment 2     segment 3     received
    rank 0  b0+c0+d0+a0*  c1+d1+a1+b1*  d2+a2+b2+c2*  a3+b3+c3+d3*  segment 1 from 3
    rank 1  b0+c0+d0+a0*  c1+d1+a1+b1*  d2+a2+b2+c2*  a3+b3+c3+d3*  segment 2 from 0
    rank 2  b0+c0+d0+a0*  c1+d1+a1+b1*  d2+a2+b2+c2*  a3+b3+c3+d3*  segment 3 from 1
    rank 3  b0+c0+d0+a0*  c1+d1+a1+b1*  d2+a2+b2+c2*  a3+b3+c3+d3*  segment 0 from 2
    <BLANKLINE>
    *: a finished result

    The lecture's slides end one rank earlier; the last round of its reduce-scatter:

    >>> from mpiring.plan.schedules import ring_reduce_scatter
    >>> print(table(ring_reduce_scatter(4, offset=1)).split("\\n\\n")[-2])
    step 3  segment 0     segment 1     segment 2     segment 3     received
    rank 0  a0            b1+c1+d1+a1*  c2+d2+a2      d3+a3         segment 1 from 3
    rank 1  a0+b0         b1            c2+d2+a2+b2*  d3+a3+b3      segment 2 from 0
    rank 2  a0+b0+c0      b1+c1         c2            d3+a3+b3+c3*  segment 3 from 1
    rank 3  a0+b0+c0+d0*  b1+c1+d1      c2+d2         d3            segment 0 from 2

    Raises:
        ScheduleError: where the schedule is broken.
        ValueError: if it is too large to look at.
    """
    shown = frames(schedule)
    lines = _lines(schedule, shown, short=False)
    if max(map(len, lines)) > FULL_WIDTH:
        lines = _lines(schedule, shown, short=True)
    return "\n".join([_title(schedule), *lines, *_legend(lines)])


def _title(schedule: Schedule) -> str:
    root = "" if schedule.root is None else f", root {schedule.root}"
    offset = f", offset {schedule.offset}" if schedule.offset else ""
    ranks = "1 rank" if schedule.size == 1 else f"{schedule.size} ranks"
    return f"{schedule.algorithm} {schedule.collective}, {ranks}{root}{offset}"


def _lines(schedule: Schedule, shown: Sequence[Frame], *, short: bool) -> list[str]:
    """The rows as strings, with columns as wide as their widest cell."""
    word = "s" if short else "segment "
    heads = [f"{word}{segment}" for segment in range(schedule.segments)]
    rows: list[list[str]] = []
    for frame in shown:
        start = frame.round == 0
        label = "start" if start else f"step {frame.round}"
        rows += [[], [label, *heads, "" if start else "received"]]
        for rank, cells in enumerate(frame.cells):
            names = [
                value_name(schedule, s, value, short=short)
                for s, value in enumerate(cells)
            ]
            rows.append([f"rank {rank}", *names, _received(frame, rank, word)])
    widths = [max(map(len, column)) for column in zip(*filter(None, rows))]
    return [
        "  ".join(text.ljust(width) for text, width in zip(row, widths)).rstrip()
        for row in rows
    ]


def _received(frame: Frame, rank: int, word: str) -> str:
    """The messages a rank received in a round: ``segment 2 from 3``."""
    sources: dict[int, list[str]] = {}
    for message in frame.messages:
        if message.dest == rank:
            sources.setdefault(message.segment, []).append(str(message.source))
    total = sum(map(len, sources.values()))
    if total > 3 or len(sources) > 2:
        return f"{total} messages"
    return "; ".join(
        f"{word}{segment} from {', '.join(ranks)}" for segment, ranks in sources.items()
    )


def _legend(lines: Sequence[str]) -> list[str]:
    """What the signs used in the table mean."""
    text = "\n".join(lines)
    notes = [
        note
        for sign, note in (
            ("*", "*: a finished result"),
            ("..", "b0..a0: b0 + c0 + ... + a0, neighbours in the ring"),
            (
                "{",
                "{...}: the sum of these, combined in another order or with brackets",
            ),
        )
        if sign in text
    ]
    return ["", *notes] if notes else []


# ---- SVG ------------------------------------------------------------------------------------------

LEGEND = "colour: number of contributions; green, *: result; framed: changed"

_CHARACTER = 7  # pixels of a monospaced character at 11 px
_TITLE_CHARACTER = 10  # at 15 px, bold
_ROW = 22  # pixels
_NODE = 12  # radius of a rank in the ring, pixels
_BEND = 0.16  # of an arrow, as a part of its length
_EMPTY, _CHANGED = "empty", "changed"

_STYLE = """
text { font: 11px ui-monospace, Menlo, Consolas, monospace; fill: #1f2937 }
.page { fill: #ffffff }
.title { font-size: 15px; font-weight: bold }
.head { font-weight: bold }
.mid { text-anchor: middle }
.node { fill: #e5e7eb; stroke: #6b7280 }
.arrow { fill: none; stroke: #2563eb; stroke-width: 1.5 }
.arrow-tip { fill: #2563eb }
.done { fill: none; stroke: #15803d; stroke-width: 1.5 }
.done-tip { fill: #15803d }
.thin { stroke-width: 0.6 }
.empty { fill: none; stroke: #9ca3af; stroke-dasharray: 2 2 }
.changed { fill: none; stroke: #b45309; stroke-width: 2 }
.result { fill: #86efac; stroke: #ffffff }
.cell { fill: #111827 }
@media (prefers-color-scheme: dark) {
  text { fill: #e5e7eb }
  .page { fill: #111827 }
  .node { fill: #374151; stroke: #9ca3af }
  .arrow { stroke: #93c5fd }
  .arrow-tip { fill: #93c5fd }
  .done { stroke: #4ade80 }
  .done-tip { fill: #4ade80 }
  .changed { stroke: #fbbf24 }
  .cell { fill: #111827 }
}
"""


def svg(schedule: Schedule) -> str:
    """The schedule as a picture: for each round the ring with its messages (an arrow names its segment,
    a green one carries a result), and the table beside it.

    A cell's colour says how many contributions are in it, green is a finished result, and a frame is
    around what has just changed.  Readable on a light and on a dark page.

    >>> from mpiring.plan.schedules import ring_allreduce
    >>> svg(ring_allreduce(4)).count('class="arrow"')
    12

    Raises:
        ScheduleError: where the schedule is broken.
        ValueError: if it is too large to look at.
    """
    shown = frames(schedule)
    short = max(map(len, _lines(schedule, shown, short=False))) > FULL_WIDTH
    names = [
        [
            [
                value_name(schedule, s, value, short=short)
                for s, value in enumerate(cells)
            ]
            for cells in frame.cells
        ]
        for frame in shown
    ]
    longest = max(len(name) for rows in names for row in rows for name in row)
    panel = _Panel(schedule, int(max(3, longest) * _CHARACTER + 12))
    across = 1 if len(shown) < 3 else 2
    down = -(-len(shown) // across)
    title = _title(schedule)
    words = max(len(title) * _TITLE_CHARACTER, len(LEGEND) * _CHARACTER) + 40
    width = max(across * panel.width + 20, words)
    height = down * panel.height + 70
    counts = {
        value[0].bit_count()
        for frame in shown
        for row in frame.cells
        for value in row
        if value is not None and value[1] is not Form.RESULT
    }
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" role="img">',
        f"<title>{escape(title)}</title>",
        "<style>",
        _STYLE.strip(),
        *(
            f".of{n} {{ fill: {_shade(n, schedule.size)}; stroke: #ffffff }}"
            for n in sorted(counts)
        ),
        "</style>",
        f'<rect class="page" width="{width}" height="{height}"/>',
        f'<text class="title" x="20" y="30">{escape(title)}</text>',
    ]
    for number, frame in enumerate(shown):
        before = shown[max(0, number - 1)]
        x, y = number % across * panel.width + 20, number // across * panel.height + 50
        parts.append(f'<g transform="translate({x} {y})">')
        parts += panel.draw(frame, before, names[number])
        parts.append("</g>")
    parts.append(f'<text x="20" y="{height - 8}">{LEGEND}</text>')
    parts.append("</svg>")
    return "\n".join(parts) + "\n"


def _shade(contributions: int, size: int) -> str:
    """From nearly white (one) to blue (all); dark text is readable on each."""
    part = (contributions - 1) / max(1, size - 1)
    ends = zip((0xEF, 0xF6, 0xFF), (0x60, 0xA5, 0xFA))
    return "#" + "".join(f"{round(a + (b - a) * part):02x}" for a, b in ends)


class _Panel:
    """One round: geometry of the ring and of the table."""

    def __init__(self, schedule: Schedule, cell: int) -> None:
        size = schedule.size
        self.cell = cell
        self.segments = schedule.segments
        radius = max(44.0, size * 7.0)
        self.middle = radius + _NODE + 16
        self.table = int(2 * self.middle + 74)
        self.width = self.table + self.segments * cell + 24
        self.height = int(max(2 * self.middle, (size + 1) * _ROW)) + 36
        self.nodes = [
            (
                self.middle + radius * sin(2 * pi * rank / size),
                self.middle - radius * cos(2 * pi * rank / size) + 8,
            )
            for rank in range(size)
        ]

    def draw(
        self, frame: Frame, before: Frame, names: Sequence[Sequence[str]]
    ) -> list[str]:
        """The panel's elements."""
        label = f"step {frame.round}" if frame.round else "start"
        parts = [f'<text class="head" x="0" y="10">{label}</text>']
        many = len(frame.messages) > 2 * len(self.nodes)
        for message in frame.messages:
            parts += self._arrow(message, many)
        for rank, (x, y) in enumerate(self.nodes):
            parts.append(
                f'<circle class="node" cx="{x:.0f}" cy="{y:.0f}" r="{_NODE}"/>'
            )
            parts.append(f'<text class="mid" x="{x:.0f}" y="{y + 4:.0f}">{rank}</text>')
        return parts + self._cells(frame, before, names)

    def _arrow(self, message: Message, many: bool) -> list[str]:
        """A message, bent to its left so that two ranks' swap shows as two arrows."""
        (x0, y0), (x1, y1) = self.nodes[message.source], self.nodes[message.dest]
        dx, dy = x1 - x0, y1 - y0
        xm, ym = (x0 + x1) / 2 + dy * _BEND, (y0 + y1) / 2 - dx * _BEND
        start, end = _towards(x0, y0, xm, ym, _NODE), _towards(x1, y1, xm, ym, _NODE)
        # The tip is drawn by hand: not every viewer turns a marker along its path.
        long, wide = (5, 2) if many else (8, 3.5)
        back = _towards(*end, xm, ym, long)
        across = (end[1] - back[1]) * wide / long, (back[0] - end[0]) * wide / long
        kind = "done" if message.form is Form.RESULT else "arrow"
        parts = [
            f'<path class="{kind}{" thin" if many else ""}" '
            f'd="M{start[0]:.1f} {start[1]:.1f}Q{xm:.1f} {ym:.1f} {back[0]:.1f} {back[1]:.1f}"/>',
            f'<path class="{kind}-tip" d="M{end[0]:.1f} {end[1]:.1f}'
            f"L{back[0] + across[0]:.1f} {back[1] + across[1]:.1f}"
            f'L{back[0] - across[0]:.1f} {back[1] - across[1]:.1f}z"/>',
        ]
        if not many:
            # The curve's middle is half way to its control point; the label stands 9 pixels off it.
            off = _BEND / 2 + 9 / hypot(dx, dy)
            x, y = (x0 + x1) / 2 + dy * off, (y0 + y1) / 2 - dx * off + 4
            parts.append(
                f'<text class="mid" x="{x:.0f}" y="{y:.0f}">{message.segment}</text>'
            )
        return parts

    def _cells(
        self, frame: Frame, before: Frame, names: Sequence[Sequence[str]]
    ) -> list[str]:
        # One path for all cells of a colour: a large picture stays small as a file.
        shapes: dict[str, list[str]] = {}
        texts = [f'<text class="head" x="{self.table - 58}" y="10">segment</text>']
        for segment in range(self.segments):
            x = self.table + segment * self.cell + self.cell // 2
            texts.append(f'<text class="head mid" x="{x}" y="10">{segment}</text>')
        for rank, row in enumerate(frame.cells):
            y = 16 + rank * _ROW
            texts.append(f'<text x="{self.table - 58}" y="{y + 15}">rank {rank}</text>')
            for segment, value in enumerate(row):
                x = self.table + segment * self.cell
                box = f"M{x} {y}h{self.cell}v{_ROW}h-{self.cell}z"
                # Inside its place, since two dashed lines on each other look like none.
                empty = f"M{x + 2} {y + 2}h{self.cell - 4}v{_ROW - 4}h{4 - self.cell}z"
                kind = _kind(value)
                shapes.setdefault(kind, []).append(empty if kind == _EMPTY else box)
                if value != before.cells[rank][segment]:
                    shapes.setdefault(_CHANGED, []).append(box)
                if value is not None:
                    texts.append(
                        f'<text class="cell mid" x="{x + self.cell // 2}" y="{y + 15}">'
                        f"{escape(names[rank][segment])}</text>"
                    )
        paths = [
            f'<path class="{kind}" d="{"".join(boxes)}"/>'
            for kind, boxes in sorted(
                shapes.items(), key=lambda item: item[0] == _CHANGED
            )
        ]
        return paths + texts


def _kind(value: Value | None) -> str:
    if value is None:
        return _EMPTY
    return "result" if value[1] is Form.RESULT else f"of{value[0].bit_count()}"


def _towards(
    x0: float, y0: float, x1: float, y1: float, distance: float
) -> tuple[float, float]:
    """The point that is ``distance`` away from the first point, in the direction of the second."""
    part = distance / hypot(x1 - x0, y1 - y0)
    return x0 + (x1 - x0) * part, y0 + (y1 - y0) * part
