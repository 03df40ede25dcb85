"""Batches in the host's memory over several processes, each of which reads the rows it holds."""

from many import run_processes

PROGRAM = """
import numpy as np
from helpers import split
from jax.sharding import Mesh
from jaxtrain import data
from jaxtrain.config.schema import DataConfig
from jaxtrain.feed import Feed
from jaxtrain.parallel.mesh import AXES, build_mesh, local_rows

ROWS, TRAIN = 8, split(21, name="train")
index, devices = jax.process_index(), jax.devices()
read = TRAIN.read
asked = []

def recording(indices, row_seeds):
    asked.append(len(indices))
    return read(indices, row_seeds)

TRAIN.read = recording

def look(name, mesh, mode="jit"):
    # Every array of every batch, in all parts that this process holds, is the one read alone.
    sampled, padded = data.Sampler(TRAIN.size, ROWS, 5).batches(3), data.eval_indices(21, ROWS)
    for index_batches in (sampled, padded):
        feed = Feed(TRAIN, DataConfig(cache="memory"), mesh, mode)
        alone = list(data.load(TRAIN, index_batches, threads=1, ahead=1))
        asked.clear()
        for whole, batch in zip(alone, feed.batches(index_batches), strict=True):
            for expected, leaf in zip(whole, batch, strict=True):
                if mode == "pmap":
                    expected = expected.reshape(mesh.size, -1, *expected.shape[1:])
                assert leaf.shape == expected.shape and leaf.dtype == expected.dtype
                if isinstance(leaf, np.ndarray):  # this process holds every row
                    np.testing.assert_array_equal(leaf, expected)
                    continue
                assert len(leaf.addressable_shards) == 2
                for shard in leaf.addressable_shards:
                    np.testing.assert_array_equal(shard.data, expected[shard.index])
        held = local_rows(ROWS, mesh)
        assert max(asked) == len(held)
    say(name, *held)

for text in ("data=4", "data=2,fsdp=2", "data=2,model=2", "fsdp=2,model=2", "data=1,model=4"):
    look(text, build_mesh(text, devices))
look("pmap", build_mesh("data=4", devices), "pmap")
# One process's devices need not lie side by side.
mixed = np.array([devices[i] for i in (0, 2, 3, 1)])
look("mixed", Mesh(mixed.reshape(4, 1, 1), AXES))
look("mixed pmap", Mesh(mixed.reshape(4, 1, 1), AXES), "pmap")
look("crossed", Mesh(mixed[[0, 1, 3, 2]].reshape(2, 1, 2), AXES))
"""


def test_each_process_reads_and_holds_its_rows() -> None:
    said = [text.splitlines() for text in run_processes(2, PROGRAM)]
    halves = ["data=4", "data=2,fsdp=2", "data=2,model=2", "fsdp=2,model=2"]
    everything = "0 1 2 3 4 5 6 7"
    own = (("0 1 2 3", "0 1 6 7"), ("4 5 6 7", "2 3 4 5"))
    for lines, (half, outer) in zip(said, own, strict=True):
        assert lines == [
            *(f"{name} {half}" for name in halves),
            f"data=1,model=4 {everything}",
            f"pmap {half}",
            f"mixed {outer}",
            f"mixed pmap {outer}",
            f"crossed {everything}",
        ]
