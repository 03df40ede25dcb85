"""Decoded images that are kept: in memory or on disk. What is read never depends on it."""

from jaxtrain.data.cache.choice import Cache
from jaxtrain.data.cache.disk import Disk
from jaxtrain.data.cache.memory import All, Images, Remade, Some, memory_limit
from jaxtrain.data.cache.place import cache_folder

__all__ = [
    "All",
    "Cache",
    "Disk",
    "Images",
    "Remade",
    "Some",
    "cache_folder",
    "memory_limit",
]
