"""The command line: every form of words does what a person means, or says what is wrong."""

import json
import logging
import os
import subprocess
import sys
import time
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from absl import logging as absl_logging

from jaxtrain import __version__, cli, errors
from jaxtrain.cli.verbs import VERBS
from jaxtrain.config import (
    CheckRequest,
    EvalRequest,
    ExportRequest,
    PredictRequest,
    Processes,
    TrainRequest,
    flatten,
    from_dict,
    key_docs,
    to_json,
)

RECIPE = """
from jaxtrain.config import base_config

def get_config():
    config = base_config()
    config.train.epochs = 10
    return config
"""
CONFIG = "--config=mine.py"


def place(coordinator: str, count: int, index: int) -> list[str]:
    """The flags that say which of several processes this is."""
    return [f"--coordinator={coordinator}", f"--num_processes={count}", f"--process_id={index}"]


class Calls:
    """Stands for the verbs' functions: keeps the requests and does what it is told."""

    def __init__(self) -> None:
        self.requests: list[Any] = []
        self.act: Callable[[], Any] = lambda: {"status": "finished"}

    def run(self, request: Any) -> Any:
        self.requests.append(request)
        return self.act()

    @property
    def request(self) -> Any:
        (request,) = self.requests
        return request


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Calls]:
    """Verbs replaced, in an empty folder that holds only the recipe `mine.py`."""
    recorder = Calls()
    for verb in VERBS.values():
        module, _, function = verb.run.partition(":")
        monkeypatch.setitem(sys.modules, module, types.ModuleType(module))
        setattr(sys.modules[module], function, recorder.run)
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = absl_logging.get_verbosity()
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(RECIPE)
    yield recorder
    absl_logging.set_verbosity(before)


Captured = pytest.CaptureFixture[str]


def refused(calls: Calls, capsys: Captured, *words: str) -> str:
    """The message of a command that is refused: one line, status 2, nothing run or written."""
    before = sorted(Path.cwd().rglob("*"))
    assert cli.main(words) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("jaxtrain: error: ")
    assert err.count("\n") == 1
    assert err.endswith("\n")
    assert calls.requests == []
    assert sorted(Path.cwd().rglob("*")) == before
    return err.removeprefix("jaxtrain: error: ").rstrip("\n")


# --- Overrides, in every form that the command line has.


