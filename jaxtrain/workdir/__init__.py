"""A run's folder: who may write into it, and what belongs to it.

A training process holds the folder for itself from `open_run` on; everybody may read it at any
time, since all files but the logs are replaced as a whole, and in a bucket these as well.
"""

from jaxtrain.workdir.held import Workdir, default_path, fresh_path, open_run
from jaxtrain.workdir.names import CHECKPOINTS, SWEEP
from jaxtrain.workdir.resume import DataIdentity
from jaxtrain.workdir.stored import (
    StoredRun,
    eval_path,
    read_run,
    try_write_eval,
    try_write_eval_file,
)

__all__ = [
    "CHECKPOINTS",
    "SWEEP",
    "DataIdentity",
    "StoredRun",
    "Workdir",
    "default_path",
    "eval_path",
    "fresh_path",
    "open_run",
    "read_run",
    "try_write_eval",
    "try_write_eval_file",
]
