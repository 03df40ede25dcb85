"""Where decoded images are kept."""

import dataclasses
import math

from jaxtrain.data.cache.disk import Disk
from jaxtrain.data.cache.memory import All, Images, Make, Remade, Some, memory_limit
from jaxtrain.data.cache.place import cache_folder, check_usable
from jaxtrain.data.split import RawSplit


@dataclasses.dataclass(frozen=True)
class Cache:
    """What the config says of it.

    Attributes:
        kind: `data.cache`.
        path: `data.cache_path`.
    """

    kind: str
    path: str | None

    def images(
        self, make: Make, raw: RawSplit, *, how: str, shape: tuple[int, int, int] | None
    ) -> Images:
        """Images that are kept where the config says; those of arrays never on disk.

        Args:
            make: makes the image of an example.
            raw: the examples.
            how: what `make` does to an example; with the version of what it needs but a decoder.
            shape: (height, width, channels) of every image; None: they vary.

        Raises:
            UsageError: there is no such folder, and none can be made, or it cannot be written.
        """
        if self.kind == "none":
            return Remade(make)
        if self.kind == "disk" and not raw.is_decoded:
            folder = cache_folder(self.path)
            check_usable(folder)
            return Disk(folder, make, raw, how=how, shape=shape)
        limit = memory_limit()
        if shape is not None and raw.size * math.prod(shape) <= limit:
            return All(make, raw.size, shape)
        return Some(make, raw.size, limit)
