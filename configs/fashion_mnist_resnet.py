"""A ResNet-18 of a quarter of the width (701,000 parameters) on Fashion-MNIST, as IDX files.

    jaxtrain train --config=fashion_mnist_resnet --config.data.path=DIR

Without data.path it looks where Debian's package dataset-fashion-mnist puts the files.

2 CPU cores: about 40 minutes, 94.64 % test accuracy at the last step (mean of 3 seeds, deviation
0.11, by scripts/benchmark.py accuracy --recipe=fashion_mnist_resnet --runs=3). Muon
(https://kellerjordan.github.io/posts/muon) trains the kernels; Adam trains the last layer, scales
and biases at a twentieth of its rate.
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
    config.model.name = "resnet18"
    config.model.resnet.stem = "cifar"
    config.model.resnet.width = 0.25
    # Zeros would make the first gradients of a block's other kernels 0, which Muon scales up alike.
    config.model.resnet.zero_init = False
    config.optimizer.name = "muon"
    config.optimizer.momentum = 0.95
    config.optimizer.learning_rate = 0.02
    config.optimizer.rate_rules = "head=0.05; kernel=1; .*=0.05"
    config.optimizer.weight_decay = 0.05
    config.schedule.name = "linear"
    config.schedule.warmup_epochs = 1
    config.train.batch_size = 128
    config.train.epochs = 18
    config.train.label_smoothing = 0.1
    config.eval.every_epochs = 1
    config.checkpoint.every_epochs = 1
    return config
