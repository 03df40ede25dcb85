"""The `jaxtrain` command: words to one request for a verb, errors to one line and a status.

Nothing heavy is imported before a verb runs, so that help and usage errors come at once.
"""

import contextlib
import ctypes
import dataclasses
import functools
import gc
import importlib
import io
import json
import os
import select
import shutil
import signal
import sys
import traceback
import types
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any, NoReturn, TextIO

from absl import logging as absl_logging

from jaxtrain import __version__
from jaxtrain.cli.help import command_help, verb_help
from jaxtrain.cli.requests import Given
from jaxtrain.cli.verbs import VERBS, Verb
from jaxtrain.cli.words import read_words
from jaxtrain.errors import CheckpointError, JaxtrainError, Stopped, UsageError, printable
from jaxtrain.parallel.stop import leave

__all__ = ["entry", "main"]


def entry() -> NoReturn:
    """The `jaxtrain` command as a process: runs `main` on its words and ends with its status.

    After a failure the process ends at once: a library's thread may still wait for something that
    will never come, such as Orbax's for a folder that could not be made, and Python would wait
    for that thread.
    """
    # Until a run takes signals itself there is nothing to save. An exception in the middle of a
    # library's import or callback would be swallowed or end as a crash.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, leave)
    _open_streams()
    status = main()
    if status:
        os._exit(status)  # both streams are flushed with every line
    sys.exit(status)


def _open_streams() -> None:
    """Text for a closed stream goes nowhere; what a stream cannot encode becomes a `?`."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command.

    Args:
        argv: the words after the program's name; None: those of this process.

    Returns:
        The exit status. An expected error is one line on stderr; a fault of ours keeps its
        traceback. Neither is raised.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        return _command(words)
    except JaxtrainError as error:
        stopped = isinstance(error, Stopped)
        if not stopped or error.process is None:  # all stop together, and the first says so
            kind = "" if stopped else "error: "
            who = "" if error.process is None else f"process {error.process}: "
            text = " ".join(str(error).splitlines())
            _write(sys.stderr, f"jaxtrain: {kind}{who}{printable(text)}\n")
        return error.status
    except KeyboardInterrupt:
        _write(sys.stderr, "jaxtrain: interrupted\n")
        return 130
    except Exception as error:
        if isinstance(error, BrokenPipeError) and _reader_is_gone():
            return 141  # as a process that SIGPIPE ends
        traceback.print_exception(error)
        name = type(error).__name__
        _write(sys.stderr, f"jaxtrain: {name}: a fault of jaxtrain, please report it\n")
        return 1


def _command(words: list[str]) -> int:
    options = words[: words.index("--")] if "--" in words else words
    if not words:
        _write(sys.stderr, command_help())
        return 2
    if {"--help", "-help", "-h"} & set(options):
        name = next((word for word in options if word in VERBS), None)
        _write(sys.stdout, verb_help(name) if name else command_help())
        return 0
    if {"--version", "-version"} & set(options):
        _write(sys.stdout, f"jaxtrain {__version__}\n")
        return 0
    name, given = read_words(words)
    given = dataclasses.replace(given, width=_width(sys.stdout))
    verb = VERBS[name]
    # Orbax logs a traceback from each of its threads for an error that it also raises.
    debug = given.flags["debug"]
    absl_logging.set_verbosity(absl_logging.INFO if debug else absl_logging.FATAL)
    folder = _current_folder()
    if not {"", folder} & set(sys.path):
        sys.path.append(folder)  # for a user's modules; last, so that they hide no library's
    module, _, function = verb.run.partition(":")
    try:
        with _stdout_for_the_result() as out:
            request = _request(verb, given)
            result = getattr(_import(module), function)(request)
            if isinstance(result, Generator):
                return _stream(result, out)
    except JaxtrainError as error:
        if debug:
            traceback.print_exception(error)
        raise
    if result is None:
        return 0
    text, status = (
        (json.dumps(result, allow_nan=False) + "\n", 0) if isinstance(result, dict) else result
    )
    _write(sys.stdout, text)
    return status


def _stream(texts: Generator[str], out: Callable[[str], None]) -> int:
    """Writes texts as they come, until there is no more or nobody reads them."""
    with contextlib.closing(texts):
        for text in texts:
            try:
                out(text)
            except BrokenPipeError:
                return 141  # as a process that SIGPIPE ends
    return 0


@contextlib.contextmanager
def _stdout_for_the_result() -> Iterator[Callable[[str], None]]:
    """Sends to stderr whatever is written to stdout, by Python or by compiled code.

    Stdout is for the result alone, but a config, a user's module and C++ libraries print too (as
    Gloo does, which connects processes on CPUs).

    Yields:
        What writes to stdout after all.
    """
    stdout = sys.stdout
    if stdout is not None:
        _write(stdout, "")  # what is in it already is not meant
    try:
        kept = os.dup(1)
    except OSError:  # closed before the process started
        with contextlib.redirect_stdout(sys.stderr):
            yield functools.partial(_write_on, stdout)
        return
    _point_stdout_at(2)
    try:
        with contextlib.redirect_stdout(sys.stderr), _reopened(stdout, kept) as stream:
            yield functools.partial(_write_on, stream)
    finally:
        ctypes.CDLL(None).fflush(None)  # or what C code printed would come after the result
        os.dup2(kept, 1)
        os.close(kept)


@contextlib.contextmanager
def _reopened(stdout: TextIO | None, kept: int) -> Iterator[TextIO | None]:
    """Stdout while its descriptor is another's; itself if it is no file."""
    try:
        is_file = stdout is not None and stdout.fileno() == 1
    except OSError:  # it has no descriptor
        is_file = False
    if stdout is None or not is_file:
        yield stdout
        return
    with open(kept, "w", encoding=stdout.encoding, errors="replace", closefd=False) as stream:
        try:
            yield stream
        finally:
            # What could not be written would be tried once more when it is closed.
            with contextlib.suppress(OSError):
                stream.flush()


