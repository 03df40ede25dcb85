"""Small prepared data sets as TensorFlow Datasets lays them out, of either format, for tests."""

import io
import json
import struct
from collections.abc import Sequence
from pathlib import Path

import google_crc32c
import numpy as np
import tensorflow_datasets as tfds
from array_record.python import array_record_module
from PIL import Image

Example = dict[str, object]
Shards = Sequence[Sequence[Example]]

FEATURES = tfds.features.FeaturesDict(
    {
        "image": tfds.features.Image(shape=(4, 5, 3)),
        "label": tfds.features.ClassLabel(names=["cat", "dog", "owl"]),
    }
)


def png(pixels: np.ndarray) -> bytes:
    content = io.BytesIO()
    Image.fromarray(pixels.squeeze()).save(content, "PNG")
    return content.getvalue()


def pixels(number: int, shape: tuple[int, int, int] = (4, 5, 3)) -> np.ndarray:
    """The image of example `number`."""
    return np.random.RandomState(number).randint(0, 256, shape).astype(np.uint8)


def examples(numbers: Sequence[int]) -> list[Example]:
    """Examples of `FEATURES`: the image follows from the number, the label is its rest by 3."""
    return [{"image": png(pixels(number)), "label": number % 3} for number in numbers]


def frame(record: bytes) -> bytes:
    """A record as it lies in a tfrecord file."""

    def masked(content: bytes) -> bytes:
        checksum = google_crc32c.value(content)
        rotated = (checksum >> 15) | (checksum << 17) & 0xFFFFFFFF
        return struct.pack("<I", (rotated + 0xA282EAD8) % 2**32)

    length = struct.pack("<Q", len(record))
    return length + masked(length) + record + masked(record)


def write_records(path: Path, file_format: str, records: Sequence[bytes]) -> None:
    if file_format == "tfrecord":
        path.write_bytes(b"".join(map(frame, records)))
        return
    writer = array_record_module.ArrayRecordWriter(str(path), "group_size:1")
    for record in records:
        writer.write(record)
    writer.close()


def prepare(
    folder: Path,
    file_format: str,
    splits: dict[str, Shards],
    features: tfds.features.FeaturesDict = FEATURES,
    **info: object,
) -> Path:
    """Writes the folder of one version; `splits` holds each file's examples. Returns the folder."""
    folder.mkdir(parents=True)
    features.save_config(folder)
    names = folder.parts[-2:]
    described = {
        "name": names[0],
        "version": names[1],
        "fileFormat": file_format,
        "moduleName": "a.module.that.is.not.there",
        "splits": [
            {
                "name": split,
                "filepathTemplate": "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}",
                "shardLengths": [str(len(shard)) for shard in shards],
            }
            for split, shards in splits.items()
        ],
        **info,
    }
    (folder / "dataset_info.json").write_text(json.dumps(described))
    for split, shards in splits.items():
        for number, shard in enumerate(shards):
            name = f"{described['name']}-{split}.{file_format}-{number:05}-of-{len(shards):05}"
            records = [features.serialize_example(features.encode_example(each)) for each in shard]
            write_records(folder / name, file_format, records)
    return folder