@pytest.mark.parametrize(
    ("words", "name", "value"),
    [
        (["--config.optimizer.learning_rate=1e-3"], "optimizer.learning_rate", 1e-3),
        (["--config.optimizer.learning_rate=1"], "optimizer.learning_rate", 1.0),
        (["--config.train.batch_size=1e3"], "train.batch_size", 1000),
        (["--config.train.batch_size=1.0"], "train.batch_size", 1),
        (["--config.seed=0"], "seed", 0),
        (["--config.optimizer.clip_norm=None"], "optimizer.clip_norm", None),
        (["--config.model.mlp.hidden_sizes=512,256"], "model.mlp.hidden_sizes", (512, 256)),
        (["--config.model.mlp.hidden_sizes=(512,256)"], "model.mlp.hidden_sizes", (512, 256)),
        (["--config.model.mlp.hidden_sizes=[512,256]"], "model.mlp.hidden_sizes", (512, 256)),
        (["--config.model.mlp.hidden_sizes=512"], "model.mlp.hidden_sizes", (512,)),
        (["--config.model.mlp.hidden_sizes=()"], "model.mlp.hidden_sizes", ()),
        (["--config.optimizer.nesterov=true"], "optimizer.nesterov", True),
        (["--config.optimizer.nesterov=yes"], "optimizer.nesterov", True),
        (["--config.optimizer.nesterov=1"], "optimizer.nesterov", True),
        (["--config.optimizer.nesterov"], "optimizer.nesterov", True),
        (["--config.report.tensorboard=false"], "report.tensorboard", False),
        (["--config.report.tensorboard=no"], "report.tensorboard", False),
        (["--config.report.tensorboard=0"], "report.tensorboard", False),
        (["--noconfig.report.tensorboard"], "report.tensorboard", False),
        (["--config.train.epochs", "3"], "train.epochs", 3.0),
        (["-config.train.epochs=3"], "train.epochs", 3.0),
        (["--config.train.epochs=3", "--config.train.epochs=4"], "train.epochs", 4.0),
        (["--config.model.args.width=3"], "model.args", {"width": 3}),
        (["--config.model.args={'width': 3}"], "model.args", {"width": 3}),
        (["--config.model.args.a=3", "--config.model.args.b=x"], "model.args", {"a": 3, "b": "x"}),
    ],
)
@pytest.mark.parametrize("config_first", [True, False])
def test_override(
    calls: Calls, words: list[str], name: str, value: Any, config_first: bool
) -> None:
    argv = ["train", CONFIG, *words] if config_first else ["train", *words, CONFIG]
    assert cli.main(argv) == 0
    config = flatten(calls.request.config)
    assert config[name] == value
    assert type(config[name]) is type(value)
    assert calls.request.sources[name] == "command line"
    assert {n for n, v in config.items() if v != key_docs()[n].default} <= {name, "train.epochs"}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--config.train.batch_size=1.5"], "train.batch_size=1.5 must be a whole number"),
        (["--config.train.batch_size=-1"], "train.batch_size=-1 must be above 0"),
        (["--config.train.batch_size", "-1"], "train.batch_size=-1 must be above 0"),
        (["--config.train.batch_size=0"], "train.batch_size=0 must be above 0"),
        (["--config.train.batch_size=None"], "train.batch_size=None: a value is needed (default"),
        (["--config.optimizer.learning_rate=nan"], "optimizer.learning_rate=nan must be finite"),
        (["--config.optimizer.learning_rate=inf"], "optimizer.learning_rate=inf must be finite"),
        (["--config.model.mlp.hidden_sizes=512,x"], "hidden_sizes=512,x must hold only whole numb"),
        (["--config.optimizer.nesterov=maybe"], "optimizer.nesterov=maybe must be true or false"),
        (["--config.optimizer.nesterov", "true"], "takes its value after '=', as in --FLAG=true"),
        (["--config.data.cache=ram"], "data.cache=ram must be one of auto, device, memory"),
        (["--config.train.steps=5"], "train.epochs=10 and train.steps=5 are both set; set one"),
        (["--config.train.epochs=None"], "neither train.epochs nor train.steps is set"),
        (
            ["--config.optimizer.lerning_rate=1"],
            "unknown key optimizer.lerning_rate; did you mean optimizer.learning_rate?",
        ),
        (["--config.optimizer=sgd"], "optimizer is a section, not a key; it has optimizer.name"),
        (
            ["--optimizer.learning_rate=1"],
            "--optimizer.learning_rate; did you mean --config.optimizer.learning_rate?",
        ),
        (["--learning_rate=1"], "did you mean --config.optimizer.learning_rate?"),
        (["--seed=1"], "unknown flag --seed; did you mean --config.seed?"),
        (["--config.train.epochs"], "--config.train.epochs needs a value"),
        (["--config.train.epochs", "--fresh"], "train.epochs=--fresh must be a number or None"),
    ],
)
def test_refused_override(calls: Calls, capsys: Captured, words: list[str], message: str) -> None:
    assert message in refused(calls, capsys, "train", CONFIG, *words)


