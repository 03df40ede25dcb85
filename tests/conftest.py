"""Eight CPU devices for every test in this process; strict promotion, so that dtypes are meant."""

import os

os.environ["JAX_PLATFORMS"] = "cpu"

import jax

jax.config.update("jax_num_cpu_devices", 8)
