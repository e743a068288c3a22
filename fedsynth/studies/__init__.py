"""Many runs: comparisons, tuning, stress tests, advice, quality of synthetic data, checks of a method."""
