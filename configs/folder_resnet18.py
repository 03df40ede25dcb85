"""ResNet-18 on a folder of your own photos, one folder a class.

    jaxtrain train --config=folder_resnet18 --config.data.path=photos

One GPU, or two CPU cores for some hundreds of photos (with a width of 0.25, about 150 photos a
second). How good it gets is up to the photos; not measured on any published ones.
"""

from ml_collections import ConfigDict

from jaxtrain.config import base_config


def get_config() -> ConfigDict:
    """The run's config."""
    config = base_config()
    config.data.source = "folder"
    config.data.image_size = (128,)
    config.data.crop = "random_resized(0.35, 1.0)"
    config.data.eval_crop = 0.875
    config.data.mean = (0.485, 0.456, 0.406)
    config.data.std = (0.229, 0.224, 0.225)
    config.data.augment = "flip|brightness(0.2)|contrast(0.2)|saturation(0.2)"
    config.model.name = "resnet18"
    config.optimizer.name = "adamw"
    config.optimizer.learning_rate = 1e-3
    config.optimizer.weight_decay = 0.05
    config.schedule.name = "cosine"
    config.schedule.warmup_epochs = 2
    config.train.batch_size = 32
    config.train.epochs = 30
    config.train.label_smoothing = 0.1
    config.eval.batch_size = 64
    config.eval.every_epochs = 5
    config.checkpoint.every_epochs = 5
    config.report.every_steps = 20
    return config