# --- Words: verbs, flags, files.


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["trian", CONFIG], "unknown verb 'trian'; did you mean train?"),
        (["tune"], "unknown verb 'tune'; the verbs are train, eval, predict, export, check"),
        (["eval", "--workdir=x", "stray"], "stray word 'stray'; eval takes only flags"),
        (["eval", "--workdir=x", "--top_k=2"], "--top_k=2 needs --predictions=FILE, for its rows"),
        (["eval", "--workdir=x", "--by=loss"], "--by=loss needs --hardest=N, how many examples"),
        (["eval", "--workdir=x", "--hardest=0"], "--hardest=0 must be a whole number, 1 or more"),
        (
            ["eval", "--workdir=x", "--hardest=2", "--by=margin"],
            "--by=margin must be one of loss, gradient",
        ),
        (
            ["eval", "--workdir=x", "--exported=y", "--hardest=2", "--by=gradient"],
            "--by=gradient needs the gradients of a checkpoint, and --exported=y has none",
        ),
        (["eval", "--workdir=x", "--predictions=no/a.csv"], "there is no folder no; make it first"),
        (
            ["predict", "a.png"],
            "give one model: --workdir=DIR, the folder of a run, or --exported=",
        ),
        (["predict", "--workdir=x"], "nothing to classify; name images, folders, arrays, or - for"),
        (
            ["predict", "--workdir=x", "--top_k=0", "a"],
            "--top_k=0 must be a whole number, 1 or more",
        ),
        (["predict", "--exported=x", "--checkpoint=3", "a"], "name two models: drop one"),
        (["predict", "--exported=gs://a/b", "a"], "--exported=gs://a/b must be a local folder"),
        (
            ["predict", "--exported=x", "--config.parallel.mesh=data=1", "a"],
            "--config.parallel.mesh cannot be set for predict, which uses the run's own config; "
            "only eval.batch_size can",
        ),
        (
            ["export", "--format=onnx"],
            "no --workdir; give --workdir=DIR, the folder of the run to e",
        ),
        (
            ["export", "--workdir=x"],
            "no --format; give one or several, as in --format=savedmodel,on",
        ),
        (["export", "--workdir=x", "--format=onnx,"], "--format=onnx, must be names with commas"),
        (
            ["export", "--workdir=x", "--format=onnx", "--config.eval.every_steps=3"],
            "--config.eval.every_steps cannot be set for export",
        ),
        (
            ["help"],
            "unknown verb 'help'; the verbs are train, eval, predict, export, check, see 'jaxtrain",
        ),
        (
            [CONFIG],
            "no verb; write 'jaxtrain VERB ...' with train or eval or predict or export or check",
        ),
        (
            ["train"],
            "no --config; give --config=FILE (a .py file, a config.json or one of: cifar10_",
        ),
        (
            ["check"],
            "no --config; give --config=FILE (a .py file, a config.json or one of: cifar10_",
        ),
        (["eval"], "no --workdir; give --workdir=DIR"),
        (["train", "--config"], "--config needs a value"),
        (["train", "--config="], "--config needs a value: --config=FILE"),
        (["train", CONFIG, "--workdir"], "--workdir needs a value"),
        (["train", CONFIG, "--workdir", "--fresh"], "--workdir needs a value: --workdir=DIR"),
        (
            ["train", CONFIG, "--workdir=s3://a/b"],
            "s3://a/b must be a local folder, or one in a buck",
        ),
        (["train", "--workdir=none"], "--workdir=none holds no config.json to go on with; give"),
        (["train", CONFIG, "stray"], "stray word 'stray'; train takes only flags, see 'jaxtrain t"),
        (["train", CONFIG, "train"], "stray word 'train'"),
        (["train", "mine.py"], "stray word 'mine.py'; did you mean --config=mine.py?"),
        (["train", "mnist_mlp"], "stray word 'mnist_mlp'; did you mean --config=mnist_mlp?"),
        (["train", CONFIG, "config.seed=3"], "stray word 'config.seed=3'; did you mean --config.s"),
        (["train", CONFIG, "--", "--fresh"], "stray word '--fresh'"),
        (["train", CONFIG, "--wrkdir=x"], "unknown flag --wrkdir; did you mean --workdir?"),
        (["train", CONFIG, "--lr=1"], "unknown flag --lr; 'jaxtrain VERB --help' lists the flags"),
        (["train", CONFIG, "--optimizer=sgd"], "did you mean --config.optimizer.name or "),
        (["train", CONFIG, "--fresh=maybe"], "--fresh=maybe: must be true or false"),
        (["train", CONFIG, "--nofresh=1"], "--nofresh=1 does not take an argument"),
        (["train", CONFIG, "--fresh", "--extend"], "give one of them"),
        (["train", CONFIG, "--extend"], "--extend needs --workdir=DIR"),
        (
            ["train", CONFIG, "--split=test"],
            "--split is not a flag of train, which takes --config,",
        ),
        (["eval", CONFIG, "--workdir=x"], "--config is not a flag of eval, which takes --workdir,"),
        (
            ["eval", "--workdir=x", "--fresh"],
            "--fresh is not a flag of eval, which takes --workdir",
        ),
        (
            ["check", CONFIG, "--workdir=x"],
            "--workdir is not a flag of check, which takes --config",
        ),
        (["check", CONFIG, "--devices=0"], "--devices=0 must be a whole number, 1 or more"),
        (["check", CONFIG, "--devices=x"], "--devices=x must be a whole number, 1 or more"),
        (["check", CONFIG, "--batch=1.5"], "--batch=1.5 must be a whole number, 1 or more"),
        (["train", CONFIG, "--distributed=yes"], "--distributed=yes must be one of auto, on, off"),
        (
            ["train", CONFIG, "--distributed=off", "--process_id=1"],
            "--distributed=off and --process_id contradict each other",
        ),
        (
            ["train", CONFIG, "--process_id=1"],
            "--process_id needs --coordinator and --num_processes too; or give none",
        ),
        (
            ["eval", "--workdir=x", "--coordinator=a:1", "--num_processes=2"],
            "--coordinator needs --process_id too",
        ),
        (
            ["train", CONFIG, *place("a:1", 2, 2)],
            "--process_id=2 must be below --num_processes=2: the first process is 0",
        ),
        (["train", CONFIG, *place("a:1", 0, 0)], "--num_processes=0 must be a whole number, 1 or"),
        (["train", CONFIG, *place("a:1", 2, -1)], "--process_id=-1 must be a whole number, 0 or "),
        (["train", CONFIG, *place("a", 2, 1)], "--coordinator=a must be HOST:PORT with a port"),
        (["train", CONFIG, *place("a:0", 2, 1)], "--coordinator=a:0 must be HOST:PORT"),
        (["train", CONFIG, *place("a:65536", 2, 1)], "--coordinator=a:65536 must be HOST:PORT"),
        (["train", CONFIG, *place("http://a:1", 2, 1)], "--coordinator=http://a:1 must be HOST:"),
        (["train", CONFIG, *place("::1:80", 2, 1)], "--coordinator=::1:80 must be HOST:PORT"),
        (["check", CONFIG, "--distributed=on"], "--distributed is not a flag of check"),
        (["eval", "--workdir=x", "--config.seed=3"], "--config.seed cannot be set for eval, which"),
        (
            ["eval", "--workdir=x", "--config.eval.batch_size=x"],
            "eval.batch_size=x must be a whole",
        ),
        (["train", "--flagfile=nope"], "--flagfile=nope: No such file or directory"),
        (["train", "--flagfile"], "--flagfile needs a value: a text file with one flag a line"),
        (["train", "--config=nope.py"], "--config=nope.py: no such file"),
        (
            ["train", "--config=mine.yaml"],
            "--config=mine.yaml must be a .py file, a config.json or",
        ),
    ],
)
def test_refused_words(calls: Calls, capsys: Captured, words: list[str], message: str) -> None:
    assert message in refused(calls, capsys, *words)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("def get_config(:", "broken.py line 1: SyntaxError: invalid syntax"),
        ("def get_config():\n    1 / 0", "broken.py line 2: ZeroDivisionError: division by zero"),
        ("x = 3", "broken.py has no get_config(); define it and let it return the config"),
        ("def get_config(): pass", "broken.py: get_config() returned nothing; let it return"),
        (
            RECIPE.replace("epochs", "epoch"),
            "broken.py line 6: unknown key train.epoch; did you me",
        ),
    ],
)
def test_refused_recipe(calls: Calls, capsys: Captured, text: str, message: str) -> None:
    Path("broken.py").write_text(text)
    assert message in refused(calls, capsys, "train", "--config=broken.py")


