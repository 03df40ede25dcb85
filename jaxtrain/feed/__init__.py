"""How a split's batches reach a compiled step: from the devices' memory or from the host's."""

from jaxtrain.feed.batches import Feed
from jaxtrain.feed.form import AUTO_RESIDENT_BYTES, Form, form, is_resident

__all__ = ["AUTO_RESIDENT_BYTES", "Feed", "Form", "form", "is_resident"]
