"""Settings of augmented copies: images that are rotated, shifted and, where it makes sense, mirrored."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, Field

from fedsynth.synthesis.static import Static


class CopySettings(BaseModel):
    """How far copies may differ from their originals."""

    rotate: float = Field(15.0, ge=0, le=180, description="largest angle, in degrees, to either side")
    shift: float = Field(0.1, ge=0, le=0.5, description="largest shift, as a share of width and height")
    flip: bool = Field(False, description="mirror every other copy; makes nonsense of digits and letters")
    padding: Literal["edge", "zero"] = Field("edge", description="what moves in from outside: the edge's pixels, or 0")

    def static_augmentation(self) -> Static:
        """The settings as the augmentation wants them."""
        return Static(self.rotate, self.shift, self.flip, self.padding)
