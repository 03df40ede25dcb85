"""What `configs/mnist_mlp.py` does, in Keras 3 on its JAX backend, as a good user would write it.

Run by `scripts/benchmark.py`; it needs `pip install keras` and imports nothing of jaxtrain.

    python scripts/benchmark/keras_mnist.py RECIPE.json MNIST.npz FOLDER

Trains, evaluates and saves (weights and optimizer) after every epoch, and prints the last accuracy
as JSON. Keras writes no TensorBoard events here, since its callback would need TensorFlow.
"""

import json
import os
import sys

os.environ["KERAS_BACKEND"] = "jax"

import keras
import numpy as np


def build(recipe: dict[str, float], total_steps: int) -> keras.Model:
    """The compiled model."""
    model = keras.Sequential(
        [
            keras.layers.Input((784,)),
            keras.layers.Dense(recipe["units"], activation="silu"),
            keras.layers.Dropout(recipe["dropout"]),
            keras.layers.Dense(10),
        ]
    )
    rate = keras.optimizers.schedules.CosineDecay(
        initial_learning_rate=0.0,
        warmup_target=recipe["learning_rate"],
        warmup_steps=recipe["warmup_steps"],
        decay_steps=total_steps - recipe["warmup_steps"],
    )
    model.compile(
        optimizer=keras.optimizers.Adam(rate),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    return model


def main() -> None:
    """Trains as the recipe says."""
    recipe_file, data_file, folder = sys.argv[1:]
    with open(recipe_file) as file:
        recipe = json.load(file)
    keras.utils.set_random_seed(recipe["seed"])
    with np.load(data_file) as data:
        train = data["train_images"].reshape(-1, 784).astype("float32") / 255, data["train_labels"]
        test = data["test_images"].reshape(-1, 784).astype("float32") / 255, data["test_labels"]
    steps = -(-len(train[0]) // recipe["batch_size"])
    history = build(recipe, steps * recipe["epochs"]).fit(
        *train,
        batch_size=recipe["batch_size"],
        epochs=recipe["epochs"],
        validation_data=test,
        validation_batch_size=recipe["eval_batch_size"],
        callbacks=[keras.callbacks.ModelCheckpoint(os.path.join(folder, "{epoch}.keras"))],
        verbose=2,
    )
    print(json.dumps({"accuracy": history.history["val_accuracy"][-1]}))


if __name__ == "__main__":
    main()
