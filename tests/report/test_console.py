import contextlib
import io
import math
import os
import re
import sys

import pytest
from report.screen import Screen

from jaxtrain.report.console import (
    PlainConsole,
    Progress,
    duration,
    loss_text,
    open_console,
    percent,
    speed_text,
)
from jaxtrain.report.terminal import TerminalConsole


def progress(step, total_steps=4690, **values):
    known = {"loss": 0.25, "accuracy": 0.5, "images_per_second": 61234.5, "seconds_left": 67.0}
    return Progress(step=step, total_steps=total_steps, **{**known, **values})


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0.0000"),
        (2.30259, "2.3026"),
        (0.00099, "0.00099"),
        (1e-7, "1e-07"),
        (12345, "1.23e+04"),
        (None, "nan"),
        (math.nan, "nan"),
        (math.inf, "inf"),
    ],
)
def test_loss_text(value, text):
    assert loss_text(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(1, "100.00 %"), (0.99999, "99.99 %"), (0.9843, "98.43 %"), (0.05, " 5.00 %"), (None, "nan")],
)
def test_percent(value, text):
    assert percent(value) == text


@pytest.mark.parametrize(("value", "text"), [(61234.5, "61,234"), (12.6, "13"), (0.123, "0.12")])
def test_speed_text(value, text):
    assert speed_text(value) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.4, "0:00"), (59.6, "1:00"), (3723, "1:02:03"), (2 * 86400 + 3723, "2d 01:02:03")],
)
def test_duration(seconds, text):
    assert duration(seconds) == text


@pytest.mark.parametrize("term", ["dumb", "", "unknown", None])
def test_a_terminal_that_cannot_move_its_cursor_gets_plain_lines(monkeypatch, clock, term):
    monkeypatch.delenv("TERM", raising=False)
    if term is not None:
        monkeypatch.setenv("TERM", term)
    assert isinstance(open_console(Screen(80), clock), PlainConsole)


def test_a_file_gets_plain_lines_and_a_terminal_a_bar(monkeypatch, clock):
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert isinstance(open_console(io.StringIO(), clock), PlainConsole)
    console = open_console(Screen(80), clock)
    assert isinstance(console, TerminalConsole)
    console.close()


class TestPlain:
    @pytest.fixture
    def stream(self):
        return io.StringIO()

    @pytest.fixture
    def console(self, stream, clock):
        return open_console(stream, clock)

    def test_lines(self, console, stream):
        console.message("[bold] hello :smile:")
        console.train(progress(100))
        console.evaluation(469, "test", {"loss": 0.0612, "accuracy": 0.9843, "count": 10000}, 4690)
        console.evaluation(469, "holdout", {"loss": None, "accuracy": 1.0})
        assert stream.getvalue().splitlines() == [
            "[bold] hello :smile:",
            "step   100/4,690  train  loss 0.2500  accuracy 50.00 %  61,234 images/s  1:07 left",
            "step   469/4,690  test   loss 0.0612  accuracy 98.43 %  10,000 examples",
            "step 469  holdout  loss nan  accuracy 100.00 %",
        ]

    def test_train_lines_are_the_first_the_last_and_one_every_ten_seconds(
        self, console, stream, clock
    ):
        for step in range(100, 4691, 10):
            console.train(progress(step))
            clock.sleep(0.125)
        console.close()
        shown = re.findall(r"step +([\d,]+)/", stream.getvalue())
        assert shown == ["100", "900", "1,700", "2,500", "3,300", "4,100", "4,690"]

    def test_a_run_that_stops_early_shows_its_last_report(self, console, stream):
        console.train(progress(100))
        console.train(progress(110))
        console.close()
        assert re.findall(r"step +([\d,]+)/", stream.getvalue()) == ["100", "110"]
        assert "left" not in stream.getvalue().splitlines()[-1]

    def test_no_report_comes_after_a_later_evaluation(self, console, stream):
        console.train(progress(100))
        console.train(progress(110))
        console.evaluation(115, "test", {"loss": 0.0612, "accuracy": 0.9843}, 4690)
        console.close()
        assert re.findall(r"step +([\d,]+)/", stream.getvalue()) == ["100", "115"]

    def test_only_a_long_pause_is_worth_a_line(self, console, stream, clock):
        for long in (False, True):
            console.pause("evaluate")
            for done in range(1, 26):
                clock.sleep(1 if long else 0.1)
                console.batches("evaluate", done, 25)
            console.unpause()
        lines = stream.getvalue().splitlines()
        assert lines == ["evaluate  10/25 batches", "evaluate  20/25 batches"]

    def test_nothing_is_due(self, console):
        assert console.due == math.inf


def test_a_reader_that_is_gone_does_not_end_the_run(clock):
    read_end, write_end = os.pipe()
    os.close(read_end)
    stream = os.fdopen(write_end, "w")
    console = open_console(stream, clock)
    console.message("one")
    console.message("two")
    console.close()
    # What could not be written is still in the stream's buffer.
    with pytest.raises(BrokenPipeError):
        stream.close()