def test_a_message_stays_one_line(calls: Calls, capsys: Captured) -> None:
    message = refused(calls, capsys, "train", CONFIG, "--config.data.cache=a\nb")
    assert message.startswith("data.cache=a b must be one of")


# --- Requests.


def test_train_request(calls: Calls) -> None:
    words = ["--workdir=runs/x", "--fresh", "train", "--config.seed=3", "--config", "mine.py"]
    assert cli.main(words) == 0
    expected = from_dict({"train": {"epochs": 10}, "seed": 3})
    sources = dict.fromkeys(key_docs(), "default")
    sources |= {"train.epochs": "mine.py", "seed": "command line"}
    assert calls.request == TrainRequest(
        config=expected,
        config_name="mine",
        workdir=Path("runs/x"),
        fresh=True,
        extend=False,
        sources=sources,
    )


@pytest.mark.parametrize("verb", [["train", CONFIG], ["eval", "--workdir=x"]])
@pytest.mark.parametrize(
    ("words", "processes"),
    [
        ([], Processes()),
        (["--distributed=off"], Processes(distributed="off")),
        (
            ["--distributed=on", *place("[::1]:80", 2, 1)],
            Processes(distributed="on", coordinator="[::1]:80", num_processes=2, process_id=1),
        ),
    ],
)
def test_how_the_other_processes_are_found(
    calls: Calls, verb: list[str], words: list[str], processes: Processes
) -> None:
    assert cli.main([*verb, *words]) == 0
    assert calls.request.processes == processes


def test_train_request_by_name_without_anything_else(calls: Calls) -> None:
    assert cli.main(["train", "--config=mnist_mlp"]) == 0
    request = calls.request
    assert (request.config_name, request.workdir) == ("mnist_mlp", None)
    assert (request.fresh, request.extend) == (False, False)
    assert request.sources["model.name"] == "configs/mnist_mlp.py"


@pytest.mark.parametrize(
    ("folder", "name"), [("mine-0123abcd", "mine"), ("other-run", "other-run")]
)
def test_train_goes_on_with_a_workdir(calls: Calls, folder: str, name: str) -> None:
    Path(folder).mkdir()
    config = from_dict({"train": {"steps": 5}, "model": {"args": {"a": [1, 2]}}})
    Path(folder, "config.json").write_text(to_json(config))
    assert cli.main(["train", f"--workdir={folder}", "--extend", "--config.train.steps=9"]) == 0
    request = calls.request
    assert (request.config_name, request.workdir, request.extend) == (name, Path(folder), True)
    assert request.config.train.steps == 9
    assert request.config.model == config.model
    assert request.sources["seed"] == f"{folder}/config.json"


def test_train_names_a_damaged_config_json(calls: Calls, capsys: Captured) -> None:
    Path("config.json").write_text('{"train": ')
    assert "config.json is damaged: line 1" in refused(calls, capsys, "train", "--workdir=.")


