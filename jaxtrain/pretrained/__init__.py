"""Pretrained weights: a file of a PyTorch ResNet to this package's variables, in NumPy alone.

`load` reads a `.safetensors` file or what `torch.save` wrote, without running anything that the
file holds, and finds for every tensor its place among the variables of `models.resnet`.
"""

from jaxtrain.pretrained.fitting import Imported
from jaxtrain.pretrained.loading import load

__all__ = ["Imported", "load"]
