"""An MLP on arrays of features of your own: a table of numbers, with a class for each row.

    jaxtrain train --config=features_mlp --config.data.path=table.npz

`table.npz` holds `features`, numbers `[N, D]`, and `labels`, numbers or names. Some hundreds of
rows take seconds on a CPU. How good it gets is up to the table; not measured on any published one.
"""

from ml_collections import ConfigDict

from jaxtrain.config import base_config


def get_config() -> ConfigDict:
    """The run's config."""
    config = base_config()
    config.data.source = "arrays"
    config.data.standardize = True
    config.model.name = "mlp"
    config.model.mlp.hidden_sizes = (128, 128)
    config.model.mlp.dropout = 0.2
    config.optimizer.name = "adamw"
    config.optimizer.learning_rate = 2e-3
    config.optimizer.weight_decay = 0.01
    config.schedule.name = "cosine"
    config.train.batch_size = 32
    config.train.epochs = 50
    config.eval.every_epochs = 10
    config.checkpoint.every_epochs = 10
    config.report.every_steps = 50
    return config
