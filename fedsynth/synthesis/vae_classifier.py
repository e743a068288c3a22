"""A classifier that is trained together with a variational auto-encoder (FedDPMS, section 3.2).

The encoder is the classifier's own convolutions. Latent heads read the features that its first fully connected layer
reads; a classifier that is built on a latent (`model.name = "latent_cnn"`) brings its own. The decoder mirrors it
(table 4, generalised to images of any shape).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedsynth.errors import UserError
from fedsynth.learning.layers import Latent, LatentHeads, sample_latent
from fedsynth.learning.models import Classifier, Examples, ModelSpec, PoolReLU, instantiate
from fedsynth.learning.optimizers import LocalTraining, make_optimizer
from fedsynth.learning.training import Objective
from fedsynth.learning.weights import Weights, load_weights, weights_of
from fedsynth.seeding import derive

LATENT, DECODER = "latent.", "decoder."
"""Prefixes by which the entries of the heads and of the decoder stand beside the classifier's."""


@dataclass(frozen=True)
class VaeSpec:
    """What to add to a classifier. `latent` has no meaning where the classifier brings its own."""

    latent: int
    conditional: bool
    weight: float  # λ of the loss
    lr: float | None = None  # the auto-encoder's own learning rate: then it stands beside the classifier and reads only

    def objective(self, base: Objective, net: "VaeNet") -> Objective:
        """What is minimised: jointly, as published, or side by side. A classifier that reads the latent shares it."""
        if self.lr is None or own_latent(net.classifier):
            return VaeObjective(base, self.weight)
        return Beside(base, net, self.lr)

    def heads(self, classifier: Classifier) -> LatentHeads:
        """Heads for this classifier's features; its own where it classifies a latent."""
        own = own_latent(classifier)
        return own.heads if own else LatentHeads(reads_features(classifier).in_features, self.latent)

    def decoder(self, classifier: Classifier, schema: Examples) -> "Decoder":
        """A decoder that mirrors the convolutions (tables 3 and 4)."""
        own = own_latent(classifier)
        size = own.heads.mean.out_features if own else self.latent
        widths, per_block = _convolutions(classifier)
        channels, height, width = schema.shape
        classes = schema.classes if self.conditional else 0
        return Decoder(size, (channels, height, width), widths, per_block, classes)


