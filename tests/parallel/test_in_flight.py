from jaxtrain.parallel.in_flight import MAX_IN_FLIGHT, InFlight


def test_only_the_oldest_are_finished_and_in_order():
    finished: list[int] = []
    in_flight: InFlight[int] = InFlight(finished.append)
    for step in range(1, 11):
        in_flight.make_room()
        in_flight.add(step)
        assert finished == list(range(1, step - MAX_IN_FLIGHT + 1))
    in_flight.drain()
    assert finished == list(range(1, 11))
    in_flight.drain()
    assert len(finished) == 10