class TestTerminal:
    @pytest.fixture
    def show(self, clock, monkeypatch):
        """Opens a console on a screen of some width. (In the test: pytest swaps sys.stderr.)"""
        monkeypatch.setenv("TERM", "xterm-256color")
        monkeypatch.delenv("NO_COLOR", raising=False)
        with contextlib.ExitStack() as at_end:

            def opened(width=80):
                monkeypatch.setenv("COLUMNS", str(width))
                screen = Screen(width)
                console = open_console(screen, clock)
                at_end.callback(console.close)
                return console, screen

            yield opened

    @pytest.mark.parametrize(
        ("width", "done", "rest", "words"),
        [
            (
                120,
                10,
                30,
                "  1,234/4,690  loss 0.2500  accuracy 50.00 %  61,234 images/s  1:07 left",
            ),
            (80, 3, 12, "  1,234/4,690  loss 0.2500  acc 50.00 %  61,234 img/s  1:07 left"),
            (60, 4, 14, "  1,234/4,690  loss 0.2500  50.00 %  1:07"),
            (40, 0, 0, "1,234/4,690  loss 0.2500  50.00 %  1:07"),
            (39, 0, 0, "1,234/4,690  0.2500  50.00 %  1:07"),
            (20, 0, 0, "1,234/4,690  0.2500"),
            (5, 0, 0, "1,23"),
        ],
    )
    def test_the_bar_fits(self, show, width, done, rest, words):
        console, screen = show(width)
        console.tick(progress(1234))
        assert screen.lines == ["━" * done + "─" * rest + words]
        assert screen.cursor == (0, 0)

    def test_before_the_first_report_there_are_only_steps(self, show):
        console, screen = show()
        console.tick(Progress(step=0, total_steps=50))
        assert screen.lines == ["─" * 40 + "   0/50"]

    def test_lasting_lines_are_above_the_bar(self, show):
        console, screen = show()
        console.message("[bold] hello " + "x" * 100)
        console.tick(progress(1234))
        console.evaluation(1234, "test", {"loss": 0.5, "accuracy": 0.5, "count": 10}, 4690)
        print("a warning", file=sys.stderr)
        *above, bar = screen.lines
        assert above == [
            "[bold] hello " + "x" * 100,
            "step 1,234/4,690  test   loss 0.5000  accuracy 50.00 %  10 examples",
            "a warning",
        ]
        assert bar.startswith("━━━───")
        assert screen.cursor == (3, 0)

    def test_a_pause_is_named_and_a_long_one_has_a_bar_of_its_own(self, show, clock):
        console, screen = show()
        console.tick(progress(1234))
        console.pause("evaluate")
        assert screen.lines[0].endswith("loss 0.2500  accuracy 50.00 %  evaluate")
        console.batches("evaluate", 1, 20)
        assert len(screen.lines) == 1
        clock.sleep(0.6)
        console.batches("evaluate", 5, 20)
        assert screen.lines[1] == "━" * 10 + "─" * 30 + "  5/20 batches  evaluate"
        assert screen.cursor == (0, 0)
        console.evaluation(1234, "test", {"accuracy": 0.5}, 4690)
        console.unpause()
        console.tick(progress(1235))
        assert len(screen.lines) == 2
        assert screen.lines[0] == "step 1,234/4,690  test   accuracy 50.00 %"
        assert screen.lines[1].endswith("1:07 left")

    def test_it_is_drawn_at_most_ten_times_a_second(self, show, clock):
        console, _ = show()
        drawn = 0
        for step in range(1000):
            clock.sleep(0.002)
            if clock() >= console.due:
                console.tick(progress(step))
                drawn += 1
        assert 19 <= drawn <= 21

    def test_batches_are_drawn_at_most_ten_times_a_second(self, show, clock):
        console, screen = show()
        console.pause("evaluate")
        screen.writes = 0
        for done in range(1000):
            clock.sleep(0.002)
            console.batches("evaluate", done, 1000)
        assert 10 <= screen.writes <= 21

    def test_closing_leaves_a_clean_line_and_the_last_report(self, show):
        console, screen = show()
        console.train(progress(1234))
        console.tick(progress(1300))
        console.close()
        assert screen.lines == [
            "step 1,234/4,690  train  loss 0.2500  accuracy 50.00 %  61,234 images/s",
            "",
        ]
        assert screen.cursor == (1, 0)

    def test_no_report_comes_after_a_later_evaluation(self, show):
        console, screen = show()
        console.train(progress(110))
        console.evaluation(115, "test", {"loss": 0.0612, "accuracy": 0.9843}, 4690)
        console.close()
        assert screen.lines == ["step   115/4,690  test   loss 0.0612  accuracy 98.43 %", ""]

    def test_the_last_report_is_shown_once(self, show):
        console, screen = show()
        console.train(progress(4690))
        console.close()
        assert len(screen.lines) == 2

    def test_names_do_not_steer_it(self, show):
        console, screen = show()
        console.evaluation(3, "a\x1b[2Jb", {"loss": 0.5, "accuracy": 0.5}, 9)
        console.message("c\x1b[2Jd\ne")
        console.close()
        shown = "\n".join(screen.lines)
        assert r"a\x1b[2Jb" in shown
        assert r"c\x1b[2Jd\ne" in shown

    def test_the_cursor_is_never_hidden(self, show):
        console, screen = show()
        console.tick(progress(1234))
        console.close()
        assert "\x1b[?25l" not in screen.getvalue()


def test_no_color_has_no_colors(clock, monkeypatch):
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "100")
    codes = {}
    for setting in ("", "1"):
        monkeypatch.setenv("NO_COLOR", setting)
        screen = Screen(100)
        console = open_console(screen, clock)
        console.tick(progress(1234))
        console.close()
        codes[setting] = set(re.findall(r"\x1b\[([\d;]*)m", screen.getvalue()))
    assert "32" in codes[""]
    assert codes["1"] <= {"0", "1", "2"}


def test_a_terminal_without_unicode_gets_ascii(clock, monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "60")
    screen = Screen(60)
    screen.encoding = "ascii"
    console = open_console(screen, clock)
    console.tick(progress(1234))
    console.close()
    assert screen.getvalue().isascii()
    assert "====------" in screen.getvalue().replace("\x1b[0m", "").replace("\x1b[2m", "")
