"""A trained model, from a run's checkpoint or from an exported file: what the other verbs use."""

from jaxtrain.predictor.contract import Predictor, open_split
from jaxtrain.predictor.exported import Exported, open_export
from jaxtrain.predictor.restored import Restored, load, restore

__all__ = ["Exported", "Predictor", "Restored", "load", "open_export", "open_split", "restore"]
