"""Decoded images that are kept: in memory or on disk. What is read never depends on it."""

from jaxtrain.data.cache.choice import Cache
from jaxtrain.data.cache.memory import All, Images, Remade

__all__ = ["All", "Cache", "Images", "Remade"]
