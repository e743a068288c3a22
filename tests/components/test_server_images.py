"""Images from all received models as one: DENSE's equations by hand, opinions, the filter, the store."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from federations import SMALL, Ask, Finished, five_clients, same_bits
from torch import nn

from fedsynth.components.one_shot import as_ensemble
from fedsynth.components.server_images import ServerImages, SourceSettings, keep_rounds, mean_opinion
from fedsynth.data.federated import FederatedData
from fedsynth.learning.models import build_model, instantiate
from fedsynth.learning.weights import weights_of
from fedsynth.synthesis.inversion import Inversion, invert

RunMethod = Callable[..., Finished]
QUICK = {"steps": 2, "per_class": 2, "start_round": 1}
TINY = {"model": SMALL["zda_cnn"], "rounds": 2, "local_epochs": 1, "batch_size": 64}
AS_ONE = QUICK | {"source": "ensemble"}


@pytest.fixture(scope="module")
def digits() -> FederatedData:
    """A few hundred digits, unevenly over five clients."""
    return five_clients()


def asked(done: Finished, task: str) -> list[Ask]:
    return [ask for ask in done.asks if ask.name == task]


def test_inverting_all_models_as_one_is_dense_by_hand() -> None:
    """Eq. 1 and 3: cross-entropy of the mean scores, and the mean over the models of their BatchNorm terms."""
    spec, labels = SMALL["zda_cnn"], torch.arange(4).repeat(3)
    members = [build_model(spec, (1, 8, 8), 4, seed=seed) for seed in range(3)]
    draw = torch.Generator().manual_seed(0)
    for member in members:
        for layer in member.modules():
            if isinstance(layer, nn.BatchNorm2d):
                layer.running_mean.copy_(torch.randn(layer.running_mean.shape, generator=draw) * 0.3)
                layer.running_var.copy_(torch.rand(layer.running_var.shape, generator=draw) + 0.5)
    votes = as_ensemble([(weights_of(member), 1.0) for member in members])
    together = instantiate(spec.model_copy(update={"vote": "scores"}), (1, 8, 8), 4, votes).double()
    members = [member.double().eval() for member in members]
    x = torch.rand((12, 1, 8, 8), generator=draw, dtype=torch.float64)
    how = Inversion(1, 1.0, "sgd", low=None, high=None, statistics=2.0 / 3, reduction="mean")

    terms: list[torch.Tensor] = []

    def measure(layer: nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
        variance, mean = torch.var_mean(inputs[0], [0, 2, 3], correction=0)
        stored = (layer.running_var + layer.eps).sqrt()
        terms.append((mean - layer.running_mean).square().sum())
        terms.append(((variance + layer.eps).sqrt() - stored).square().sum())

    for member in members:
        for layer in member.modules():
            if isinstance(layer, nn.BatchNorm2d):
                layer.register_forward_pre_hook(measure)
    y = x.clone().requires_grad_()
    scores = sum(member(y) for member in members) / 3
    (F.cross_entropy(scores, labels) + 2.0 * torch.stack(terms).sum() / 3).backward()
    assert torch.allclose(invert(together, x, labels, how), x - y.grad, rtol=0, atol=1e-9)


def test_the_mean_opinion_by_hand() -> None:
    scores = torch.tensor([[[2.0, 0.0], [1.0, 1.0]], [[0.0, 1.0], [3.0, 0.0]], [[1.0, 1.0], [0.0, 4.0]]])
    said = (scores + torch.tensor([5.0, -1.0, 0.3]).view(3, 1, 1)).softmax(2)  # constants do not matter
    assert torch.allclose(mean_opinion(said), scores.mean(0).softmax(1), atol=1e-6)
    without = torch.stack([scores[1:, 0].mean(0), scores[:2, 1].mean(0)]).softmax(1)
    assert torch.allclose(mean_opinion(said, torch.tensor([0, 2])), without, atol=1e-6)
    assert torch.allclose(mean_opinion(said[:1], torch.tensor([0, 0])), said[0], atol=1e-6), "there is nobody else"
    certain = torch.tensor([[[1.0, 0.0]], [[0.0, 1.0]]])
    assert mean_opinion(certain).isfinite().all()


def test_what_the_server_trains_on() -> None:
    soft = {(source, labels): SourceSettings(source=source, labels=labels).soft for source, labels in CASES}
    assert soft == CASES


CASES = {
    ("models", "auto"): False,
    ("models", "opinion"): True,
    ("ensemble", "auto"): True,
    ("ensemble", "wanted"): False,
}


def test_all_models_make_images_as_one_and_say_what_they_show(digits: FederatedData, run_method: RunMethod) -> None:
    done = run_method("fed_zdas", digits, settings=AS_ONE | {"per_class": 7}, **TINY)
    for trained, made, said, tuned in zip(
        done.rounds(),
        asked(done, "invert_model"),
        asked(done, "classify_images"),
        asked(done, "tune_model"),
        strict=True,
    ):
        assert list(made.requests) == ["@0", "@1"], "in jobs of five of each class"
        labels = [request["fields"]["labels"].bincount().tolist() for request in made.requests.values()]
        assert labels == [[5] * 10, [2] * 10]
        fields = made.requests["@0"]["fields"]
        assert fields["spec"]["vote"] == "scores"
        assert same_bits(fields["model"], as_ensemble([(r["model"], 1.0) for r in trained.replies.values()]))
        assert fields["inversion"]["statistics"] == pytest.approx(1.0 / len(trained.replies))
        probabilities = torch.stack([reply["probabilities"] for reply in said.replies.values()])
        assert torch.equal(tuned.fields["labels"], mean_opinion(probabilities))
        assert tuned.fields["images"].shape == (70, 1, 8, 8)


def test_the_filter_asks_the_other_models(digits: FederatedData, run_method: RunMethod) -> None:
    plain = run_method("fed_zdas", digits, settings=QUICK, **TINY)
    done = run_method("fed_zdas", digits, settings=QUICK | {"consensus": 0.12}, **TINY)
    made, said, tuned = (asked(done, task)[0] for task in ("invert_model", "classify_images", "tune_model"))
    images = torch.cat([reply["images"] for reply in made.replies.values()])
    assert torch.equal(images, torch.cat([r["images"] for r in asked(plain, "invert_model")[0].replies.values()]))
    labels, makers = torch.arange(10).repeat_interleave(2).repeat(5), torch.arange(5).repeat_interleave(20)
    probabilities = torch.stack([reply["probabilities"] for reply in said.replies.values()])
    agreed = mean_opinion(probabilities, makers).gather(1, labels[:, None]).squeeze(1) >= 0.12
    assert 0 < agreed.sum() < len(agreed)
    assert torch.equal(tuned.fields["images"], images[agreed])
    assert torch.equal(tuned.fields["labels"], labels[agreed])


def test_where_no_image_is_agreed_on_the_average_stays(digits: FederatedData, run_method: RunMethod) -> None:
    done = run_method("fed_zdas", digits, settings=QUICK | {"consensus": 0.999}, **TINY)
    assert same_bits(done.model, run_method("fedavg", digits, settings={"local_data": "own"}, **TINY).model)
    assert not asked(done, "tune_model")


def test_the_store_keeps_the_last_rounds(digits: FederatedData, run_method: RunMethod) -> None:
    done = run_method("fed_zdas", digits, settings=AS_ONE | {"store": 2}, **TINY | {"rounds": 3})
    tuned = [ask.fields["images"] for ask in asked(done, "tune_model")]
    made = [torch.cat([reply["images"] for reply in ask.replies.values()]) for ask in asked(done, "invert_model")]
    assert torch.equal(tuned[0], made[0])
    assert torch.equal(tuned[1], torch.cat(made[:2]))
    assert torch.equal(tuned[2], torch.cat(made[1:]))
    assert all(
        len(ask.fields["labels"]) == len(images) for ask, images in zip(asked(done, "tune_model"), tuned, strict=True)
    )


def test_without_a_store_the_memory_stays_small() -> None:
    memory: dict[str, object] = {}
    one = ServerImages(torch.zeros(2, 1, 8, 8), torch.arange(2), torch.arange(2))
    assert keep_rounds(memory, one, 1) is one
    assert memory == {}


@pytest.mark.parametrize("kind", ["noise", "real"])
def test_controls_of_the_ensemble_keep_the_wanted_classes(
    kind: str, digits: FederatedData, run_method: RunMethod
) -> None:
    done = run_method("fed_zdas", digits, settings=AS_ONE | {"images": kind, "consensus": 0.5}, **TINY)
    for ask in asked(done, "tune_model"):
        assert ask.fields["labels"].tolist() == torch.arange(10).repeat_interleave(2).tolist()
    assert not asked(done, "invert_model")
    assert not asked(done, "classify_images")


def test_the_wire_gives_the_same_bits(digits: FederatedData, run_method: RunMethod) -> None:
    """Weights of an ensemble, priors and opinions, all as bytes."""
    priors = {"shifts": 1, "variation": 0.01, "likeness": 0.01, "converged": 0.5}
    settings = AS_ONE | priors | {"store": 2, "consensus": 0.05, "steps": 25}
    here, wire = (
        run_method("fed_zdas", digits, settings=settings, engine=engine, **TINY) for engine in ("local", "wire")
    )
    assert same_bits(here.model, wire.model)
    assert asked(wire, "invert_model")[0].requests["@0"]["fields"]["inversion"]["priors"]["shifts"] == 1
