"""Well-formed requests for every registered task, with settings at their extremes: what a lying server could send."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st
from strict_sites import CLASSES, NAME, SHAPE, TinyData

from fedsynth.components.local_training import UpdatePrivacy
from fedsynth.components.slots import LocalData, LocalObjective
from fedsynth.learning.models import ModelSpec, initial_model
from fedsynth.learning.weights import Weights, weights_of
from fedsynth.synthesis.autoencoder import build_autoencoder
from fedsynth.synthesis.gan import GanSpec, build_gan
from fedsynth.synthesis.vae_classifier import VaeSpec, start_vae

Draw = st.DrawFn
SCHEMA = TinyData(1).schema
SPECS = [
    ModelSpec(name="mlp", hidden=(3,)),
    ModelSpec(name="cnn", channels=(2,), hidden=(3,)),
    ModelSpec(name="mlp", hidden=(3,), norm="batch"),
]
VAE = SPECS[1]  # the classifier of what is drawn with an auto-encoder
GAN = GanSpec(channels=2, latent=2)
SCALES = [0.0, 1e-20, 1.0, 1.0, 1e4, 1e19, 1e38]
IMAGES = torch.rand((6, *SHAPE), generator=torch.Generator().manual_seed(0))
LABELS = torch.arange(6) % CLASSES
ONE_HOT = torch.eye(CLASSES)[LABELS]
INVERSION = {"steps": 1, "lr": 0.1}
SYNTHESIS = {
    **{"certainty": None, "tries": 1, "classes": 1, "quota": 2, "hardness": 1.0},
    **{"redraw": False, "synthetic": "generated", "real": None},
}


def start_weights(spec: ModelSpec) -> Weights:
    """The weights that everybody starts from."""
    return weights_of(initial_model(0, spec, SCHEMA))


def pick(draw: Draw, *options: Any) -> Any:
    return draw(st.sampled_from(options))


def scaled(draw: Draw, weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Weights as they are, or far too small or large, and still finite."""
    scale = draw(st.sampled_from(SCALES))
    signs = draw(st.booleans())
    made = {}
    for name, entry in weights.items():
        large = entry.clone() if not entry.is_floating_point() else (entry * scale).clamp(-3e38, 3e38)
        alternating = torch.where(torch.arange(entry.numel()).reshape(entry.shape) % 2 == 0, large, -large)
        made[name] = alternating if signs and entry.is_floating_point() else large
    return made


def model(draw: Draw) -> dict[str, Any]:
    spec = draw(st.sampled_from(SPECS))
    return {"model": scaled(draw, start_weights(spec)), "spec": spec.model_dump(mode="json")}


def several_models(draw: Draw) -> dict[str, Any]:
    """Models of several groups, or of none."""
    one = model(draw)
    names = pick(draw, ["1"], ["1", "2"], [""], [])
    return {"models": {f"{n}/{e}": entry for n in names for e, entry in one["model"].items()}, "spec": one["spec"]}


def training(draw: Draw) -> dict[str, Any]:
    optimizer = pick(draw, "sgd", "adam", "adamw")
    return {
        "epochs": pick(draw, 0, 1, 2),
        "batch_size": pick(draw, 1, 7, 20, 10**6),
        "lr": pick(draw, 1e-30, 0.1, 0.1, 1e6, 1e30),
        "optimizer": optimizer,
        "momentum": pick(draw, 0.0, 0.99) if optimizer == "sgd" else 0.0,
        "weight_decay": pick(draw, 0.0, 1.0, 1e30),
        "max_grad_norm": pick(draw, None, 1e-30, 1.0),
    }


