import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxtrain.report.speed import Speed


@pytest.fixture
def speed(clock):
    return Speed(batch_size=10, clock=clock)


def test_images_are_counted_from_report_to_report(speed, clock):
    clock.sleep(50)
    speed.start(100)
    assert speed.training_seconds == 0
    assert speed.images_per_second_overall is None
    clock.sleep(2)
    assert speed.report(104) == 10 * 4 / 2
    clock.sleep(1)
    assert speed.report(114) == 10 * 10 / 1
    assert speed.training_seconds == 3
    assert speed.images_per_second_overall == 10 * 14 / 3
    clock.sleep(9)
    assert speed.training_seconds == 3


def test_pauses_do_not_count(speed, clock):
    speed.start(0)
    with speed.paused(compiling=True):
        clock.sleep(100)
    clock.sleep(1)
    with speed.paused(compiling=False):
        clock.sleep(7)
        with speed.paused(compiling=True):
            clock.sleep(5)
        clock.sleep(3)
    clock.sleep(1)
    assert speed.report(4) == 10 * 4 / 2
    assert speed.training_seconds == 2


def test_a_report_inside_a_pause_counts_until_the_pause(speed, clock):
    speed.start(0)
    clock.sleep(2)
    with speed.paused(compiling=False):
        clock.sleep(5)
        assert speed.report(4) == 10 * 4 / 2
        clock.sleep(5)
    clock.sleep(1)
    assert speed.report(8) == 10 * 4 / 1


def test_a_pause_that_fails_ends(speed, clock):
    speed.start(0)
    with contextlib.suppress(RuntimeError), speed.paused(compiling=False):
        clock.sleep(5)
        raise RuntimeError
    clock.sleep(1)
    assert speed.report(1) == 10


def test_a_start_inside_a_pause_counts_after_it(speed, clock):
    with speed.paused(compiling=True):
        clock.sleep(5)
        speed.start(0)
        clock.sleep(2)
    clock.sleep(1)
    assert speed.report(2) == 20
    assert speed.seconds_left(2, 4) == 1


def test_a_burst_of_late_reports_does_not_look_fast(speed, clock):
    speed.start(0)
    for step in range(1, 11):
        clock.sleep(1)
        speed.report(step)
    for step in range(11, 15):
        clock.sleep(0.001)
        rate = speed.report(step)
    # Over the last report that is at least 0.1 s old, not over 1 ms.
    assert rate == pytest.approx(10 * (14 - 9) / 1.004)


def test_no_time_is_no_speed(speed):
    speed.start(0)
    assert speed.report(1) is None
    assert speed.images_per_second_overall is None


def test_time_left_has_evaluations_but_no_compiling_in_it(speed, clock):
    speed.start(10)
    assert speed.seconds_left(10, 30) is None
    with speed.paused(compiling=True):
        clock.sleep(100)
    clock.sleep(3)
    with speed.paused(compiling=False):
        clock.sleep(2)
    assert speed.seconds_left(15, 30) == 15
    assert speed.seconds_left(30, 30) == 0


@given(
    st.lists(
        st.tuples(st.integers(1, 500), st.floats(0.2, 100), st.floats(0, 100)),
        min_size=1,
        max_size=20,
    )
)
def test_speed_times_time_is_images(intervals):
    now = [0.0]
    speed = Speed(batch_size=32, clock=lambda: now[0])
    speed.start(7)
    step, images = 7, 0.0
    for steps, seconds, pause in intervals:
        now[0] += seconds
        with speed.paused(compiling=False):
            now[0] += pause
        step += steps
        images += speed.report(step) * seconds
    true = 32 * (step - 7)
    assert speed.images_per_second_overall * speed.training_seconds == pytest.approx(true)
    assert images == pytest.approx(true, rel=1e-6)
