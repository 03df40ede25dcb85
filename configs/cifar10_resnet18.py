"""ResNet-18 with the stem for small images on CIFAR-10, from TensorFlow Datasets.

    jaxtrain train --config=cifar10_resnet18 --config.data.download=true

One GPU. The recipe is the usual one for this model: SGD with momentum, 200 epochs, cosine, crops
and flips, as at https://github.com/kuangliu/pytorch-cifar, whose table has 93.02 % test accuracy.
Published recipe, not measured here.
"""

from ml_collections import ConfigDict

from jaxtrain.config import base_config


def get_config() -> ConfigDict:
    """The run's config."""
    config = base_config()
    config.data.source = "tfds"
    config.data.name = "cifar10"
    config.data.mean = (0.4914, 0.4822, 0.4465)
    config.data.std = (0.2470, 0.2435, 0.2616)
    config.data.augment = "pad_crop(4)|flip"
    config.model.name = "resnet18"
    config.model.resnet.stem = "cifar"
    config.optimizer.name = "sgd"
    config.optimizer.momentum = 0.9
    config.optimizer.learning_rate = 0.1
    config.optimizer.weight_decay = 5e-4
    config.optimizer.decay_rules = ".*=1"
    config.schedule.name = "cosine"
    config.train.batch_size = 128
    config.train.epochs = 200
    config.eval.every_epochs = 1
    config.checkpoint.every_epochs = 10
    return config
