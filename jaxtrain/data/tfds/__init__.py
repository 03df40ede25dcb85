"""Prepared data sets of TensorFlow Datasets, read without TensorFlow.

`TfdsSource` opens what is on the disk (`folders`) or has it prepared (`prepare`). Each record file
is read once as a whole (`records`), for an index of its records and labels (`index`); from then on
any example is read by itself (`split`). Importing this takes half a second.
"""

from jaxtrain.data.tfds.source import TfdsSource

__all__ = ["TfdsSource"]
