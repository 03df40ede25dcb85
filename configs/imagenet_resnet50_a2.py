"""ResNet-50 on ImageNet by procedure A2 of "ResNet strikes back", 300 epochs, in bfloat16.

    jaxtrain train --config=imagenet_resnet50_a2 --config.data.path=DATA_DIR

Prepare the data with TensorFlow Datasets first (imagenet2012 needs a manual download). Eight
accelerators, 2048 images an update. Not measured here; the authors, Wightman, Touvron and Jegou
(https://arxiv.org/abs/2110.00476, table 2), report 79.8 % top-1. What differs from theirs:

- They repeat augmentation: three variants of an image in a batch. jaxtrain has nothing like that.
- timm's RandAugment varies the strength around 7 of 10 with a deviation of 0.5; here it is 7 of 10
  (21 of 30). Its operations are those of the paper, without timm's two more.
- Images are resized bilinearly (with antialiasing), not bicubically.
- Shares are drawn for each pair of images that is mixed, not for each batch; and batch statistics
  are those of all 2048 images, not of one GPU's.
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
    config.data.eval_crop = 0.95
    config.data.mean = (0.485, 0.456, 0.406)
    config.data.std = (0.229, 0.224, 0.225)
    config.data.augment = (
        "flip|randaugment(layers=2, magnitude=21, p=0.5, fill=0.45)"
        "|mixup_or_cutmix(mixup=0.1, cutmix=1.0)"
    )
    config.data.threads = 32
    config.model.name = "resnet50"
    config.model.dtype = "bfloat16"
    config.model.resnet.stochastic_depth = 0.05
    config.optimizer.name = "lamb"
    config.optimizer.learning_rate = 5e-3
    config.optimizer.weight_decay = 0.02
    config.optimizer.decay_rules = "kernel=1; .*=0"
    config.optimizer.clip_norm = 1.0
    config.schedule.name = "cosine"
    config.schedule.warmup_epochs = 5
    config.train.batch_size = 2048
    config.train.epochs = 300
    config.train.loss = "binary"
    config.train.binary_threshold = 0.2
    config.eval.batch_size = 1024
    config.eval.every_epochs = 1
    config.checkpoint.every_epochs = 1
    return config
