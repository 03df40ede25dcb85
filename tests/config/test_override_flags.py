"""Every spelling of an override on the command line, to the texts of its keys."""

import pytest
from absl import flags

from jaxtrain.config.override_flags import define_override_flags
from jaxtrain.errors import UsageError


def read(*words: str) -> tuple[dict[str, str], list[str]]:
    values = flags.FlagValues()
    values.set_gnu_getopt(True)
    overrides = define_override_flags(values, words)
    _, *rest = values(["program", *words])
    return overrides(), rest


@pytest.mark.parametrize(
    ("words", "texts"),
    [
        ([], {}),
        (["--config.seed=3"], {"seed": "3"}),
        (["-config.seed=3"], {"seed": "3"}),
        (["--config.seed", "3"], {"seed": "3"}),
        (["--config.seed", "-3"], {"seed": "-3"}),
        (["--config.seed=3", "--config.seed=4"], {"seed": "4"}),
        (["--config.seed", "3", "--config.seed=4"], {"seed": "4"}),
        (["--config.model.mlp.hidden_sizes=1,2"], {"model.mlp.hidden_sizes": "1,2"}),
        (["--config.model.mlp.hidden_sizes", "(1, 2)"], {"model.mlp.hidden_sizes": "(1, 2)"}),
        (
            ["--config.model.mlp.hidden_sizes=1", "--config.model.mlp.hidden_sizes=2"],
            {"model.mlp.hidden_sizes": "2"},
        ),
        (["--config.optimizer.clip_norm=None"], {"optimizer.clip_norm": "None"}),
        (["--config.optimizer.nesterov"], {"optimizer.nesterov": "true"}),
        (["--noconfig.optimizer.nesterov"], {"optimizer.nesterov": "false"}),
        (["--config.optimizer.nesterov=maybe"], {"optimizer.nesterov": "maybe"}),
        (
            ["--config.optimizer.nesterov", "--noconfig.optimizer.nesterov"],
            {"optimizer.nesterov": "false"},
        ),
        (["--config.data.path="], {"data.path": ""}),
        (["--config.data.path=a=b"], {"data.path": "a=b"}),
        (["--config.data.path=a\nb"], {"data.path": "a\nb"}),
        (["--config.model.args={'a': 1}"], {"model.args": "{'a': 1}"}),
        (
            ["--config.model.args.a=1", "--config.model.args.b.c", "2"],
            {"model.args.a": "1", "model.args.b.c": "2"},
        ),
        (["--config.model.args.no=1"], {"model.args.no": "1"}),
    ],
)
def test_spellings(words: list[str], texts: dict[str, str]) -> None:
    assert read(*words) == (texts, [])


def test_other_words_stay() -> None:
    assert read("train", "--config.seed", "3", "x") == ({"seed": "3"}, ["train", "x"])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--config.sede=3"], "unknown key sede; did you mean seed?"),
        (["--noconfig.train.epochs"], "train.epochs is not true or false"),
        (["--noconfig.model.args.a"], "model.args.a is not true or false"),
        (["--noconfig.optimizer.nesterov=1"], "or --config.optimizer.nesterov=false"),
        (
            ["--config.model.args={}", "--config.model.args.a=1"],
            "--config.model.args and --config.model.args.a cannot be given together",
        ),
        (
            ["--config.model.args.a.b=1", "--config.model.args.a=1"],
            "--config.model.args.a and --config.model.args.a.b cannot be given together",
        ),
    ],
)
def test_refused(words: list[str], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        read(*words)
    assert message in str(caught.value)
