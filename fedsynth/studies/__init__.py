"""Many runs: comparisons, tuning, stress tests, advice, quality of synthetic data, checks of a method.

What they try unless told otherwise stands here, light to import: the help of the commands shows it.
"""

CANDIDATES = ("fedavg", "local", "finetune", "logit_adjustment", "moments", "analytic", "feddpms", "gandalf")
"""Methods that advice is about."""

TROUBLES = {
    "dropout": "faults.dropout",
    "late": "faults.late",
    "label-noise": "data.label_noise",
    "byzantine": "faults.byzantine",
}
"""What a stress test makes worse, and the setting that does it."""
SHARES = (0.0, 0.1, 0.2, 0.4)
