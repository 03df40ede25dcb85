import inspect

from jaxtrain.report import QuietReporter, Reporter, TrainReport


def public(kind):
    return {name for name in vars(kind) if not name.startswith("_")}


def test_it_takes_all_that_a_reporter_takes_and_does_nothing():
    assert public(Reporter) == public(QuietReporter)
    for name in public(Reporter):
        ours, theirs = (
            inspect.signature(getattr(kind, name)) for kind in (QuietReporter, Reporter)
        )
        assert ours == theirs
    with QuietReporter() as reporter:
        reporter.start(3, evaluates=True)
        with reporter.paused("evaluate") as tick:
            tick(1, 2)
        reporter.train(4, TrainReport(1.0, 0.5, 0.1))