def test_eval_request(calls: Calls) -> None:
    words = ["--checkpoint=best", "--split", "train", "--config.eval.batch_size=1e2"]
    words += ["--hardest=20", "--by=gradient"]
    assert cli.main(["eval", "--workdir=~/x", *words, "--config.data.path=/y"]) == 0
    assert calls.request == EvalRequest(
        workdir=Path("~/x").expanduser(),
        checkpoint="best",
        split="train",
        hardest=20,
        by="gradient",
        overrides={"eval.batch_size": "1e2", "data.path": "/y"},
    )


def test_eval_request_defaults(calls: Calls) -> None:
    assert cli.main(["eval", "--workdir=x"]) == 0
    assert calls.request == EvalRequest(workdir=Path("x"))


@pytest.mark.parametrize("name", sorted(key_docs()))
def test_eval_takes_only_what_does_not_change_the_run(calls: Calls, name: str) -> None:
    allowed = {"source", "path", "name", "version", "image_key", "label_key", "download"}
    allowed |= {"path_column", "label_column", "split_column", "eval_split"}
    allowed |= {"cache", "cache_path", "threads", "ahead"}
    allowed = {f"data.{n}" for n in allowed} | {"train.export_replica"}
    own = {"data.cache": "memory", "parallel.mode": "pmap", "parallel.peer_timeout_seconds": "3"}
    own |= {"eval.weights": "raw"}
    text = own.get(name, "1")
    status = cli.main(["eval", "--workdir=x", f"--config.{name}={text}"])
    assert status == (0 if name in allowed or name.startswith(("eval.", "parallel.")) else 2)


def test_predict_request(calls: Calls) -> None:
    words = ["a.png", "--workdir=x", "-", "--top_k=3", "--output=a.csv", "--", "--b.png"]
    assert cli.main(["predict", *words, "train"]) == 0
    assert calls.request == PredictRequest(
        paths=("a.png", "-", "--b.png", "train"),
        workdir=Path("x"),
        top_k=3,
        output=Path("a.csv"),
    )
    assert cli.main(["predict", "--exported=~/y", "--config.eval.batch_size=2", "a"]) == 0
    assert calls.requests[-1] == PredictRequest(
        paths=("a",), exported=Path("~/y").expanduser(), overrides={"eval.batch_size": "2"}
    )


def test_export_request(calls: Calls) -> None:
    words = ["--quantize=int8", "--verify=all", "--tolerance=0.1", "--overwrite", "--output=~/m"]
    assert cli.main(["export", "--workdir=x", "--format=tflite, onnx", *words]) == 0
    assert calls.request == ExportRequest(
        workdir=Path("x"),
        formats=("tflite", "onnx"),
        output=Path("~/m").expanduser(),
        quantize="int8",
        verify=None,
        tolerance=0.1,
        overwrite=True,
    )
    words = ["--format=stablehlo", "--platforms=cpu,tpu", "--verify=9", "--checkpoint=best"]
    assert cli.main(["export", "--workdir=x", *words]) == 0
    assert calls.requests[-1] == ExportRequest(
        workdir=Path("x"),
        formats=("stablehlo",),
        platforms=("cpu", "tpu"),
        verify=9,
        checkpoint="best",
    )


def test_eval_request_of_an_export_with_predictions(calls: Calls) -> None:
    words = ["--exported=y", "--predictions=p.jsonl", "--top_k=2"]
    assert cli.main(["eval", "--workdir=x", *words]) == 0
    assert calls.request == EvalRequest(
        workdir=Path("x"), exported=Path("y"), predictions=Path("p.jsonl"), top_k=2
    )


def test_check_request(calls: Calls) -> None:
    calls.act = lambda: ("", 0)
    words = ["--devices=8", "--batch=3", "--print_config", "--json=yes"]
    assert cli.main(["check", CONFIG, *words]) == 0
    request = calls.request
    assert isinstance(request, CheckRequest)
    assert (request.config_name, request.devices, request.batch) == ("mine", 8, 3)
    assert (request.print_config, request.json) == (True, True)
    assert cli.main(["check", CONFIG]) == 0
    last = calls.requests[-1]
    assert (last.devices, last.batch, last.print_config, last.json) == (None, None, False, False)


def test_flag_file(calls: Calls) -> None:
    Path("flags.txt").write_text(
        "# a comment\n--config=mine.py\n\n--config.train.epochs=3\n"
        "--config.model.mlp.hidden_sizes=1,2\n--flagfile=more.txt\n"
    )
    Path("more.txt").write_text("--config.seed=4\n--fresh\n")
    assert cli.main(["train", "--flagfile=flags.txt", "--config.train.epochs=5"]) == 0
    config = calls.request.config
    assert (config.train.epochs, config.seed, calls.request.fresh) == (5, 4, True)
    assert config.model.mlp.hidden_sizes == (1, 2)


