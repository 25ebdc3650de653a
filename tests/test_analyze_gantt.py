"""The grid of a chart, the glyphs it is drawn with, and tables: pure, no log and no database."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from analyze.compare import comparison, letter
from analyze.gantt import Bar, Chart, Lane, cells, ticks
from analyze.glyphs import SETS, choose
from analyze.terminal import Column, Paper, gantt, shown_width, table
from analyze.told import loss_sentences


def chart(lanes, end=1_000_000):
    return Chart(0, 0, 1, 1, 0, end, 1, 1, "ok", lanes)


def test_a_cell_shows_what_took_most_of_it():
    bars = [Bar("push", 0, 240), Bar("train", 240, 700), Bar("wait", 700, 1000)]
    assert cells(bars, 0, 1000, 10) == ["push"] * 2 + ["train"] * 5 + ["wait"] * 3


def test_a_span_shorter_than_a_cell_shows_and_hides_no_other():
    bars = [Bar("push", 0, 1), Bar("train", 1, 990), Bar("pull", 990, 991), Bar("wait", 991, 1000)]
    assert cells(bars, 0, 1000, 10) == ["push"] + ["train"] * 8 + ["pull"]


def test_nothing_where_nothing_was():
    assert cells([Bar("aggregate", 500, 1000)], 0, 1000, 4) == [None, None, "aggregate", "aggregate"]
    assert cells([], 5, 5, 3) == [None] * 3


@given(st.lists(st.integers(1, 1000), min_size=1, max_size=8), st.integers(12, 60))
def test_every_span_shows_where_there_is_room(lengths, width):
    states = ["push", "train", "pull", "dead", "eval", "aggregate", "push", "train"]
    bars, at = [], 0
    for state, length in zip(states, lengths, strict=False):
        bars.append(Bar(state, at, at + length))
        at += length
    row = cells(bars, 0, at, width)
    assert len(row) == width
    assert {bar.state for bar in bars} <= set(row)


@given(st.floats(1e-6, 1e7), st.integers(1, 20))
def test_ticks_are_few_rising_and_inside(seconds, most):
    at, decimals = ticks(seconds, most)
    assert len(at) <= most + 1
    assert at[0] == 0
    assert at == sorted(set(at))
    assert at[-1] <= seconds * (1 + 1e-9)
    assert 0 <= decimals <= 6


@given(st.integers(20, 200), st.integers(1, 40), st.floats(1e-6, 1e6))
def test_no_line_is_wider_than_the_paper(width, workers, seconds):
    end = max(int(seconds * 1e6), 1)
    lanes = [Lane(None, [Bar("aggregate", 0, end)])]
    lanes += [Lane(rank, [Bar("train", 0, end // 2), Bar("wait", end // 2, end)]) for rank in range(workers)]
    made = list(gantt([chart(lanes, end)], Paper(width, SETS["blocks"]), workers=8))
    assert max(map(len, made)) <= width
    assert any("more" in line for line in made) == (workers > 8)


@pytest.mark.parametrize(
    ("encoding", "name"),
    [
        ("utf-8", "blocks"),
        ("cp437", "shades"),
        ("cp1252", "ascii"),
        ("ascii", "ascii"),
        (None, "ascii"),
        ("no", "ascii"),
    ],
)
def test_glyphs_are_those_the_output_can_encode(monkeypatch, encoding, name):
    monkeypatch.setenv("LC_ALL", "C.UTF-8")
    assert choose("auto", encoding) is SETS[name]
    "".join(choose("auto", encoding).values()).encode("utf-8" if encoding in {None, "no"} else encoding)


def test_east_asian_terminals_get_glyphs_of_certain_width(monkeypatch):
    monkeypatch.setenv("LC_ALL", "ja_JP.UTF-8")
    assert choose("auto", "utf-8") is SETS["braille"]


@pytest.mark.parametrize("name", SETS)
def test_states_are_told_apart_without_colour(name):
    states = [glyph for key, glyph in SETS[name].items() if key not in {"axis", "tick"}]
    assert len(set(states)) == len(states) == 8
    assert all(len(glyph) == 1 for glyph in SETS[name].values())


def test_a_table_folds_and_never_cuts():
    made = list(
        table([Column("a"), Column("b", wrap=True)], [["1", "word " * 20], ["2", "x" * 50]], width=30)
    )
    assert max(map(shown_width, made)) <= 30
    assert "".join(made).count("word") == 20
    assert "".join(line.strip() for line in made).count("x") == 50


def test_what_came_from_a_log_is_printed_without_control_characters():
    (_, _, row) = table([Column("a")], [["\x1b[31mred\u202e\x00\n"]])
    assert row == "[31mred"


def test_a_comparison_is_to_the_first():
    keys = (
        "push_s",
        "train_s",
        "pull_s",
        "aggregate_s",
        "eval_s",
        "total_s",
        "bytes_up",
        "bytes_down",
        "survivors",
    )
    first, second = dict.fromkeys(keys, 2.0), dict.fromkeys(keys, 3.0) | {"eval_s": None}
    made = comparison([first, second], [{"acc": {"value": -0.5}}, {"acc": {"value": -0.25}}])
    rows = {row[0]: row[1:] for row in made.rows}
    assert rows["total (s)"] == ["2.000", "3.000", "+1.000", "+50.0"]
    assert rows["eval (s)"] == ["2.000", "-", "-", "-"]
    assert rows["last acc"] == ["-0.5", "-0.25", "+0.25", "+50.0"]
    assert [letter(i) for i in (0, 25, 26, 52)] == ["A", "Z", "AA", "BA"]


@given(
    st.lists(
        st.tuples(st.sampled_from(["push", "train", "pull", "wait"]), st.integers(1, 10_000)), min_size=1
    )
)
def test_cells_are_in_the_order_of_the_spans(parts: list[tuple[str, int]]):
    bars, at = [], 0
    for state, length in parts:
        bars.append(Bar(state, at, at + length))
        at += length
    shown = cells(bars, 0, at, 40)
    collapsed = [state for i, state in enumerate(shown) if i == 0 or shown[i - 1] != state]
    told = iter(bar.state for bar in bars)
    assert all(any(state == other for other in told) for state in collapsed)


def test_losses_that_come_again_and_again_are_told_once():
    def loss(round_: int | None, rank: int | None, text: str, what: str = "left") -> dict[str, object]:
        return {
            "round": round_,
            "attempt": 1,
            "tries": 1,
            "rank": rank,
            "what": what,
            "text": text,
            "duration_s": None,
        }

    many = [loss(round_, 7, "cut off") for round_ in (4, 5, 6, 6)]
    losses = [loss(3, 7, "other"), many[0], loss(4, 8, "cut off"), *many[1:], loss(9, 8, "cut off")]
    assert loss_sentences(losses) == [
        "round 3, w7: left: other",
        "rounds 4 to 6, w7: left: cut off (4 times)",
        "round 4, w8: left: cut off",
        "round 9, w8: left: cut off",
    ]
    whole = [loss(round_, None, "quorum missed", "round failed") for round_ in range(3)]
    assert len(loss_sentences(whole)) == 3
