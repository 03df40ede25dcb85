"""A StableHLO program by `jax.export`, with its weights beside it; JAX and NumPy run it.

`model.stablehlo` is what `jax.export` serializes: a function of (weights, image) that returns
`{"logits": ..., "probabilities": ...}`. `weights.npz` is NumPy's: the weights by their names, as
in `params/head/kernel`. Those of a dtype that NumPy does not have, such as bfloat16, are there as
unsigned integers of the same bits, which the program takes them as.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import jax
import numpy as np
from jax import export
from numpy.typing import NDArray

from jaxtrain.errors import UsageError, brief, one_line
from jaxtrain.formats.contract import LOGITS, PROBABILITIES, Options, Source
from jaxtrain.formats.lowering import apply_by_name, by_name, lowering
from jaxtrain.formats.reading import refuse_missing
from jaxtrain.tasks import Outputs

_PROGRAM: Final = "model.stablehlo"
_WEIGHTS: Final = "weights.npz"

SNIPPET: Final = """\
import json
from pathlib import Path

import jax
import numpy as np

model = jax.export.deserialize(bytearray(Path("model.stablehlo").read_bytes()))
weights = dict(np.load("weights.npz"))
classes = json.loads(Path("classes.json").read_text("utf-8"))
outputs = jax.jit(model.call)(weights, np.load("images.npy"))
for probabilities in np.asarray(outputs["probabilities"]):
    print(classes[probabilities.argmax()], f"{probabilities.max():.6f}")
"""


def save(source: Source, folder: Path, options: Options) -> Mapping[str, Any]:
    """Writes the program and its weights.

    Args:
        source: the model.
        folder: is empty.
        options: `platforms` are those that the program runs on.

    Returns:
        The files, the platforms, and the versions of JAX and of the program's calling convention.

    Raises:
        UsageError: the model cannot be lowered for a batch of any size.
    """
    weights = by_name(source.variables)
    stored = {name: _storable(leaf) for name, leaf in weights.items()}
    dtypes = {name: leaf.dtype for name, leaf in weights.items()}
    apply = apply_by_name(source)

    def classify(stored: dict[str, Any], image: Any) -> dict[str, Any]:
        logits = apply({name: _as(dtypes[name], leaf) for name, leaf in stored.items()}, image)
        return {LOGITS: logits, PROBABILITIES: jax.nn.softmax(logits)}

    with lowering("stablehlo"):
        (batch,) = export.symbolic_shape("batch")
        image = jax.ShapeDtypeStruct((batch, *source.image_shape), source.dtype)
        lower = export.export(jax.jit(classify), platforms=tuple(dict.fromkeys(options.platforms)))
        program = lower(jax.eval_shape(lambda: stored), image)
        serialized = program.serialize()
    (folder / _PROGRAM).write_bytes(serialized)
    np.savez(folder / _WEIGHTS, allow_pickle=False, **stored)
    return {
        "files": {"program": _PROGRAM, "weights": _WEIGHTS},
        "platforms": list(program.platforms),
        "jax": jax.__version__,
        "calling_convention_version": program.calling_convention_version,
    }


def _storable(leaf: NDArray[Any]) -> NDArray[Any]:
    """The array; as unsigned integers of its bits if NumPy's files do not know its dtype."""
    known = leaf.dtype.isbuiltin == 1
    return leaf if known else leaf.view(np.dtype(f"uint{8 * leaf.dtype.itemsize}"))


def _as(dtype: np.dtype[Any], stored: Any) -> Any:
    """The inverse of `_storable`, in the program."""
    known = dtype.isbuiltin == 1
    return stored if known else jax.lax.bitcast_convert_type(stored, dtype)


def load(folder: Path, output: str) -> Outputs:
    """The model of such a folder, run by JAX on its default device, or another that it is for.

    Args:
        folder: where `save` wrote it.
        output: which of its outputs, `LOGITS` or `PROBABILITIES`.

    Raises:
        UsageError: a file is missing or damaged, or the program was not exported for a platform
            that JAX has here.
    """
    refuse_missing(folder / _PROGRAM, folder / _WEIGHTS)
    program = _program(folder / _PROGRAM)
    device = _device(program.platforms)
    weights = _weights(folder / _WEIGHTS)
    call = jax.jit(lambda weights, image: program.call(weights, image)[output])
    taken = program.in_avals[-1]
    image = jax.ShapeDtypeStruct((1, *taken.shape[1:]), taken.dtype)
    try:
        jax.eval_shape(call, weights, image)
    except Exception as error:
        raise UsageError(
            f"{folder}: {_WEIGHTS} does not fit {_PROGRAM} ({one_line(error)[:300]}); export the "
            "model again"
        ) from error
    on_device = jax.device_put(weights, device)  # the images follow
    return lambda images: np.asarray(call(on_device, images))


def _device(platforms: Sequence[str]) -> jax.Device:
    """A device of one of these platforms, of JAX's default one if it is among them."""
    here = export.default_export_platform()
    for platform in sorted(platforms, key=lambda name: name != here):
        try:
            return jax.devices(platform)[0]
        except RuntimeError:  # JAX has none here
            continue
    given = ",".join(platforms)
    raise UsageError(
        f"a StableHLO program for {given} cannot be run here, where JAX has {here}; export it "
        f"with --platforms={given},{here}"
    )


def _program(path: Path) -> export.Exported:
    """The program of a file; what is wrong in a damaged one may be anything."""
    try:
        program = export.deserialize(bytearray(path.read_bytes()))
        program.mlir_module()  # reads the code, which would be read when it is called first
    except Exception as error:
        raise _unreadable(path, error) from error
    return program


def _weights(path: Path) -> dict[str, NDArray[Any]]:
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            return dict(arrays)
    except Exception as error:
        raise _unreadable(path, error) from error


def _unreadable(path: Path, error: Exception) -> UsageError:
    return UsageError(
        f"{path} cannot be read ({brief(error)}): it is damaged, or was made by a newer JAX; "
        "export the model again"
    )
