"""Devices: the mesh, compilation over it, and stopping."""
