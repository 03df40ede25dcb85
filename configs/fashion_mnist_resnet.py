"""A small ResNet (resnet8 of twice the width, 308,000 parameters) on Fashion-MNIST, as IDX files.

    jaxtrain train --config=fashion_mnist_resnet --config.data.path=DIR

Without data.path it looks where Debian's package dataset-fashion-mnist puts the files.

2 CPU cores, 3.3 updates a second: about 50 minutes. Accuracy not yet measured.
"""

from ml_collections import ConfigDict

from jaxtrain.config import base_config

CLASSES = (
    "T-shirt/top",
    "Trouser",
    "Pullover",
    "Dress",
    "Coat",
    "Sandal",
    "Shirt",
    "Sneaker",
    "Bag",
    "Ankle boot",
)


def get_config() -> ConfigDict:
    """The run's config."""
    config = base_config()
    config.data.source = "idx"
    config.data.path = "/usr/share/datasets/fashion-mnist"
    config.data.class_names = CLASSES
    config.data.mean = (0.286,)
    config.data.std = (0.353,)
    config.data.augment = "flip|pad_crop(2)"
    config.model.name = "resnet8"
    config.model.resnet.width = 2.0
    config.optimizer.name = "sgd"
    config.optimizer.momentum = 0.9
    config.optimizer.nesterov = True
    config.optimizer.learning_rate = 0.1
    config.optimizer.weight_decay = 5e-4
    config.schedule.name = "cosine"
    config.schedule.warmup_epochs = 1
    config.train.batch_size = 128
    config.train.epochs = 20
    config.eval.every_epochs = 1
    config.checkpoint.every_epochs = 1
    return config
