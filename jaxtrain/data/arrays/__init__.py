"""Arrays of one's own: images or features with labels, in an `.npz` file or in `.npy` files."""

from jaxtrain.data.arrays.source import ArraysSource

__all__ = ["ArraysSource"]