def update_privacy(draw: Draw, usual: bool = False) -> dict[str, Any]:
    """A value of the slot that protects updates, with its own settings; a `usual` one costs little, and leaves."""
    names = ("dp_sgd", "clipped") if usual else ("dp_sgd", "dp_sgd", "clipped", "clipped", "laplace", "gaussian")
    name = pick(draw, *names)
    noise = pick(draw, 20.0, 60.0) if usual else pick(draw, 1e-9, 1.0, 20.0, 20.0, 60.0, 60.0, 1e9)
    calibrated = name == "dp_sgd" and draw(st.integers(0, 19)) == 0
    settings = {
        "clip": pick(draw, 1e-9, 0.5, 1.0, 1e3, 1e9),
        "noise": None if calibrated else noise,
        "noise_at": "client" if usual else pick(draw, "client", "server"),
        "target": 0.4 if calibrated else None,
        "delta": pick(draw, 1e-5, 0.5, 0.999),
        "trainings": pick(draw, 1, 3),
    }
    return {"name": name} | {key: settings[key] for key in UpdatePrivacy.known[name].model_fields}


def maybe_protected(draw: Draw) -> dict[str, Any]:
    return {"updates": update_privacy(draw)} if draw(st.integers(0, 4)) else {}


def objective(draw: Draw) -> dict[str, Any]:
    return {"name": pick(draw, "plain", "plain", "logit_adjusted", *sorted(LocalObjective.known))}


def local_data(draw: Draw) -> dict[str, Any]:
    return {
        "local_data": pick(draw, {"name": "moments", "per_class": 2}, *({"name": n} for n in sorted(LocalData.known))),
        "given": pick(draw, None, {"images": IMAGES, "labels": LABELS}),
    }


def request(draw: Draw, spec: ModelSpec) -> dict[str, Any]:
    """How to train; what has a default may be left out."""
    return {
        "spec": spec.model_dump(mode="json"),
        "training": training(draw),
        "objective": objective(draw),
        "keeps": pick(draw, "nothing", "nothing", "buffers", "norm", "head", 1, 2),
        "sent": {},
        **maybe_protected(draw),
        **(local_data(draw) if draw(st.integers(0, 2)) == 0 else {}),
        **({"remember": True} if draw(st.booleans()) else {}),
    }


def train(draw: Draw) -> dict[str, Any]:
    """Every other one is what an honest server could send, but for weights and settings at their extremes."""
    if draw(st.booleans()):
        spec = pick(draw, *SPECS[:2])
        asked = {"spec": spec.model_dump(mode="json"), "training": training(draw)}
        asked |= {"updates": update_privacy(draw, usual=True)}
    else:
        spec = draw(st.sampled_from(SPECS))
        asked = request(draw, spec)
    return {"model": scaled(draw, start_weights(spec)), "request": asked}


def statistic(draw: Draw) -> dict[str, Any]:
    """What is summed up, with settings at their extremes."""
    if draw(st.booleans()):
        return feature_statistic(draw)
    size = pick(draw, 1, 2, 64)
    if pick(draw, "centre", "class_moments") == "centre":
        return {"name": "centre", "size": size}
    centre = torch.full((min(size, SHAPE[1]) ** 2,), 1.0, dtype=torch.float64)
    return {
        **{"name": "class_moments", "size": size, "covariance": pick(draw, "class", "shared")},
        **{
            "centre": pick(draw, None, centre * pick(draw, 0.0, 0.3, 1e300)),
            "radius": pick(draw, None, 1e-3, 1.2, 1e300),
        },
    }


def feature_statistic(draw: Draw) -> dict[str, Any]:
    """Sums of features of a network with any weights."""
    of, lengths = model(draw), (1e-3, 1.2, 1e300)
    if draw(st.booleans()):
        return {"name": "feature_sum", "of": of, "length": pick(draw, *lengths)}
    return {
        **{"name": "feature_moments", "of": of, "covariance": pick(draw, "class", "shared")},
        **{"components": pick(draw, 1, 1, 1, 2), "radius": pick(draw, None, *lengths)},
        "centre": pick(draw, None, torch.full((3,), pick(draw, 0.0, 0.3, 1e300), dtype=torch.float64)),
    }


def class_models(draw: Draw) -> dict[str, Any]:
    """Gaussians to draw from, which may not fit."""
    size = pick(draw, 1, 2, 3)
    means = torch.full((CLASSES, 4), pick(draw, 0.0, 1e38))
    fitting = {"means": means, "factors": torch.ones((pick(draw, 1, CLASSES), 4, 2))}
    return {"size": size, "model": {**fitting, "known": torch.ones(CLASSES, dtype=torch.bool)}}


