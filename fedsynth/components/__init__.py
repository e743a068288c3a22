"""What methods are built from. Importing it makes the kinds of update privacy known."""

from fedsynth.components import noisy_updates, protected_updates, secure_updates  # noqa: F401
