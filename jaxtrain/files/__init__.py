"""Where files lie, on a local disk or in a bucket, and how they get there whole."""

from jaxtrain.files.cache import places_for, user_cache
from jaxtrain.files.folder import atomic_folder, bring_back, writing
from jaxtrain.files.places import AnyPath, absolute, behind_links, explained, is_bucket, place
from jaxtrain.files.temporary import (
    beside,
    beside_pattern,
    remove_temporary,
    temporary,
    unique_beside,
)
from jaxtrain.files.whole import (
    atomic_write_bytes,
    atomic_write_json,
    atomic_write_text,
    expanded,
    strict,
)

__all__ = [
    "AnyPath",
    "absolute",
    "atomic_folder",
    "atomic_write_bytes",
    "atomic_write_json",
    "atomic_write_text",
    "behind_links",
    "beside",
    "beside_pattern",
    "bring_back",
    "expanded",
    "explained",
    "is_bucket",
    "place",
    "places_for",
    "remove_temporary",
    "strict",
    "temporary",
    "unique_beside",
    "user_cache",
    "writing",
]
