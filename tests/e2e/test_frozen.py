"""A run that trains the last layer alone."""

import numpy as np
from e2e.command import Command, read_arrays

WORDS = [
    "--config=digits.py",
    "--config.model.freeze=backbone",
    "--config.optimizer.name=lion",
    "--config.optimizer.rate_rules=head/bias=10; .*=1",
    "--config.checkpoint.every_steps=10",
    "--workdir=run",
]


def test_the_backbone_stays_as_it_is(command: Command) -> None:
    done = command("train", *WORDS)
    assert done.returncode == 0, done.stderr
    assert "mlp: 25,450 parameters (330 of them trained)" in done.stderr
    assert "weights  model.freeze=backbone keeps them random: set model.init_from" in done.stderr
    before, after = (read_arrays(command.folder / "run", step) for step in (10, 20))
    moved = {name for name in before if not np.array_equal(before[name], after[name])}
    backbone = {name for name in after if "hidden_0" in name}
    head = {name for name in after if "head" in name}
    assert len(backbone) == 2  # none in the optimizer's state
    assert len(head) == 4
    assert not backbone & moved
    assert head <= moved