class Decoder(nn.Module):
    """From a latent (and, if conditional, a class) to an image with values in [0, 1].

    A linear layer, then for each width an upsampling and transposed 3x3 convolutions, back to the image's own size.
    """

    def __init__(
        self, latent: int, shape: tuple[int, int, int], widths: Sequence[int], per_block: int = 1, classes: int = 0
    ) -> None:
        super().__init__()
        channels, height, width = shape
        self.classes = classes
        self.sizes = [(height // 2**k, width // 2**k) for k in range(len(widths), -1, -1)]
        self.start = widths[-1]
        self.linear = nn.Linear(latent + classes, self.start * self.sizes[0][0] * self.sizes[0][1])
        outputs = [*reversed(widths[:-1]), channels]
        blocks, inputs = [], self.start
        for output in outputs:
            layers: list[nn.Module] = []
            for _ in range(per_block - 1):
                layers += [nn.ConvTranspose2d(inputs, inputs, 3, padding=1), nn.ReLU(inplace=True)]
            blocks.append(nn.Sequential(*layers, nn.ConvTranspose2d(inputs, output, 3, padding=1)))
            inputs = output
        self.blocks = nn.ModuleList(blocks)

    def forward(self, z: Tensor, y: Tensor | None = None) -> Tensor:
        if self.classes:
            assert y is not None, "a conditional decoder needs the classes"
            z = torch.cat([z, F.one_hot(y, self.classes).to(z.dtype)], 1)
        x = F.relu(self.linear(z)).reshape(len(z), self.start, *self.sizes[0])
        x = x.contiguous(memory_format=torch.channels_last)
        for number, block in enumerate(self.blocks, 1):
            x = block(F.interpolate(x, size=self.sizes[number]))
            if number < len(self.blocks):
                x = F.relu(x)
        return torch.sigmoid(x)


def vae_loss(x: Tensor, reconstruction: Tensor, mean: Tensor, log_variance: Tensor) -> Tensor:
    """KL to N(0, 1), averaged over examples and dimensions, plus the squared error summed over pixels."""
    kl = -0.5 * (1 + log_variance - mean.square() - log_variance.exp()).mean()
    return kl + (reconstruction - x).square().flatten(1).sum(1).mean()


def own_latent(classifier: Classifier) -> Latent | None:
    """The latent layer of a classifier that has one."""
    return next((module for module in classifier.modules() if isinstance(module, Latent)), None)


def reads_features(classifier: Classifier) -> nn.Linear:
    """The fully connected layer that reads the convolutional features; without convolutions, the last one."""
    convolutional = any(isinstance(module, nn.Conv2d) for module in classifier.modules())
    linear = next((module for module in classifier.modules() if isinstance(module, nn.Linear)), classifier.head)
    return linear if convolutional else classifier.head


def _convolutions(classifier: Classifier) -> tuple[tuple[int, ...], int]:
    """Width of each block of the encoder and convolutions a block; for networks of another build 16, 32 and one."""
    layers = list(classifier.body.children())
    convolutions = [layer.out_channels for layer in layers if isinstance(layer, nn.Conv2d)]
    widths, latest = [], 0
    for layer in layers:
        if isinstance(layer, nn.Conv2d):
            latest = layer.out_channels
        elif isinstance(layer, PoolReLU):
            widths.append(latest)
    return (tuple(widths), len(convolutions) // len(widths)) if widths else ((16, 32), 1)


class VaeNet(nn.Module):
    """Classifier, latent heads and decoder, trained together."""

    def __init__(self, classifier: Classifier, heads: LatentHeads, decoder: Decoder) -> None:
        super().__init__()
        self.classifier, self.decoder = classifier, decoder
        self._features: Tensor | None = None
        own = own_latent(classifier)
        if own is None:
            self.heads = heads
        # What the layer behind the convolutions reads is caught on its way: one pass serves both losses.
        (own or reads_features(classifier)).register_forward_pre_hook(self._catch)

    def _catch(self, module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        self._features = inputs[0]

    @property
    def _latent_heads(self) -> LatentHeads:
        own = own_latent(self.classifier)
        return own.heads if own else self.heads

    def latent_of_last_pass(self, detached: bool = False) -> tuple[Tensor, Tensor]:
        """Mean and log-variance of the latents of the batch that the classifier saw last."""
        assert self._features is not None, "the classifier has not seen a batch"
        features, self._features = self._features, None
        mean, log_variance = self._latent_heads(features.detach() if detached else features)
        return mean, log_variance

    def encode(self, x: Tensor) -> Tensor:
        """Latent means of examples, in evaluation mode."""
        self.classifier.eval()
        with torch.no_grad():
            parts = []
            for batch in x.split(512):
                self.classifier(batch.contiguous(memory_format=torch.channels_last))
                parts.append(self.latent_of_last_pass()[0])
        return torch.cat(parts) if parts else x.new_zeros((0, self.latent_size))

    @property
    def latent_size(self) -> int:
        """Number of latent dimensions."""
        return self._latent_heads.mean.out_features

    def entries(self) -> Weights:
        """All weights: the classifier's by their own names, heads and decoder with a prefix."""
        found = weights_of(self.classifier)
        if own_latent(self.classifier) is None:
            found |= {LATENT + name: entry for name, entry in weights_of(self.heads).items()}
        return found | {DECODER + name: entry for name, entry in weights_of(self.decoder).items()}


class Beside:
    """An auto-encoder that reads the classifier's features without changing them, with an optimiser of its own.

    The classifier learns as if it were alone, bit-identically.
    """

    def __init__(self, base: Objective, net: VaeNet, lr: float) -> None:
        self.base = base
        self.parameters = [*net.heads.parameters(), *net.decoder.parameters()]
        self.optimizer = make_optimizer(self.parameters, LocalTraining(optimizer="adam", lr=lr))

    def loss(self, model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        """Both losses; their gradients do not meet."""
        assert isinstance(model, VaeNet)
        loss = self.base.loss(model.classifier, x, y)
        mean, log_variance = model.latent_of_last_pass(detached=True)
        return loss + vae_loss(x, model.decoder(sample_latent(mean, log_variance), y), mean, log_variance)

    def correct_gradients(self, model: nn.Module) -> None:
        """Step the auto-encoder here; its gradients are not there any more when the classifier steps."""
        assert isinstance(model, VaeNet)
        self.base.correct_gradients(model.classifier)
        self.optimizer.step()
        for parameter in self.parameters:
            parameter.grad = None


class VaeObjective:
    """Eq. of section 3.2: ℓ = ℓ1 + λ (ℓ2 + ℓ3). ℓ1 is any objective of the classifier; ℓ2 KL, ℓ3 squared error."""

    def __init__(self, base: Objective, weight: float) -> None:
        self.base, self.weight = base, weight

    def loss(self, model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        """The classifier's loss, and λ times the auto-encoder's on the same pass."""
        assert isinstance(model, VaeNet)
        loss = self.base.loss(model.classifier, x, y)
        if self.weight == 0:
            return loss
        mean, log_variance = model.latent_of_last_pass()
        drawn = model.decoder(sample_latent(mean, log_variance), y)
        return loss + self.weight * vae_loss(x, drawn, mean, log_variance)

    def correct_gradients(self, model: nn.Module) -> None:
        """As the classifier's objective wants it."""
        assert isinstance(model, VaeNet)
        self.base.correct_gradients(model.classifier)


def start_vae(seed: int, spec: ModelSpec, vae: VaeSpec, schema: Examples, weights: Weights) -> VaeNet:
    """A classifier with these weights; heads and decoder as everybody starts with them, or as `weights` has them."""
    own = part(weights, "")
    classifier = instantiate(spec, schema.shape, schema.classes, own)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(derive(seed, "auto-encoder") % 2**63)
        net = VaeNet(classifier, vae.heads(classifier), vae.decoder(classifier, schema))
    latent, decoder = part(weights, LATENT), part(weights, DECODER)
    if latent:
        load_weights(net.heads, latent)
    if decoder:
        load_weights(net.decoder, decoder)
    return net.to(memory_format=torch.channels_last)  # type: ignore[call-overload]


def part(weights: Weights, prefix: str) -> Weights:
    """The entries of one part by their own names; with no prefix, the classifier's."""
    if prefix:
        return {name.removeprefix(prefix): entry for name, entry in weights.items() if name.startswith(prefix)}
    return {name: entry for name, entry in weights.items() if not name.startswith((LATENT, DECODER))}


def with_prefix(weights: Weights, prefix: str) -> Weights:
    """The entries of one part, prefix and all."""
    return {name: entry for name, entry in weights.items() if name.startswith(prefix)}


def without(weights: Weights, prefixes: Iterable[str]) -> Weights:
    """The entries that belong to none of these parts."""
    return {name: entry for name, entry in weights.items() if not name.startswith(tuple(prefixes))}


def require_unit_range(x: Tensor) -> None:
    """The decoder draws pixels between 0 and 1."""
    if len(x) and not 0 <= float(x.min()) <= float(x.max()) <= 1:
        raise UserError(
            f"The decoder draws pixels between 0 and 1, but these images run from {float(x.min()):g} to "
            f"{float(x.max()):g}; store them as uint8, or scale them to 0..1."
        )
