"""Examples from disk to NumPy batches: a batch is a pure function of (seed, step).

`open_dataset` and `open_split` open what the config names, `Sampler` and `eval_indices` say which
examples a batch holds, `load` reads batches ahead in threads. `list_inputs` finds the images that
`jaxtrain predict` is given. Nothing here imports JAX, except that Grain, which only `load` imports,
does so on its own.
"""

from jaxtrain.data.dataset import Dataset, open_dataset, open_split
from jaxtrain.data.decode import rgb
from jaxtrain.data.inputs import Inputs, list_inputs
from jaxtrain.data.loading import Batch, IndexBatches, load
from jaxtrain.data.sampler import Interleaved, Sampler, eval_indices
from jaxtrain.data.scan import Scan, scan
from jaxtrain.data.sources import FILE_SOURCES, OWN_SOURCES, SOURCES
from jaxtrain.data.split import ArraySplit, Progress, RawSplit, Split, Subset, silent
from jaxtrain.data.statistics import Statistics, statistics
from jaxtrain.data.threads import readers

__all__ = [
    "FILE_SOURCES",
    "OWN_SOURCES",
    "SOURCES",
    "ArraySplit",
    "Batch",
    "Dataset",
    "IndexBatches",
    "Inputs",
    "Interleaved",
    "Progress",
    "RawSplit",
    "Sampler",
    "Scan",
    "Split",
    "Statistics",
    "Subset",
    "eval_indices",
    "list_inputs",
    "load",
    "open_dataset",
    "open_split",
    "readers",
    "rgb",
    "scan",
    "silent",
    "statistics",
]
