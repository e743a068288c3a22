"""Coverage, diversity and the distance to the closest record, on points whose answer is plain."""

from __future__ import annotations

import pytest
import torch

from fedsynth.evaluation.quality import closer_to_training, coverage, diversity, most_on_one_record


def cloud(seed: int, rows: int = 200) -> torch.Tensor:
    return torch.randn(rows, 4, generator=torch.Generator().manual_seed(seed))


def test_coverage_is_full_for_the_same_points_and_nothing_for_points_far_away():
    real = cloud(0)
    assert coverage(real, real) == 1.0
    assert coverage(real, real + 100) == 0.0
    assert 0.8 < coverage(real, cloud(1)) <= 1.0


def test_coverage_of_half_of_the_real_points_is_a_half():
    real = torch.cat([cloud(0), cloud(1) + 100])
    assert coverage(real, cloud(0)) == pytest.approx(0.5)


def test_diversity_is_one_for_a_like_cloud_and_zero_for_a_collapsed_one():
    real = cloud(0)
    assert diversity(real, real) == pytest.approx(1.0)
    assert diversity(real, real / 2) == pytest.approx(0.5)
    assert diversity(real, real[:1].repeat(10, 1)) == pytest.approx(0.0, abs=1e-6)


def test_copies_of_training_records_are_seen_and_fresh_draws_are_not():
    training, holdout = cloud(0), cloud(1)
    assert closer_to_training(training[:50] + 1e-4, training, holdout) == 1.0
    assert closer_to_training(cloud(2, 1000), training, holdout) == pytest.approx(0.5, abs=0.06)
    assert closer_to_training(training, training, training) == 0.5
    with pytest.raises(ValueError, match="equally many"):
        closer_to_training(training, training, holdout[:10])


def test_a_class_that_copies_one_record_is_found():
    training, drawn, labels = cloud(1, 200), cloud(3, 100), torch.arange(100) % 4
    assert most_on_one_record(drawn, labels, training)[1] < 0.5
    drawn[labels == 2] = training[17] + 1e-3
    assert most_on_one_record(drawn, labels, training) == (2, 1.0)