def vae(draw: Draw) -> dict[str, Any]:
    """Weights with an auto-encoder beside them, and what that is."""
    shape = VaeSpec(3, draw(st.booleans()), pick(draw, 0.0, 1.0))
    weights = start_vae(0, VAE, shape, SCHEMA, start_weights(VAE)).entries()
    return {"model": scaled(draw, weights), "vae": vars(shape)}


def calibration(draw: Draw) -> dict[str, Any]:
    return {
        "epsilon": pick(draw, 1e-6, 0.1, 0.5, 8.0, 1e6),
        "delta": pick(draw, 1e-300, 1e-5, 0.5, 0.999),
        "clip": pick(draw, 1e-6, 0.3, 1.0),
        "moments": draw(st.booleans()),
    }


def gan(draw: Draw) -> dict[str, torch.Tensor]:
    return scaled(draw, build_gan(GAN, SHAPE, CLASSES, seed=0).weights())


def gan_training(draw: Draw) -> dict[str, Any]:
    return {
        "batch_size": pick(draw, 1, 5, 20, 10**3),
        "generator_lr": pick(draw, 1e-30, 2e-3, 1e20),
        "critic_lr": pick(draw, 1e-30, 2e-3, 1.0, 1e20),
        "betas": list(pick(draw, (0.0, 0.9), (0.9, 0.999))),
        "critic_steps": pick(draw, 1, 2),
        "penalty": pick(draw, 0.0, 10.0, 1e30),
    }


def samples(draw: Draw) -> dict[str, Any]:
    return {"images": IMAGES * pick(draw, 0.0, 1.0, 1e30), "labels": LABELS}


def client_gan(draw: Draw) -> dict[str, Any]:
    return {"generator": gan(draw), "classes": list(range(CLASSES))}


def gan_request(draw: Draw) -> dict[str, Any]:
    return {"spec": GAN.model_dump(), "training": gan_training(draw), "steps": pick(draw, 0, 1, 2)}


def secure(draw: Draw) -> dict[str, Any]:
    return {"session": pick(draw, "a", "b"), "peers": [NAME, "y", "z"], "equal": draw(st.booleans())}


def scope(draw: Draw) -> dict[str, Any]:
    return {"scope": pick(draw, None, ["record", "add or remove one"], ["client", "replace one"])}


def top_up(draw: Draw) -> dict[str, Any]:
    generators = {
        "spec": GAN.model_dump(),
        "weights": [gan(draw)],
        "known": [[True] * CLASSES],
        "mixes": [[1.0] * CLASSES],
    }
    how = {
        **{"tau": pick(draw, 0.0, 0.5, 1.0, 50.0), "static": pick(draw, None, {}), "noisy": draw(st.booleans())},
        **{"synthetic": pick(draw, "generated", "noise"), "labeller": {}, "spec": SPECS[0].model_dump(), "real": None},
        "solver": pick(draw, "least_squares", "pseudo_inverse"),
    }
    return {"generators": generators, "how": how}


def distilled(draw: Draw) -> dict[str, Any]:
    """A model to distil others of its kind into."""
    asked = model(draw)
    return {**asked, "teachers": [asked["model"]] * 2, "latent": 2, "channels": 2, "training": training(draw)}


