"""What methods are built from. Importing it makes known what the loop finds by name."""

from fedsynth.components import noisy_updates, protected_updates, secure_updates, slot_methods  # noqa: F401
