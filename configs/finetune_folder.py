r"""A pretrained ResNet-18 fine-tuned on a folder of your own photos, one folder a class.

    jaxtrain train --config=finetune_folder --config.data.path=photos \
        --config.model.init_from=resnet18.pth

Weights are those of torchvision, timm or Hugging Face, as .pth or .safetensors, such as
https://download.pytorch.org/models/resnet18-f37072fd.pth; set model.name for another depth. The
last layer is new, and learns ten times as fast. With --config.model.freeze=backbone it alone is
trained, which is enough for few photos: a CPU will do. Otherwise one GPU. Not measured here.
"""

from ml_collections import ConfigDict

from jaxtrain.config import base_config


def get_config() -> ConfigDict:
    """The run's config."""
    config = base_config()
    config.data.source = "folder"
    config.data.image_size = (224,)
    config.data.crop = "random_resized(0.35, 1.0)"
    config.data.eval_crop = 0.875
    config.data.mean = (0.485, 0.456, 0.406)
    config.data.std = (0.229, 0.224, 0.225)
    config.data.augment = "flip|brightness(0.2)|contrast(0.2)|saturation(0.2)"
    config.model.name = "resnet18"
    config.optimizer.name = "adamw"
    config.optimizer.learning_rate = 1e-4
    config.optimizer.rate_rules = "head=10; .*=1"
    config.optimizer.weight_decay = 0.05
    config.schedule.name = "cosine"
    config.schedule.warmup_epochs = 1
    config.train.batch_size = 32
    config.train.epochs = 10
    config.train.label_smoothing = 0.1
    config.eval.batch_size = 64
    config.eval.every_epochs = 1
    config.checkpoint.every_epochs = 1
    config.report.every_steps = 20
    return config
