"""FedMix: what is averaged and exchanged, and a run against its first-order formula in float64."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from by_hand import LINEAR, batches, theta
from federations import Ask, Finished, same_bits, some_clients
from torch import Tensor

from fedsynth.methods.fedmix import average_images
from fedsynth.seeding import generator


def ask_of(finished: Finished, task: str) -> Ask:
    (ask,) = [ask for ask in finished.asks if ask.name == task]
    return ask


def test_averages_are_means_of_disjoint_groups(run_method: Callable[..., Finished]) -> None:
    data = some_clients(6, 8)
    finished = run_method("fedmix", data, model=LINEAR, settings={"mean_of": 4})
    for client, reply in ask_of(finished, "average_images").replies.items():
        part = data.train[client]
        groups = {"a": [6], "b": [4, 4]}[client]  # two that are left over join the group before
        assert len(reply["images"]) == len(reply["labels"]) == len(groups)
        # Weighted by the sizes of their groups the averages give back the client's mean: each example is in one.
        assert np.allclose(np.average(reply["images"], axis=0, weights=groups), part.x.mean(0), atol=1e-6)
        counts = np.bincount(part.y, minlength=3)
        assert np.allclose((reply["labels"].numpy() * np.array(groups)[:, None]).sum(0), counts, atol=1e-5)


@pytest.mark.parametrize("left_over", [0, 1, 2])
def test_no_average_is_of_fewer_images_than_asked_for(left_over: int, run_method: Callable[..., Finished]) -> None:
    data = some_clients(6 + left_over, 9)
    finished = run_method("fedmix", data, model=LINEAR, settings={"mean_of": 3})
    reply = ask_of(finished, "average_images").replies["a"]
    assert len(reply["images"]) == 2
    alone = {tuple(image) for image in data.train["a"].x.tolist()}
    assert not alone & {tuple(image) for image in reply["images"].tolist()}


def test_who_has_one_image_sends_none_and_the_others_train_on(run_method: Callable[..., Finished]) -> None:
    finished = run_method("fedmix", some_clients(1, 9), model=LINEAR, settings={"mean_of": 3})
    reply = ask_of(finished, "average_images").replies["a"]
    assert reply["images"].shape == reply["labels"].shape == (0, 3)
    assert len(ask_of(finished, "keep_averages").fields["images"]) == 3
    assert set(finished.rounds()[-1].replies) == {"a", "b"}


def test_where_nobody_can_send_averages_clients_train_as_in_fedavg(run_method: Callable[..., Finished]) -> None:
    data = some_clients(1, 1)
    finished = run_method("fedmix", data, model=LINEAR, settings={"ratio": 0.2})
    assert [ask.name for ask in finished.asks[:2]] == ["average_images", "train"]
    assert same_bits(finished.model, run_method("fedavg", data, model=LINEAR).model)
    assert any("No client has two images" in note for note in finished.fed.participation.notes)


@pytest.mark.parametrize("mean_of", [1, 0, -1])
def test_averages_of_one_image_are_refused_by_settings_and_by_clients(
    mean_of: int, run_method: Callable[..., Finished]
) -> None:
    with pytest.raises(ValueError, match="greater than or equal to 2"):
        run_method("fedmix", some_clients(6, 8), model=LINEAR, settings={"mean_of": mean_of})
    fed = run_method("fedavg", some_clients(6, 8), model=LINEAR).fed
    replies = fed.broadcast(average_images, quorum=0.0, mean_of=mean_of)
    assert len(replies) == 0
    assert "an average of one image is that image" in replies.failures["a"].message


def test_everybody_gets_everybodys_averages_up_to_the_limit(run_method: Callable[..., Finished]) -> None:
    data = some_clients(6, 8, 12)
    all_of_them = run_method("fedmix", data, model=LINEAR, settings={"mean_of": 2})
    sent = torch.cat([reply["images"] for reply in ask_of(all_of_them, "average_images").replies.values()])
    kept = ask_of(all_of_them, "keep_averages").fields["images"]
    assert sorted(map(tuple, sent.tolist())) == sorted(map(tuple, kept.tolist()))
    limited = run_method("fedmix", data, model=LINEAR, settings={"mean_of": 2, "limit": 5})
    request = ask_of(limited, "keep_averages").fields
    assert len(request["images"]) == len(request["labels"]) == 5
    assert same_bits(limited.state("a")["averages"], request)
    assert set(map(tuple, request["images"].tolist())) <= set(map(tuple, sent.tolist()))


def naive_loss(w: Tensor, x: Tensor, y: Tensor, image: Tensor, label: Tensor, ratio: float) -> Tensor:
    """The formula one example at a time, with an explicit derivative in the input."""
    total = torch.zeros((), dtype=torch.float64)
    for example, target in zip(x, y, strict=True):
        point = ((1 - ratio) * example).requires_grad_()
        log_p = torch.log_softmax(w[:, :-1] @ point + w[:, -1], 0)
        own = (1 - ratio) * -log_p[target]
        (slope,) = torch.autograd.grad(own, point, create_graph=True)
        total = total + own + ratio * -(label * log_p).sum() + ratio * (slope * image).sum()
    return total / len(y)


def test_a_round_by_hand(run_method: Callable[..., Finished]) -> None:
    data, ratio, lr = some_clients(5, 9), 0.2, 0.3
    settings = {"ratio": ratio, "mean_of": 3}
    finished = run_method(
        "fedmix", data, model=LINEAR, settings=settings, rounds=1, batch_size=4, lr=lr, local_epochs=2
    )
    kept = ask_of(finished, "keep_averages").fields
    ask = finished.rounds()[0]
    ends = []
    for client in "ab":
        x, y = torch.from_numpy(data.train[client].x).double(), torch.from_numpy(data.train[client].y)
        w = torch.from_numpy(theta(ask.fields["model"])).requires_grad_()
        draws = generator(0, "mixup", client, 1)
        for rows in batches(client, 1, len(y), batch=4, epochs=2):
            row = int(draws.integers(len(kept["images"])))  # one averaged pair a batch
            image, label = kept["images"][row].double(), kept["labels"][row].double()
            (slope,) = torch.autograd.grad(naive_loss(w, x[rows], y[rows], image, label, ratio), w)
            w = (w - lr * slope).detach().requires_grad_()
        assert np.allclose(theta(ask.replies[client]["model"]), w.detach(), rtol=2e-5, atol=2e-6)
        ends.append(w.detach().numpy())
    assert np.allclose(theta(finished.model), np.average(ends, axis=0, weights=[5, 9]), rtol=2e-5, atol=2e-6)


def test_blended_images_are_entered_as_unprotected_releases(run_method: Callable[..., Finished]) -> None:
    finished = run_method("fedmix", some_clients(6, 8), model=LINEAR)
    rows = finished.fed.participation.ledger.rows(1e-5)
    [row] = [row for row in rows if row.release == "fedmix.average_images.images"]
    assert (row.clients, row.times, row.proven) == (["a", "b"], 1, "none")