REQUESTS: dict[str, Callable[[Draw], dict[str, Any]]] = {
    "ablations.draw_real_samples": lambda d: {"per_class": pick(d, 0, 1, 10**6)},
    "agg_enhance.clients.make_candidates": lambda d: {
        **{"spec": SPECS[0].model_dump(), "start": IMAGES[:CLASSES], "inversion": INVERSION}
    },
    "agg_enhance.clients.score_candidates": lambda d: {"spec": SPECS[0].model_dump(), "images": IMAGES},
    "agg_enhance.clients.score_masked": lambda d: {
        **{"secure": secure(d), "spec": SPECS[0].model_dump(), "images": IMAGES, "labels": LABELS}
    },
    "astraea.balance_classes": lambda d: {"ratios": np.full(CLASSES, pick(d, 0.0, 0.5, 3.0)), "static": {}},
    "class_counts.count_classes": lambda d: {
        "epsilon": pick(d, None, 1e-3, 0.2, 0.2, 0.9, 500.0),
        "delta": pick(d, 1e-5, 0.5, 0.99),
        "keep": d(st.booleans()),
    },
    "class_bias.equalise_head": lambda d: {
        **model(d),
        **{"images": IMAGES, "through": pick(d, "bias", "weights"), "strength": pick(d, 0.0, 0.5, 1.0)},
    },
    "data_sharing.contribute": lambda d: {"wanted": np.full(CLASSES, pick(d, 0, 2, 10**6))},
    "data_sharing.keep_shared": lambda d: {"samples": samples(d)},
    "dense.distil_ensemble": lambda d: {
        **distilled(d),
        "how": {"epochs": 1, "generator_steps": 1, "batch_size": 4, "generator_lr": pick(d, 1e-30, 0.01, 1e20)},
    },
    "faug.replenish": lambda d: {"gan": client_gan(d), "spec": GAN.model_dump()},
    "faug.train_distilled": lambda d: {
        **{"spec": SPECS[0].model_dump(), "training": training(d), "weight": pick(d, 0.0, 1.0, 1e30)},
        **{"targets": torch.eye(CLASSES), "known": torch.ones(CLASSES, dtype=torch.bool)},
    },
    "fedavg.train": lambda d: {**model(d), "training": training(d)},
    "feddpms.clients.name_scarce_classes": lambda d: {"n": pick(d, 0, 1, 3)},
    "feddpms.clients.share_statistics": lambda d: {
        **vae(d),
        **{"spec": VAE.model_dump(mode="json"), "calibration": calibration(d)},
    },
    "feddpms.clients.train_augmented": lambda d: {
        **vae(d),
        **{"request": request(d, VAE), "decoder": {}, "order": None, "synthesis": SYNTHESIS, "share": None},
    },
    "feddpms.clients.train_vae": lambda d: {
        **vae(d),
        **{"request": request(d, VAE), "upload_decoder": d(st.booleans())},
    },
    "fedftg.distil_hard_samples": lambda d: {
        **{**distilled(d), "generator": {}},
        **{"shares": torch.ones((2, CLASSES)) / 2, "frequencies": torch.ones(CLASSES) / CLASSES},
        "how": {"iterations": 1, "model_steps": 1, "batch_size": 4, "generator_lr": pick(d, 1e-30, 0.01, 1e20)},
    },
    "fedgen.learn_features": lambda d: {
        **{"generator": {}, "noise": 2, "hidden": 3, "shares": torch.ones((2, CLASSES)) / 2},
        "heads": [scaled(d, {"weight": torch.ones((CLASSES, 3)), "bias": torch.ones(CLASSES)}) for _ in range(2)],
        "frequencies": torch.ones(CLASSES) / CLASSES,
        "training": {"steps": pick(d, 0, 2), "batch_size": 4, "lr": pick(d, 1e-30, 0.1), "diversity": 1.0},
    },
    "fedmix.average_images": lambda d: {"mean_of": pick(d, 2, 3, 10**6)},
    "fedmix.keep_averages": lambda d: {"images": IMAGES, "labels": ONE_HOT},
    "groups.join_group": lambda d: {"group": "a"},
    "ifca.choose_group": several_models,
    "gandalf.clients.top_up": top_up,
    "gandalf.clients.train_gan_visit": lambda d: {
        **{"gan": gan(d), "moments": {}},
        "visit": {
            **gan_request(d),
            **{"keep_moments": d(st.booleans()), "sigma": pick(d, 0.0, 1.0, 1e9), "visits": pick(d, 1, 5)},
            **{"updates": {"name": "none"}},
            **maybe_protected(d),
        },
    },
    "local_training.train": train,
    "moments.keep_moments": lambda d: {**class_models(d), "real": pick(d, None, samples(d))},
    "pfl_gan.client_gans.draw_set": lambda d: {"gan": client_gan(d), "spec": GAN.model_dump(), "per_class": 2},
    "pfl_gan.client_gans.learn_encoder": lambda d: {"images": IMAGES, "latent": 4, "steps": 1},
    "pfl_gan.client_gans.profile_set": lambda d: {
        **{"images": IMAGES, "encoder": build_autoencoder(SHAPE, 4, 0).state_dict(), "latent": 4}
    },
    "pfl_gan.client_gans.train_own_gan": lambda d: {"request": {**gan_request(d), **maybe_protected(d)}},
    "pfl_gan.mixed_batches.receive_generator": lambda d: {
        "kept": {"gan": client_gan(d), "spec": GAN.model_dump(), "noise": d(st.booleans())},
        "pool": pick(d, 0, 4),
    },
    "pfl_gan.mixed_batches.receive_samples": lambda d: {
        **{"samples": samples(d), "noise": d(st.booleans()), "lacking": d(st.booleans())},
        "duplicates": d(st.booleans()),
    },
    "pfl_gan.mixed_batches.train_on_mixed_batches": lambda d: {
        **{"spec": SPECS[0].model_dump(), "training": training(d), "per_step": pick(d, 0, 2)}
    },
    "pfl_gan.refining.refine_gan": lambda d: {"samples": samples(d), "request": gan_request(d), "name": "a"},
    "recalibration.measure": model,
    "released_sums.release_masked_sum": lambda d: {
        **{"secure": secure(d), "statistic": statistic(d), "mu": pick(d, None, 0.1, 0.3), "trusting": d(st.booleans())}
    },
    "released_sums.release_sum": lambda d: {"statistic": statistic(d), "mu": pick(d, None, 0.0, 0.1, 0.3, 1e9)},
    "references.train_alone": lambda d: {
        **{"spec": SPECS[0].model_dump(), "training": training(d), "balanced": d(st.booleans())}
    },
    "rfa_rfd.distil_model": lambda d: {**model(d), "images": IMAGES, "targets": ONE_HOT, "training": training(d)},
    "secure_aggregation.offer_keys": lambda d: {"session": pick(d, "a", "b"), **scope(d)},
    "secure_aggregation.open_sum": lambda d: {
        **{"session": "a", "stayed": [NAME, "y", "z"], "left": [], "shares": {}},
        **scope(d),
    },
    "secure_aggregation.share_secrets": lambda d: {"session": "a", "keys": {}, "threshold": 2, **scope(d)},
    "secure_updates.train_masked": lambda d: {"secure": secure(d), **train(d)},
    "server_work.classify_images": lambda d: {**model(d), "images": IMAGES},
    "server_work.invert_model": lambda d: {**model(d), "start": IMAGES, "labels": LABELS, "inversion": INVERSION},
    "server_work.tune_model": lambda d: {
        **model(d),
        **{"images": IMAGES, "labels": LABELS, "training": training(d), "keep_statistics": False},
    },
    "static_augmentation.augment_minorities": lambda d: {"copies": pick(d, 0, 1, 2), "static": {}},
    "virtual_features.tune_head": lambda d: {
        **model(d),
        **{"features": torch.ones((6, 3)), "labels": LABELS, "training": training(d)},
    },
    "views.score": lambda d: {
        **{**model(d), "parts": ["validation", "test"]},
        "measures": pick(d, [], ["auroc"], ["f1", "auroc", "auprc", "ece", "brier"]),
    },
}
"""By task: fields that fit it."""

RELEASING = (
    *("local_training.train",) * 3,
    "gandalf.clients.train_gan_visit",
    "pfl_gan.client_gans.train_own_gan",
    "feddpms.clients.share_statistics",
    "class_counts.count_classes",
    "released_sums.release_sum",
)
"""Tasks that can claim a guarantee, which are asked for more often than the others."""


@st.composite
def requests(draw: Draw, tasks: tuple[str, ...] = ()) -> tuple[str, dict[str, Any]]:
    """A task and fields for it."""
    name = draw(st.sampled_from(tasks or (*RELEASING * 4, *sorted(REQUESTS))))
    return name, REQUESTS[name](draw)
