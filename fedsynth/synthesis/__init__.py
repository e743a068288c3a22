"""Generators of synthetic data. Plain PyTorch: nothing here knows of a federation."""
