"""ResNet-18 on photos of cats and dogs, 80 % to train on and 20 % to evaluate on.

    jaxtrain train --config=dogs_vs_cats_resnet18 --config.data.download=true

The data set is cats_vs_dogs of TensorFlow Datasets. One GPU, from scratch, 200x200 pixels. Not
measured here.
"""

from ml_collections import ConfigDict

from jaxtrain.config import base_config


def get_config() -> ConfigDict:
    """The run's config."""
    config = base_config()
    config.data.source = "tfds"
    config.data.name = "cats_vs_dogs"
    config.data.train_split = "train[:80%]"
    config.data.eval_split = "train[80%:]"
    config.data.image_size = (200,)
    config.data.crop = "random_resized(0.35, 1.0)"
    config.data.mean = (0.485, 0.456, 0.406)
    config.data.std = (0.229, 0.224, 0.225)
    config.data.augment = "flip|brightness(0.2)|contrast(0.2)|saturation(0.2)"
    config.data.threads = 8
    config.model.name = "resnet18"
    config.optimizer.name = "sgd"
    config.optimizer.momentum = 0.9
    config.optimizer.nesterov = True
    config.optimizer.learning_rate = 0.1
    config.optimizer.weight_decay = 1e-4
    config.schedule.name = "cosine"
    config.schedule.warmup_epochs = 5
    config.train.batch_size = 128
    config.train.epochs = 60
    config.train.label_smoothing = 0.1
    config.eval.batch_size = 512
    config.eval.every_epochs = 1
    config.checkpoint.every_epochs = 5
    return config
