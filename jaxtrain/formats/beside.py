"""What lies beside an exported model: what it is, its classes, its config, and how to load it."""

import dataclasses
import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from jaxtrain import __version__, files
from jaxtrain.config import Config, load_json, to_dict
from jaxtrain.config.store import read_json
from jaxtrain.errors import UsageError
from jaxtrain.formats import FORMATS
from jaxtrain.formats.contract import FEATURES, IMAGE, LOGITS, PROBABILITIES, Source

SIGNATURE: Final = "signature.json"
CLASSES: Final = "classes.json"
CONFIG: Final = "config.json"
README: Final = "README.md"
VERIFICATION: Final = "verification.json"
FILES: Final = frozenset({SIGNATURE, CLASSES, CONFIG, README, VERIFICATION})

_README = """# A classifier of {classes} classes, exported by jaxtrain as {format}

The model after step {step} of its training. {takes}

- `{signature}`: inputs and outputs, and what made the file
- `{class_file}`: the classes' names, in the order of the outputs
- `{config}`: the config that the model was trained with
- `{verification}`: how far its outputs were from the checkpoint's, before it got its name

This program classifies the {inputs} of `{inputs}.npy`, an array as above; run it in this folder,
after `pip install {needs}`.

```python
{snippet}```

{made}"""

_IMAGES = """It takes images of {height} x {width} pixels,
{colours}, as uint8, {how_many}: `image`, of shape
`[{batch}, {height}, {width}, {channels}]`. It normalises them itself. An image of another size is
first brought to this one as evaluation does it: the middle, resized bilinearly with
antialiasing{crop}."""

_IMAGE_FILE = """One image file becomes such an array by

    import numpy, PIL.Image
    image = PIL.Image.open("photo.png").convert("{mode}").resize(({width}, {height}))
    numpy.save("images.npy", numpy.asarray(image).reshape(1, {height}, {width}, {channels}))
"""

_FEATURES = """It takes vectors of {features} features,
as float32, {how_many}: `features`, of shape `[{batch}, {features}]`.
{prepared}"""

_FEATURE_ROWS = """Rows of numbers become such an array by

    import numpy
    numpy.save("features.npy", numpy.asarray(rows, "float32").reshape(-1, {features}))
"""


@dataclasses.dataclass(frozen=True)
class Description:
    """What an export says of itself.

    Attributes:
        format: its name in `FORMATS`.
        class_names: one name a class, in the order of the outputs.
        image_shape: (height, width, channels), or (features,), of the input.
        step: finished updates of the weights.
        config: what it was trained with.
        signature: all of `signature.json`.
    """

    format: str
    class_names: tuple[str, ...]
    image_shape: tuple[int, ...]
    step: int
    config: Config
    signature: Mapping[str, Any]


def write(
    folder: Path,
    name: str,
    source: Source,
    *,
    step: int,
    config: Config,
    said: Mapping[str, Any],
    snippet: str,
    needs: str,
) -> None:
    """Writes all but the verification.

    Args:
        folder: the export's.
        name: the format.
        source: the model.
        step: finished updates of its weights.
        config: what it was trained with.
        said: what the exporter adds to the signature; `any_batch` is False if the model takes one
            example at a time.
        snippet: the program that loads it, for images.
        needs: what that needs, as pip's words.
    """
    batch = "batch" if said.get("any_batch", True) else 1
    logits = {"dtype": "float32", "shape": [batch, len(source.class_names)]}
    signature = {
        "format": name,
        "jaxtrain": __version__,
        "step": step,
        "class_names": list(source.class_names),
        "input": {
            "name": source.input,
            "dtype": str(source.dtype),
            "shape": [batch, *source.image_shape],
        },
        "outputs": {LOGITS: logits, PROBABILITIES: logits},
        **said,
        "sha256": _checksums(folder),
    }
    files.atomic_write_json(folder / SIGNATURE, signature)
    files.atomic_write_json(folder / CLASSES, list(source.class_names))
    files.atomic_write_json(folder / CONFIG, to_dict(config))
    takes, made = _input_text(source, config, batch)
    text = _README.format(
        classes=len(source.class_names),
        format=" ".join(filter(None, [name, said.get("quantize")])),
        step=step,
        takes=takes,
        made=made,
        inputs="images" if source.input == IMAGE else FEATURES,
        signature=SIGNATURE,
        class_file=CLASSES,
        config=CONFIG,
        verification=VERIFICATION,
        needs=needs,
        snippet=snippet if source.input == IMAGE else _of_features(snippet),
    )
    files.atomic_write_text(folder / README, text)


