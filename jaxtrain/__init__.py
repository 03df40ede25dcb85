"""jaxtrain: train, evaluate and ship image classifiers in JAX from one config file."""

__version__ = "0.1.0"