def _point_stdout_at(descriptor: int) -> None:
    try:
        os.dup2(descriptor, 1)
    except OSError:  # stderr was closed before the process started
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def _width(stdout: TextIO | None) -> int | None:
    """Cells of a line where a person reads stdout."""
    if stdout is None or not stdout.isatty():
        return None
    return shutil.get_terminal_size().columns


def _current_folder() -> str:
    try:
        return os.getcwd()
    except OSError as error:
        raise UsageError(
            f"the current folder cannot be used: {error.strerror}; change to one that is there"
        ) from error


def _request(verb: Verb, given: Given) -> Any:
    try:
        return verb.request(given)
    except (OSError, RuntimeError) as error:  # a name too long, no such user after `~`
        raise UsageError(f"cannot be used: {error}") from error


def _import(name: str) -> types.ModuleType:
    """Imports a module and whatever it needs, and keeps the garbage collector away from that.

    These are some hundred thousand objects that live to the end. To look for garbage among them
    takes 0.2 s while they are made and 0.25 s once more when the process ends.
    """
    if name in sys.modules:
        return sys.modules[name]
    gc.disable()
    try:
        return importlib.import_module(name)
    finally:
        gc.freeze()
        gc.enable()


def _write(stream: TextIO | None, text: str) -> None:
    """Writes at once; where nobody reads any more, all that comes after it goes nowhere."""
    with contextlib.suppress(BrokenPipeError):
        _write_on(stream, text)


def _write_on(stream: TextIO | None, text: str) -> None:
    """Writes at once.

    Raises:
        BrokenPipeError: nobody reads any more.
        CheckpointError: it cannot be written.
    """
    if stream is None:  # closed before the process started
        return
    try:
        stream.write(text)
        stream.flush()
    except OSError as error:
        # What could not be written stays in the stream, and Python would try again at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
        if isinstance(error, BrokenPipeError):
            raise
        if stream is sys.stderr:
            return
        raise CheckpointError(
            f"the output cannot be written: {error.strerror}; make room, then run the same "
            "command again"
        ) from error


def _reader_is_gone() -> bool:
    """Whether the pipe behind stdout or stderr has lost its reader."""
    poll = select.poll()
    for stream in filter(None, (sys.stdout, sys.stderr)):
        poll.register(stream, 0)
    return any(event & select.POLLERR for _, event in poll.poll(0))