def test_flag_file_that_is_no_text(calls: Calls, capsys: Captured) -> None:
    Path("binary").write_bytes(b"\xff\xfe")
    message = refused(calls, capsys, "train", "--flagfile=binary")
    assert message == "--flagfile needs a value: a text file with one flag a line"


def test_the_current_folder_is_searched_for_modules_last(calls: Calls) -> None:
    sys.path[:] = [entry for entry in sys.path if entry]
    assert cli.main(["train", CONFIG]) == 0
    assert cli.main(["train", CONFIG]) == 0
    assert sys.path[-1] == os.getcwd()
    assert sys.path.count(os.getcwd()) == 1


# --- Output and exit status.


def test_the_last_line_on_stdout_is_the_result(calls: Calls, capsys: Captured) -> None:
    def act() -> dict[str, Any]:
        print("from a library")
        return {"status": "finished", "eval": {"accuracy": 0.1 + 0.2}}

    calls.act = act
    assert cli.main(["train", CONFIG]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out) == {"status": "finished", "eval": {"accuracy": 0.1 + 0.2}}
    assert out.count("\n") == 1
    assert err == "from a library\n"


def test_a_result_in_pieces_is_written_as_it_comes(calls: Calls, capsys: Captured) -> None:
    written = []

    def act() -> Iterator[str]:
        for text in ("one\r\n", "two\n"):
            print("from a library")
            yield text
            written.append(capsys.readouterr().out)
        raise errors.DataError("one of two could not be read")

    calls.act = act
    assert cli.main(["predict", "--workdir=x", "a"]) == 3
    assert written == ["one\r\n", "two\n"]
    assert capsys.readouterr().err.endswith("jaxtrain: error: one of two could not be read\n")


PIECES = """
import ctypes, os, sys, types
from jaxtrain.cli import entry
module = types.ModuleType("jaxtrain.predict")
def predict(request):
    try:
        for number in range({count}):
            os.write(1, b"noise")
            yield f"{{number}}\\r\\n"
    finally:
        print("closed")
module.predict = predict
sys.modules[module.__name__] = module
sys.argv[1:] = ["predict", "--workdir=x", "a"]
entry()
"""


def test_pieces_are_alone_on_stdout_as_they_are() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PIECES.format(count=2)], capture_output=True, check=True
    )
    assert done.stdout == b"0\r\n1\r\n"
    assert done.stderr == b"noisenoiseclosed\n"


def test_a_reader_that_went_away_ends_what_makes_pieces() -> None:
    done = without_reader("stdout", PIECES.format(count=10**9))
    assert done.returncode == 141
    assert done.stderr == b"noiseclosed\n"


PRINTS = """
import ctypes, os, sys, types
from jaxtrain.cli import entry
module = types.ModuleType("jaxtrain.train")
def train(request):
    print("by Python")
    os.write(1, b"by a descriptor\\n")
    ctypes.CDLL(None).printf(b"by C\\n")
    return {"status": "finished"}
module.train = train
sys.modules[module.__name__] = module
sys.argv[1:] = ["train", "--config=mnist_mlp"]
entry()
"""


def test_only_the_result_is_on_stdout_whoever_prints() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PRINTS], capture_output=True, text=True, check=True
    )
    assert done.stdout == '{"status": "finished"}\n'
    assert sorted(done.stderr.splitlines()) == ["by C", "by Python", "by a descriptor"]


@pytest.mark.parametrize("closed", ["1", "2"])
def test_a_closed_stream_keeps_the_other_one(closed: str) -> None:
    command = ["sh", "-c", f'exec "$0" -c "$1" {closed}>&-', sys.executable, PRINTS]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    if closed == "1":
        assert (done.stdout, "by Python\n" in done.stderr) == ("", True)
    else:
        assert (done.stdout, done.stderr) == ('{"status": "finished"}\n', "")


def test_processes_beside_the_first_print_no_result(calls: Calls, capsys: Captured) -> None:
    calls.act = lambda: None
    assert cli.main(["train", CONFIG]) == 0
    assert capsys.readouterr() == ("", "")


def test_an_error_names_its_process(calls: Calls, capsys: Captured) -> None:
    error = errors.DataError("file x is damaged")
    error.process = 2
    calls.act = raising(error)
    assert cli.main(["train", CONFIG]) == 3
    assert capsys.readouterr() == ("", "jaxtrain: error: process 2: file x is damaged\n")


def test_what_a_config_prints_is_not_on_stdout(calls: Calls, capsys: Captured) -> None:
    Path("mine.py").write_text(RECIPE + "\nprint('from a config')\n")
    assert cli.main(["train", CONFIG]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out) == {"status": "finished"}
    assert err == "from a config\n"


