"""TensorFlow, without the lines that its libraries log, and on the CPU alone.

Import it before anything else that imports TensorFlow, which reads the environment then.
"""

import contextlib
import os

# What goes wrong is raised as well as logged. What oneDNN is used for is logged too early for the
# level to count.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")

import tensorflow as tf

# It would take the whole memory of the GPUs, which JAX needs. Where TensorFlow has been used
# already, as by a user's own model, that has happened.
with contextlib.suppress(RuntimeError):
    tf.config.set_visible_devices([], "GPU")

__all__ = ["tf"]
