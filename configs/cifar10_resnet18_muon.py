"""ResNet-18 with the stem for small images on CIFAR-10 by Muon, in 30 epochs.

    jaxtrain train --config=cifar10_resnet18_muon --config.data.download=true

One GPU. Muon (https://kellerjordan.github.io/posts/muon) trains the kernels, at the rate that its
author's package has by default; Adam trains the last layer, scales and biases at a twentieth of it.
The data and the model are those of cifar10_resnet18, which takes 200 epochs. Not measured here.
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
    config.data.augment = "flip|pad_crop(4)|cutout(8, fill=0.47)"
    config.model.name = "resnet18"
    config.model.resnet.stem = "cifar"
    # Zeros would make the first gradients of a block's other kernels 0, which Muon scales up alike.
    config.model.resnet.zero_init = False
    config.optimizer.name = "muon"
    config.optimizer.momentum = 0.95
    config.optimizer.learning_rate = 0.02
    config.optimizer.rate_rules = "head=0.05; kernel=1; .*=0.05"
    config.optimizer.weight_decay = 0.05
    config.schedule.name = "linear"
    config.schedule.warmup_epochs = 2
    config.train.batch_size = 512
    config.train.epochs = 30
    config.train.label_smoothing = 0.1
    config.eval.every_epochs = 1
    config.checkpoint.every_epochs = 5
    return config
