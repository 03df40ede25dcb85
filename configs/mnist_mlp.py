"""A two-layer MLP (784-512-10) on MNIST, which ships with jaxtrain.

    jaxtrain train --config=mnist_mlp

2 CPU cores: about 12 seconds, 98.61 % test accuracy at the last step (mean of 5 seeds, deviation
0.05, by scripts/benchmark.py accuracy).
"""

from ml_collections import ConfigDict

from jaxtrain.config import base_config


def get_config() -> ConfigDict:
    """The run's config."""
    config = base_config()
    config.data.source = "mnist"
    config.model.name = "mlp"
    config.model.mlp.hidden_sizes = (512,)
    config.model.mlp.dropout = 0.3
    config.optimizer.name = "adam"
    config.optimizer.learning_rate = 4e-3
    config.schedule.name = "cosine"
    config.schedule.warmup_steps = 200
    config.train.batch_size = 128
    config.train.epochs = 10
    config.eval.every_epochs = 1
    config.checkpoint.every_epochs = 1
    return config