def test_check_says_its_text_and_gives_the_status(calls: Calls, capsys: Captured) -> None:
    calls.act = lambda: ("a report\n", 2)
    assert cli.main(["check", CONFIG]) == 2
    assert capsys.readouterr() == ("a report\n", "")


def raising(error: BaseException) -> Callable[[], Any]:
    def act() -> Any:
        raise error

    return act


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (errors.UsageError("batch_size=3 is odd"), 2),
        (errors.DataError("file x is damaged"), 3),
        (errors.NonFiniteError("the loss is NaN"), 4),
        (errors.CheckpointError("disk full"), 5),
        (errors.PeerLostError("process 1 of 2 was lost"), 7),
    ],
)
def test_expected_errors(
    calls: Calls, capsys: Captured, error: errors.JaxtrainError, status: int
) -> None:
    calls.act = raising(error)
    assert cli.main(["train", CONFIG]) == status
    assert capsys.readouterr() == ("", f"jaxtrain: error: {error}\n")


def test_debug_shows_the_traceback_and_its_cause(calls: Calls, capsys: Captured) -> None:
    Path("broken.py").write_text("x = 1 / 0")
    assert cli.main(["train", "--config=broken.py", "--debug"]) == 2
    _, err = capsys.readouterr()
    assert "ZeroDivisionError: division by zero\n\nThe above exception was" in err
    assert err.splitlines()[-1].startswith("jaxtrain: error: broken.py line 1: ZeroDivisionError")


@pytest.mark.parametrize("words", [[], ["--debug"]])
def test_libraries_log_only_for_debug(calls: Calls, words: list[str]) -> None:
    logger = absl_logging.get_absl_logger()
    assert cli.main(["train", CONFIG, *words]) == 0
    assert logger.isEnabledFor(logging.ERROR) == (words == ["--debug"])
    assert logger.isEnabledFor(logging.INFO) == (words == ["--debug"])


def test_stopped_is_no_error(calls: Calls, capsys: Captured) -> None:
    calls.act = raising(errors.Stopped("stopped after step 3 of 10"))
    assert cli.main(["train", CONFIG]) == 75
    assert capsys.readouterr() == ("", "jaxtrain: stopped after step 3 of 10\n")


def test_only_the_first_process_says_that_all_have_stopped(calls: Calls, capsys: Captured) -> None:
    error = errors.Stopped("stopped after step 3 of 10")
    error.process = 1
    calls.act = raising(error)
    assert cli.main(["train", CONFIG]) == 75
    assert capsys.readouterr() == ("", "")


def test_a_fault_of_ours_keeps_its_traceback(calls: Calls, capsys: Captured) -> None:
    calls.act = raising(RuntimeError("oops"))
    assert cli.main(["train", CONFIG]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("Traceback (most recent call last):\n")
    assert "RuntimeError: oops\n" in err
    assert err.endswith("jaxtrain: RuntimeError: a fault of jaxtrain, please report it\n")


def test_a_result_that_is_no_json_is_a_fault(calls: Calls, capsys: Captured) -> None:
    calls.act = lambda: {"loss": float("nan")}
    assert cli.main(["train", CONFIG]) == 1
    assert capsys.readouterr().out == ""


def test_an_interrupt(calls: Calls, capsys: Captured) -> None:
    calls.act = raising(KeyboardInterrupt())
    assert cli.main(["train", CONFIG]) == 130
    assert capsys.readouterr() == ("", "jaxtrain: interrupted\n")


def test_a_broken_pipe_that_is_not_ours_is_a_fault(
    calls: Calls, capfd: pytest.CaptureFixture[str]
) -> None:
    calls.act = raising(BrokenPipeError("a socket"))
    assert cli.main(["train", CONFIG]) == 1
    assert "BrokenPipeError: a socket" in capfd.readouterr().err


# --- As a process.


def jaxtrain(*words: str, **options: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "jaxtrain", *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, **options)


def test_nothing_said_prints_the_help_to_stderr() -> None:
    done = jaxtrain()
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == jaxtrain("--help").stdout


@pytest.mark.parametrize("words", [["--help"], ["-h"], ["--help", "--nonsense"]])
def test_help(words: list[str]) -> None:
    done = jaxtrain(*words)
    assert (done.returncode, done.stderr) == (0, "")
    for verb in VERBS:
        assert f"\n  {verb} " in done.stdout
    assert "mnist_mlp" in done.stdout
    assert len(done.stdout.splitlines()) < 20
    assert max(map(len, done.stdout.splitlines())) <= 100


@pytest.mark.parametrize("verb", sorted(VERBS))
def test_help_of_a_verb(verb: str) -> None:
    done = jaxtrain(verb, "--help", "--config=nope.py")
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    words = " ".join(done.stdout.split())
    for flag in VERBS[verb].flags:
        value = f"={flag.value}" if flag.value else ""
        assert f"--{flag.name}{value} {flag.doc} " in words
    for example in VERBS[verb].examples:
        assert f"  {example}" in lines
    assert "--config.KEY=VALUE" in done.stdout
    assert "--print_config" in lines[-1]
    assert len(lines) < 26
    assert max(map(len, lines)) <= 100


@pytest.mark.parametrize("verb", sorted(VERBS))
def test_the_examples_of_help_are_accepted(calls: Calls, verb: str) -> None:
    Path("runs/short").mkdir(parents=True)
    Path("runs/short/config.json").write_text(to_json(from_dict({"train": {"steps": 5}})))
    for example in VERBS[verb].examples:
        assert cli.main(example.split()[1:]) == 0, example


def test_version() -> None:
    done = jaxtrain("--version")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"jaxtrain {__version__}\n", "")


