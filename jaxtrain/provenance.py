"""What made a run: its config, its data, the versions of everything."""

import importlib.metadata
import platform
from collections.abc import Mapping, Sequence
from typing import Any

import jax

from jaxtrain.config import Config, flatten, to_dict

# Where a host has its data and how it reads it changes nothing.
_OF_A_HOST = ("data.path", "data.download", "data.cache_path", "data.threads", "data.ahead")

_VERSIONED = (
    "jaxtrain",
    "jax",
    "jaxlib",
    "flax",
    "optax",
    "orbax-checkpoint",
    "clu",
    "grain",
    "numpy",
    "pillow",
    "tensorflow-datasets",
)

# Flags of JAX that change what is computed.
_NUMERIC_FLAGS = ("jax_enable_x64", "jax_default_matmul_precision", "jax_threefry_partitionable")


def describe(
    config: Config,
    class_names: Sequence[str],
    image_shape: Sequence[int],
    fingerprints: Mapping[str, str],
    statistics: Mapping[str, Sequence[float]] | None,
) -> dict[str, Any]:
    """What a checkpoint says of the run that made it, as JSON values.

    Args:
        config: the resolved config.
        class_names: one name a class, in label order.
        image_shape: of one example, as it is evaluated.
        fingerprints: checksums of the splits by role.
        statistics: the `mean` and `std` that features are standardised by, if they are.
    """
    return {
        "config": to_dict(config),
        "class_names": list(class_names),
        "image_shape": list(image_shape),
        "data": dict(fingerprints),
        "statistics": statistics and {name: list(each) for name, each in statistics.items()},
        "versions": {name: importlib.metadata.version(name) for name in _VERSIONED},
    }


def identity(config: Config, known: Mapping[str, str | None]) -> dict[str, str]:
    """What must be the same in all processes, or they would run different programs, as texts.

    Args:
        config: the resolved config.
        known: what else must be, by what it is called.
    """
    keys = {
        f"config.{key}": repr(value)
        for key, value in flatten(config).items()
        if key not in _OF_A_HOST
    }
    versions = {f"the version of {name}": importlib.metadata.version(name) for name in _VERSIONED}
    here = {
        "the version of Python": platform.python_version(),
        "the kind of devices": jax.devices()[0].device_kind,
        "the number of devices": str(jax.local_device_count()),
    }
    flags = {name: str(getattr(jax.config, name)) for name in _NUMERIC_FLAGS}
    return keys | versions | here | flags | {name: str(value) for name, value in known.items()}
