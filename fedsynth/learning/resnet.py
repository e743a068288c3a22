"""ResNet-18 for small images: the body that GANDALF's user model needs.

The published network was made for 224-pixel images. As everybody does on 32-pixel ones, the 7x7 stride-2
stem and its pool are replaced by one 3x3 convolution of stride 1; the rest is unchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor, nn

NormLayer = Callable[[int], nn.Module]


def convolution(inputs: int, outputs: int, kernel: int, stride: int) -> nn.Conv2d:
    """A "same"-padded convolution without bias: the norm layer behind it has one."""
    return nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, bias=False)


class BasicBlock(nn.Module):
    """Two 3x3 convolutions and a way around them, which is a 1x1 convolution where the size changes."""

    def __init__(self, inputs: int, outputs: int, stride: int, norm: NormLayer) -> None:
        super().__init__()
        self.main = nn.Sequential(
            convolution(inputs, outputs, 3, stride),
            norm(outputs),
            nn.ReLU(inplace=True),
            convolution(outputs, outputs, 3, 1),
            norm(outputs),
        )
        self.around: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.around = nn.Sequential(convolution(inputs, outputs, 1, stride), norm(outputs))
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.relu(self.main(x) + self.around(x))


def resnet18_body(inputs: int, widths: Sequence[int], norm: NormLayer) -> nn.Sequential:
    """Stem, one stage of two blocks per width (halving the image from the second on), global average."""
    layers: list[nn.Module] = [convolution(inputs, widths[0], 3, 1), norm(widths[0]), nn.ReLU(inplace=True)]
    before = widths[0]
    for stage, width in enumerate(widths):
        layers += [BasicBlock(before, width, 1 if stage == 0 else 2, norm), BasicBlock(width, width, 1, norm)]
        before = width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())