HEAVY = {"jax", "numpy", "flax", "optax", "orbax", "tensorflow", "grain", "clu"}


@pytest.mark.parametrize(
    "words",
    [
        ["--help"],
        ["train", "--help"],
        ["--version"],
        ["train", "--config=nope.py"],
        ["trian"],
        ["train", "--config=mnist_mlp", "--config.seed=x"],
    ],
)
def test_help_and_usage_errors_import_nothing_heavy(words: list[str]) -> None:
    code = (
        "import sys; from jaxtrain.cli import main; main(sys.argv[1:]);"
        f"print(sorted({HEAVY} & set(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *words], capture_output=True, text=True, check=True
    )
    assert done.stderr.splitlines()[-1] == "[]"


def test_help_comes_at_once() -> None:
    def seconds() -> float:
        start = time.perf_counter()
        jaxtrain("train", "--help")
        return time.perf_counter() - start

    assert min(seconds() for _ in range(5)) < 0.5


def test_an_error_as_a_process_writes_nothing(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("def get_config(:")
    done = jaxtrain("train", "--config=broken.py", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "jaxtrain: error: broken.py line 1: SyntaxError: invalid syntax\n"
    assert [path.name for path in tmp_path.iterdir()] == ["broken.py"]


# A verb that only prints, run by the real command.
SCRIPT = """
import sys, types
from jaxtrain.cli import entry
module = types.ModuleType("jaxtrain.train")
def train(request):
    for _ in range({lines}):
        print("x" * 100)
    return {result}
module.train = train
sys.modules[module.__name__] = module
sys.argv[1:] = ["train", "--config=mnist_mlp"]
entry()
"""


@pytest.mark.parametrize(
    ("lines", "result", "status"),
    [(0, {"status": "finished"}, 0), (0, ("said", 3), 3), (0, ("x" * 10**5, 0), 0)],
)
def test_a_reader_that_went_away_is_no_error(lines: int, result: Any, status: int) -> None:
    done = without_reader("stdout", SCRIPT.format(lines=lines, result=result))
    assert (done.returncode, done.stderr) == (status, b"")


def test_a_reader_of_messages_that_went_away_ends_the_run() -> None:
    done = without_reader("stderr", SCRIPT.format(lines=10_000, result={}))
    assert (done.returncode, done.stdout) == (141, b"")


def without_reader(stream: str, script: str) -> subprocess.CompletedProcess[bytes]:
    """Runs a script, one of whose streams is a pipe that nobody reads."""
    read_end, write_end = os.pipe()
    os.close(read_end)
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, stream: write_end}
    try:
        return subprocess.run(
            [sys.executable, "-c", script],
            **streams,
            env={**os.environ, "PYTHONUNBUFFERED": ""},
            check=False,
        )
    finally:
        os.close(write_end)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a full disk is made of /dev/full")
def test_a_full_disk_is_one_line() -> None:
    done = subprocess.run(
        f"{sys.executable} -m jaxtrain --help > /dev/full",
        shell=True,
        capture_output=True,
        check=False,
    )
    assert done.returncode == 5
    assert done.stderr.startswith(b"jaxtrain: error: the output cannot be written: No space left")
    assert done.stderr.count(b"\n") == 1


def test_a_current_folder_that_is_gone_is_one_line(tmp_path: Path) -> None:
    folder = tmp_path / "x"
    folder.mkdir()
    train = f"{sys.executable} -m jaxtrain train --config=mnist_mlp"
    command = f"cd {folder} && rmdir {folder} && {train}"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("jaxtrain: error: the current folder cannot be used: No such")
    assert done.stderr.count("\n") == 1


def test_a_closed_stdout_is_no_error() -> None:
    command = f"{sys.executable} -m jaxtrain --help >&-"
    done = subprocess.run(["sh", "-c", command], capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