def _input_text(source: Source, config: Config, batch: str | int) -> tuple[str, str]:
    """What a model takes, and how it is made."""
    how_many = "one at a time" if batch == 1 else "in a batch of any size"
    if source.input == FEATURES:
        (features,) = source.image_shape
        itself = "It standardises them itself, by the statistics of its training examples."
        prepared = itself if config.data.standardize else "They are what it was trained on."
        given = {"features": features, "batch": batch, "how_many": how_many, "prepared": prepared}
        return _FEATURES.format(**given), _FEATURE_ROWS.format(**given)
    height, width, channels = source.image_shape
    share = config.data.eval_crop
    given = {
        "height": height,
        "width": width,
        "channels": channels,
        "colours": {1: "grey", 3: "RGB", 4: "RGBA"}.get(channels, f"{channels} channels"),
        "mode": {1: "L", 4: "RGBA"}.get(channels, "RGB"),
        "batch": batch,
        "how_many": how_many,
        "crop": "" if share == 1 else f", of which {share:g} of the shorter side is kept",
    }
    return _IMAGES.format(**given), _IMAGE_FILE.format(**given)


def _of_features(snippet: str) -> str:
    return snippet.replace("images", FEATURES).replace(IMAGE, FEATURES)


def read(folder: Path) -> Description:
    """What an export says of itself.

    Raises:
        UsageError: it is not the folder of an export, or one of its files is damaged.
    """
    if not folder.is_dir():
        kind = "is a file; give the folder that it lies in" if folder.exists() else "does not exist"
        raise UsageError(f"--exported={folder} {kind}")
    if not (folder / SIGNATURE).is_file():
        inside = sorted(path.parent.name for path in folder.glob(f"*/{SIGNATURE}"))
        hint = f"; did you mean {folder / inside[0]}?" if inside else ""
        raise UsageError(f"--exported={folder} is not an export: it has no {SIGNATURE}{hint}")
    signature = read_json(folder / SIGNATURE)
    try:
        _refuse_damage(folder, signature["sha256"])
        if signature["format"] not in FORMATS:
            raise UsageError(
                f"{folder / SIGNATURE}: format {signature['format']!r} is none of "
                f"{', '.join(FORMATS)}; install the jaxtrain that exported it, "
                f"{signature.get('jaxtrain')}, or export it again"
            )
        _, *shape = signature["input"]["shape"]
        if len(shape) not in (1, 3):
            raise ValueError(f"an input of shape {shape}")
        classes, (_, outputs) = signature["class_names"], signature["outputs"][LOGITS]["shape"]
        if not isinstance(classes, list) or len({*map(str, classes)}) != outputs:
            raise ValueError(f"{outputs} outputs, but other class names")
        return Description(
            format=str(signature["format"]),
            class_names=tuple(map(str, classes)),
            image_shape=tuple(_counted(size) for size in shape),
            step=_counted(signature["step"]),
            config=load_json(folder / CONFIG),
            signature=signature,
        )
    except OSError as error:
        raise UsageError(f"{error.filename or folder} cannot be read: {error.strerror}") from error
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise UsageError(f"{folder / SIGNATURE} is damaged ({error!r}); export it again") from error


def _counted(value: Any) -> int:
    if not isinstance(value, int) or not 0 < value < 2**31:
        raise ValueError(f"{value!r} is not a count")
    return value


def _refuse_damage(folder: Path, checksums: Mapping[str, str]) -> None:
    """Finds a changed byte before a runtime does, which may crash, hang or say nothing."""
    found = _checksums(folder)
    for name, checksum in checksums.items():
        if name not in found:
            raise UsageError(f"{folder / name} is missing; export it again")
        if found[name] != checksum:
            raise UsageError(
                f"{folder / name} is damaged or was changed: its checksum is not that of "
                f"{SIGNATURE}; export it again"
            )


def _checksums(folder: Path) -> dict[str, str]:
    """SHA-256 of every file that the exporter wrote, by its path in the folder."""
    checksums = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_file() and name not in FILES:
            with path.open("rb") as file:
                checksums[name] = hashlib.file_digest(file, "sha256").hexdigest()
    return checksums
