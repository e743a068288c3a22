"""Well-formed requests for every registered task, with settings at their extremes: what a lying server could send."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st
from strict_sites import CLASSES, NAME, SHAPE, TinyData

from fedsynth.components.loop import start_weights
from fedsynth.components.slots import LocalData, LocalRule
from fedsynth.learning.models import ModelSpec
from fedsynth.methods.feddpms.autoencoding import VaeSpec, start_vae
from fedsynth.synthesis.autoencoder import build_autoencoder
from fedsynth.synthesis.gan import GanSpec, build_gan

Draw = st.DrawFn
SCHEMA = TinyData(1).schema
SPECS = [
    ModelSpec(name="mlp", hidden=(3,)),
    ModelSpec(name="cnn", channels=(2,), hidden=(3,)),
    ModelSpec(name="mlp", hidden=(3,), norm="batch"),
]
GAN = GanSpec(channels=2, latent=2)
SCALES = [0.0, 1e-20, 1.0, 1.0, 1e4, 1e19, 1e38]
IMAGES = torch.rand((6, *SHAPE), generator=torch.Generator().manual_seed(0))
LABELS = torch.arange(6) % CLASSES
ONE_HOT = torch.eye(CLASSES)[LABELS]
INVERSION = {"steps": 1, "lr": 0.1}
MAKING = {
    **{"certainty": None, "tries": 1, "classes": 1, "quota": 2, "hardness": 1.0},
    **{"redraw": False, "synthetic": "generated"},
}


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
    return {"model": scaled(draw, start_weights(0, spec, SCHEMA)), "spec": spec.model_dump(mode="json")}


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


def protection(draw: Draw) -> dict[str, Any]:
    if draw(st.integers(0, 2)) == 0:  # as an honest server would ask
        ordinary = {"updates": "dp_sgd", "noise_at": "client", "target": None, "delta": 1e-5, "rounds": 1}
        return {**ordinary, "clip": pick(draw, 0.5, 1.0, 1e3), "noise": pick(draw, 20.0, 60.0)}
    updates = pick(draw, "dp_sgd", "dp_sgd", "dp_sgd", "clipped", "clipped", "laplace", "gaussian")
    noise = pick(draw, 1e-9, 1.0, 20.0, 20.0, 60.0, 60.0, 1e9)
    calibrated = updates == "dp_sgd" and draw(st.integers(0, 19)) == 0
    return {
        "updates": updates,
        "clip": pick(draw, 1e-9, 0.5, 1.0, 1e3, 1e9),
        "noise": None if calibrated else noise,
        "noise_at": pick(draw, "client", "server"),
        "target": 0.4 if calibrated else None,
        "delta": pick(draw, 1e-5, 0.5, 0.999),
        "rounds": pick(draw, 1, 3),
    }


def maybe_protected(draw: Draw) -> dict[str, Any]:
    return {"protection": protection(draw)} if draw(st.integers(0, 4)) else {}


def rule(draw: Draw) -> dict[str, Any]:
    return {"name": pick(draw, "plain", "plain", "logit_adjusted", *sorted(LocalRule.known))}


def train(draw: Draw) -> dict[str, Any]:
    data = {"rule": {"name": pick(draw, *sorted(LocalData.known))}, "given": {}}
    return {
        **model(draw),
        "training": training(draw),
        "rule": rule(draw),
        "keeps": pick(draw, "nothing", "nothing", "buffers", "norm", "head"),
        "sent": {},
        **maybe_protected(draw),
        **({"data": data} if draw(st.integers(0, 2)) == 0 else {}),
        **({"remember": True} if draw(st.booleans()) else {}),
    }


def vae(draw: Draw) -> dict[str, Any]:
    spec, shape = SPECS[1], VaeSpec(3, draw(st.booleans()), pick(draw, 0.0, 1.0))
    weights = start_vae(0, spec, shape, SCHEMA, start_weights(0, spec, SCHEMA)).entries()
    return {"model": scaled(draw, weights), "spec": spec.model_dump(mode="json"), "vae": vars(shape)}


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
        "batch_size": pick(draw, 1, 5, 20, 1000),  # far more than there are records: a generator makes them all
        "generator_lr": pick(draw, 1e-30, 2e-3, 1e20),
        "critic_lr": pick(draw, 1e-30, 2e-3, 1.0, 1e20),
        "betas": list(pick(draw, (0.0, 0.9), (0.9, 0.999))),
        "critic_steps": pick(draw, 1, 2),
        "penalty": pick(draw, 0.0, 10.0, 1e30),
    }


def images(draw: Draw) -> dict[str, Any]:
    return {"images": IMAGES * pick(draw, 0.0, 1.0, 1e30), "labels": LABELS}


def generator(draw: Draw) -> dict[str, Any]:
    return {"generator": gan(draw), "spec": GAN.model_dump(), "classes": list(range(CLASSES))}


def secure(draw: Draw) -> dict[str, Any]:
    return {"session": pick(draw, "a", "b"), "peers": [NAME, "y", "z"], "equal": draw(st.booleans())}


def scope(draw: Draw) -> dict[str, Any]:
    return {"scope": pick(draw, None, ["record", "add or remove one"], ["client", "replace one"])}


def filling(draw: Draw) -> dict[str, Any]:
    generators = {
        "spec": GAN.model_dump(),
        "weights": [gan(draw)],
        "known": [[True] * CLASSES],
        "mixes": [[1.0] * CLASSES],
    }
    how = {
        **{"tau": pick(draw, 0.0, 0.5, 1.0, 50.0), "static": pick(draw, None, {}), "noisy": draw(st.booleans())},
        **{"synthetic": pick(draw, "generated", "noise"), "labeller": {}, "spec": SPECS[0].model_dump(), "real": {}},
    }
    return {"generators": generators, "how": how}


REQUESTS: dict[str, Callable[[Draw], dict[str, Any]]] = {
    "augment_minorities": lambda d: {"copies": pick(d, 0, 1, 2), "how": {}},
    "average_images": lambda d: {"mean_of": pick(d, 2, 3, 10**6)},
    "balance_classes": lambda d: {"ratios": np.full(CLASSES, pick(d, 0.0, 0.5, 3.0)), "how": {}},
    "contribute": lambda d: {"wanted": np.full(CLASSES, pick(d, 0, 2, 10**6))},
    "count_classes": lambda d: {
        "epsilon": pick(d, None, 1e-3, 0.2, 0.2, 0.9, 500.0),
        "delta": pick(d, 1e-5, 0.5, 0.99),
        "keep": d(st.booleans()),
    },
    "distil_model": lambda d: {**model(d), "images": IMAGES, "targets": ONE_HOT, "training": training(d)},
    "draw_real_samples": lambda d: {"per_class": pick(d, 0, 1, 10**6)},
    "fill_shortage": filling,
    "invert_model": lambda d: {**model(d), "start": IMAGES, "labels": LABELS, "how": INVERSION},
    "join_group": lambda d: {"group": "a"},
    "judge_images": lambda d: {**model(d), "images": IMAGES},
    "keep_averages": lambda d: {"images": IMAGES, "labels": ONE_HOT},
    "keep_shared": images,
    "learn_encoder": lambda d: {"images": IMAGES, "latent": 4, "steps": 1},
    "make_candidates": lambda d: {"spec": SPECS[0].model_dump(), "start": IMAGES[:CLASSES], "how": INVERSION},
    "make_set": lambda d: {**generator(d), "per_class": 2},
    "measure": model,
    "name_scarce_classes": lambda d: {"n": pick(d, 0, 1, 3)},
    "offer_keys": lambda d: {"session": pick(d, "a", "b"), **scope(d)},
    "open_sum": lambda d: {"session": "a", "stayed": [NAME, "y", "z"], "left": [], "shares": {}, **scope(d)},
    "profile_set": lambda d: {
        "images": IMAGES,
        "encoder": build_autoencoder(SHAPE, 4, 0).state_dict(),
        "latent": 4,
    },
    "receive_generator": lambda d: {**generator(d), "pool": pick(d, 0, 4), "noise": d(st.booleans())},
    "receive_images": lambda d: {**images(d), "noise": d(st.booleans()), "lacking": d(st.booleans())},
    "refine_gan": lambda d: {
        **images(d),
        **{"spec": GAN.model_dump(), "training": gan_training(d), "steps": 1, "name": "a"},
    },
    "replenish": generator,
    "score": lambda d: {**model(d), "parts": ["validation", "test"]},
    "score_candidates": lambda d: {"spec": SPECS[0].model_dump(), "images": IMAGES},
    "score_masked": lambda d: {"secure": secure(d), "spec": SPECS[0].model_dump(), "images": IMAGES, "labels": LABELS},
    "send_seeds": lambda d: {"per_class": pick(d, 0, 1, 10**6)},
    "share_secrets": lambda d: {"session": "a", "keys": {}, "threshold": 2, **scope(d)},
    "share_statistics": lambda d: {**vae(d), "calibration": calibration(d)},
    "train": train,
    "train_alone": lambda d: {"spec": SPECS[0].model_dump(), "training": training(d), "balanced": d(st.booleans())},
    "train_augmented": lambda d: {
        **vae(d),
        **{"training": training(d), "rule": rule(d), "sent": {}, "decoder": {}},
        **{"order": None, "making": MAKING, "share": None},
    },
    "train_beside_made": lambda d: {"spec": SPECS[0].model_dump(), "training": training(d), "per_step": pick(d, 0, 2)},
    "train_distilled": lambda d: {
        **{"spec": SPECS[0].model_dump(), "training": training(d), "weight": pick(d, 0.0, 1.0, 1e30)},
        **{"targets": torch.eye(CLASSES), "known": torch.ones(CLASSES, dtype=torch.bool)},
    },
    "train_gan_visit": lambda d: {
        **{"gan": gan(d), "moments": {}, "spec": GAN.model_dump(), "training": gan_training(d)},
        **{"steps": pick(d, 0, 1, 2), "keep_moments": d(st.booleans()), "sigma": pick(d, 0.0, 1.0, 1e9)},
        **maybe_protected(d),
        **{"visits": pick(d, 1, 5)},
    },
    "train_masked": lambda d: {"secure": secure(d), "request": train(d)},
    "train_own_gan": lambda d: {
        **{"spec": GAN.model_dump(), "training": gan_training(d), "steps": pick(d, 0, 1, 2)},
        **maybe_protected(d),
    },
    "train_vae": lambda d: {
        **vae(d),
        **{"training": training(d), "rule": rule(d), "sent": {}, "upload_decoder": d(st.booleans())},
    },
    "tune_model": lambda d: {
        **model(d),
        **{"images": IMAGES, "labels": LABELS, "training": training(d), "keep_statistics": False},
    },
}
"""By task: fields that fit it."""

RELEASING = ("train", "train", "train", "train_gan_visit", "train_own_gan", "share_statistics", "count_classes")
"""Tasks that can claim a guarantee, which are asked for more often than the others."""


@st.composite
def requests(draw: Draw, tasks: tuple[str, ...] = ()) -> tuple[str, dict[str, Any]]:
    """A task and fields for it."""
    name = draw(st.sampled_from(tasks or (*RELEASING * 4, *sorted(REQUESTS))))
    return name, REQUESTS[name](draw)


@st.composite
def sequences(draw: Draw, last: str) -> list[tuple[str, dict[str, Any]]]:
    """A few requests, the last of them for this task; a GAN learns nothing but behind class counts that have left."""
    before = draw(st.lists(requests(), min_size=1, max_size=3))
    if last == "train_gan_visit":
        before = [before[0], ("count_classes", {"epsilon": 0.5, "delta": 1e-5, "keep": True}), before[-1]]
    return [*before, draw(requests((last,)))]
