"""ResNet-50 on ImageNet, the classic 90 epochs (Goyal et al., 2017), in bfloat16.

    jaxtrain train --config=imagenet_resnet50 --config.data.path=DATA_DIR

Prepare the data with TensorFlow Datasets first (imagenet2012 needs a manual download). Eight
accelerators, 1024 images an update. The paper (https://arxiv.org/abs/1706.02677) has 76.3 % top-1
with 8192 images an update and a learning rate in proportion. Unlike there, batch statistics are
those of all 1024 images, and the warm-up starts at 0. Published recipe, not measured here.
"""

from ml_collections import ConfigDict

from jaxtrain.config import base_config


def get_config() -> ConfigDict:
    """The run's config."""
    config = base_config()
    config.data.source = "tfds"
    config.data.name = "imagenet2012"
    config.data.eval_split = "validation"
    config.data.image_size = (224,)
    config.data.crop = "random_resized(0.08, 1.0)"
    config.data.eval_crop = 0.875
    config.data.mean = (0.485, 0.456, 0.406)
    config.data.std = (0.229, 0.224, 0.225)
    config.data.augment = "flip"
    config.data.threads = 32
    config.model.name = "resnet50"
    config.model.dtype = "bfloat16"
    config.optimizer.name = "sgd"
    config.optimizer.momentum = 0.9
    config.optimizer.nesterov = True
    config.optimizer.learning_rate = 0.4
    config.optimizer.weight_decay = 1e-4
    config.schedule.name = "step"
    config.schedule.warmup_epochs = 5
    config.schedule.decay_rate = 0.1
    config.schedule.boundaries = (30, 60, 80)
    config.train.batch_size = 1024
    config.train.epochs = 90
    config.eval.batch_size = 1024
    config.eval.every_epochs = 1
    config.checkpoint.every_epochs = 1
    return config
