"""The configuration: one schema, strict values, and recipes that set them.

A recipe is a Python file:

    from jaxtrain.config import base_config

    def get_config():
        config = base_config()
        config.train.epochs = 10
        return config
"""

from jaxtrain.config.base import base_config
from jaxtrain.config.recipe import Recipe, load_recipe, packaged_recipes, resolve
from jaxtrain.config.request import (
    CheckRequest,
    EvalRequest,
    ExportRequest,
    PredictRequest,
    Processes,
    TrainRequest,
)
from jaxtrain.config.schema import Config
from jaxtrain.config.store import difference, flatten, identity, load_json, to_dict, to_json
from jaxtrain.config.table import Key, key_docs, nearest
from jaxtrain.config.text import BOOLEANS, apply_overrides, parse_number
from jaxtrain.config.values import from_dict
from jaxtrain.config.variants import RATE_KEYS, SEED, Variant, explained_sweep, variants

__all__ = [
    "BOOLEANS",
    "RATE_KEYS",
    "SEED",
    "CheckRequest",
    "Config",
    "EvalRequest",
    "ExportRequest",
    "Key",
    "PredictRequest",
    "Processes",
    "Recipe",
    "TrainRequest",
    "Variant",
    "apply_overrides",
    "base_config",
    "difference",
    "explained_sweep",
    "flatten",
    "from_dict",
    "identity",
    "key_docs",
    "load_json",
    "load_recipe",
    "nearest",
    "packaged_recipes",
    "parse_number",
    "resolve",
    "to_dict",
    "to_json",
    "variants",
]
