"""The study of GANDALF behind docs/results.md.

    FEDSYNTH_DATA=/path/to/data python benchmarks/gandalf.py --runs /tmp/gandalf --jobs 2
    python benchmarks/gandalf.py --runs /tmp/gandalf --table docs/results/gandalf.csv

Killed and started again it goes on where it was. `--only TEXT` runs the parts whose names contain TEXT.
"""

from __future__ import annotations

from functools import partial

from harness import BESIDE, Part, Table, main

ROWS: dict[str, Table] = {
    "fedavg": {"name": "fedavg"},
    "fedavg, 10 local epochs": {"name": "fedavg"},
    "static augmentation": {"name": "static_augmentation"},
    "Astraea": {"name": "astraea"},
    "logit adjustment": {"name": "logit_adjustment", "smoothing": 10.0},
    "GANDALF": {"name": "gandalf"},
    "GANDALF, noise": {"name": "gandalf", "synthetic": "noise", "gan_steps": 0},
    "GANDALF, without synthesis": {"name": "gandalf", "synthetic": "none", "static": False},
    "GANDALF, real samples": {"name": "gandalf", "synthetic": "real", "gan_steps": 0},
    "GANDALF, averaged, not in turn": {"name": "gandalf", "mediators": 20},
    "Private FL-GAN": {"name": "private_fl_gan"},
    "SDA-FL": {"name": "sda_fl", "gan_steps": 400},
    "FedDPGAN": {"name": "feddpgan", "gan_steps": 400},
    "data sharing": {"name": "data_sharing"},
    "data centre": {"name": "centralised"},
    **BESIDE,
}
"""Rows with 2 classes per client. Images of the controls are replaced, so their GANs need no training. SDA-FL and
FedDPGAN train at every client, ten times as much as GANDALF's two GANs, so theirs have a third of the steps. The
smoothing of logit adjustment is the best on validation data of 0.001, 1 and 10 (weights 0.25, 0.5 and 1): it decides
whether a client with two classes says anything about the others."""
FEW = (
    *("fedavg, 10 local epochs", "Private FL-GAN", "SDA-FL", "FedDPGAN", "data centre"),
    *("GANDALF, real samples", "GANDALF, averaged, not in turn"),
)
MAIN = {name: ROWS[name] for name in ("fedavg", "static augmentation", "Astraea", "GANDALF", "data sharing", *BESIDE)}


TRAIN: Table = {"rounds": 20, "local_epochs": 2, "batch_size": 32, "lr": 0.05}
LONGER = {"fedavg, 10 local epochs": {"train": {**TRAIN, "local_epochs": 10}}}
"""As many steps as a client takes that fills two classes up to ten."""


def setting(data: str, partition: Table) -> Table:
    """20 clients with 200 images each, less those for validation."""
    return {
        "data": {"name": data, "limit": 4000, "validation": 0.1, "test": 0.0},
        "partition": {"num_clients": 20, **partition},
        "model": {"name": "cnn"},
        "train": TRAIN,
        "evaluation": {"test_curve": True},
    }


MAJOR = {"name": "major_minor"}
PARTS = [
    *(
        Part(f"{data}-2-class", partial(setting, data, {"name": "n_class", "n": 2}), ROWS, few=FEW, sections=LONGER)
        for data in ("mnist", "fashion-mnist")
    ),
    *(
        Part(f"{data}-{name}", partial(setting, data, split), MAIN, seeds=1)
        for data in ("mnist", "fashion-mnist")
        for name, split in {
            "1-class": {"name": "n_class", "n": 1},
            "4-class": {"name": "n_class", "n": 4},
            "major": MAJOR,
        }.items()
    ),
]

if __name__ == "__main__":
    main(PARTS, __doc__)
