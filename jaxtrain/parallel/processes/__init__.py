"""Several processes that train or evaluate together: see `peers`."""
