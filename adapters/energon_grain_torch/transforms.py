# SPDX-License-Identifier: Apache-2.0
"""Merge several of torchvision's geometric transforms: their matrices are multiplied, and the image is resampled once.

Each transform draws its random numbers with torchvision's own `get_params`. A single transform in a `MergeTransform`
therefore has the same result as alone, up to the rounding of its resampling. Needs torchvision.

Matrices are 3 × 3, for homogeneous pixel coordinates (x, y, 1), x to the right and y down. They map positions in the
input image to positions in the output image. Sizes are arrays (height, width).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image

from energon_grain.extras import needed_for

with needed_for("energon_grain_torch.transforms"):
    from torchvision import transforms as tv  # pyright: ignore[reportMissingImports]

Matrix = npt.NDArray[np.float64]
Size = npt.NDArray[np.int64]
Applied = tuple[Matrix, Size, tuple[Any, ...]]


class TransformMapper:
    """One transform as a matrix; base of the mappers for torchvision's transforms and of `CustomTransform`."""

    source_type: ClassVar[type[torch.nn.Module]]

    def __init__(self, transform: Any) -> None:
        self.transform = transform

    def apply_transform(self, matrix: Matrix, dst_size: Size) -> Applied:
        """Append this transform to the preceding ones.

        Returns:
            The matrix with this transform applied last, the new size, and the name and parameters of the transform.
        """
        raise NotImplementedError

    def fill(self) -> Any:
        """Colour of areas without pixels; None: any."""
        return None

    def interpolation(self) -> tv.InterpolationMode | None:
        """Interpolation of pixels; None: any."""
        return None

    def __call__(self, sample: Any) -> Any:
        return self.transform(sample)

    @staticmethod
    def translate(x: float, y: float) -> Matrix:
        """Move right by x and down by y."""
        return np.array([[1, 0, x], [0, 1, y], [0, 0, 1]], np.float64)

    @staticmethod
    def rotate(angle: float) -> Matrix:
        """Turn counter-clockwise by an angle in radians."""
        cos, sin = math.cos(angle), math.sin(angle)
        return np.array([[cos, sin, 0], [-sin, cos, 0], [0, 0, 1]], np.float64)

    @staticmethod
    def scale(x: float, y: float) -> Matrix:
        """Stretch by these factors."""
        return np.diag([x, y, 1]).astype(np.float64)

    @staticmethod
    def shear(x: float, y: float) -> Matrix:
        """Move right by x times the height, and down by y times the width."""
        return np.array([[1, x, 0], [y, 1, 0], [0, 0, 1]], np.float64)

    @staticmethod
    def hflip() -> Matrix:
        """Mirror left and right, about x = 0."""
        return TransformMapper.scale(-1, 1)

    @staticmethod
    def vflip() -> Matrix:
        """Mirror above and below, about y = 0."""
        return TransformMapper.scale(1, -1)


class CustomTransform(TransformMapper):
    """Base of custom transforms for `MergeTransform`: override at least `apply_transform`."""

    def __init__(self) -> None:
        super().__init__(None)


def _size(height: float, width: float) -> Size:
    return np.array((height, width), np.int64)


def _image_of(size: Size) -> torch.Tensor:
    """Return an image of a size, without memory, for functions of torchvision that need an image."""
    return torch.empty((3, int(size[0]), int(size[1])), device="meta")


def _pair(size: Any) -> tuple[int, int]:
    """Return height and width from a size argument of a transform."""
    values = [size] if isinstance(size, int) else list(size)
    return int(values[0]), int(values[-1])


class ResizeMapper(TransformMapper):
    """`torchvision.transforms.Resize`."""

    source_type = tv.Resize

    def apply_transform(self, matrix: Matrix, dst_size: Size) -> Applied:
        size = self.transform.size
        height, width = self.transform(_image_of(dst_size)).shape[-2:]
        matrix = self.scale(width / dst_size[1], height / dst_size[0]) @ matrix
        return matrix, _size(height, width), ("Resize", [size] if isinstance(size, int) else size)

    def interpolation(self) -> tv.InterpolationMode:
        """The transform's interpolation."""
        return self.transform.interpolation


class RandomResizedCropMapper(TransformMapper):
    """`torchvision.transforms.RandomResizedCrop`."""

    source_type = tv.RandomResizedCrop

    def apply_transform(self, matrix: Matrix, dst_size: Size) -> Applied:
        crop = self.transform.get_params(_image_of(dst_size), list(self.transform.scale), list(self.transform.ratio))
        top, left, height, width = crop
        to_height, to_width = _pair(self.transform.size)
        matrix = self.scale(to_width / width, to_height / height) @ self.translate(-left, -top) @ matrix
        return matrix, _size(to_height, to_width), ("RandomResizedCrop", tuple(crop))

    def interpolation(self) -> tv.InterpolationMode:
        """The transform's interpolation."""
        return self.transform.interpolation


class RandomHorizontalFlipMapper(TransformMapper):
    """`torchvision.transforms.RandomHorizontalFlip`."""

    source_type = tv.RandomHorizontalFlip

    def apply_transform(self, matrix: Matrix, dst_size: Size) -> Applied:
        flips = bool(torch.rand(1) < self.transform.p)
        if flips:
            matrix = self.translate(dst_size[1], 0) @ self.hflip() @ matrix
        return matrix, dst_size, ("RandomHorizontalFlip", flips)


class RandomVerticalFlipMapper(TransformMapper):
    """`torchvision.transforms.RandomVerticalFlip`."""

    source_type = tv.RandomVerticalFlip

    def apply_transform(self, matrix: Matrix, dst_size: Size) -> Applied:
        flips = bool(torch.rand(1) < self.transform.p)
        if flips:
            matrix = self.translate(0, dst_size[0]) @ self.vflip() @ matrix
        return matrix, dst_size, ("RandomVerticalFlip", flips)


class RandomRotationMapper(TransformMapper):
    """`torchvision.transforms.RandomRotation`, about the centre of the image or the `center` of the transform."""

    source_type = tv.RandomRotation

    def apply_transform(self, matrix: Matrix, dst_size: Size) -> Applied:
        degrees = self.transform.get_params(self.transform.degrees)
        height, width = map(int, dst_size)
        x, y = self.transform.center or (width / 2, height / 2)
        turned = self.translate(x, y) @ self.rotate(math.radians(degrees)) @ self.translate(-x, -y)
        if self.transform.expand:
            corners = turned @ np.array([[0, width, width, 0], [0, 0, height, height], [1, 1, 1, 1]], np.float64)
            low, high = np.floor(corners[:2].min(1) + 1e-9), np.ceil(corners[:2].max(1) - 1e-9)
            to_width, to_height = high - low
            turned = self.translate((to_width - width) / 2, (to_height - height) / 2) @ turned
            dst_size = _size(to_height, to_width)
        return turned @ matrix, dst_size, ("RandomRotation", degrees)

    def fill(self) -> Any:
        """The transform's fill."""
        return self.transform.fill

    def interpolation(self) -> tv.InterpolationMode:
        """The transform's interpolation."""
        return self.transform.interpolation


class RandomCropMapper(TransformMapper):
    """`torchvision.transforms.RandomCrop`, with padding of a constant colour."""

    source_type = tv.RandomCrop

    def apply_transform(self, matrix: Matrix, dst_size: Size) -> Applied:
        """See `TransformMapper`.

        Raises ValueError if the padding repeats the image, or the crop is larger than the image without padding.
        """
        transform = self.transform
        if transform.padding_mode != "constant":
            raise ValueError(f"RandomCrop(padding_mode={transform.padding_mode!r}): only 'constant' can be merged")
        height, width = map(int, dst_size)
        if transform.padding is not None:
            sides = [transform.padding] if isinstance(transform.padding, int) else list(transform.padding)
            left, top, right, bottom = sides * (4 // len(sides))
            matrix = self.translate(left, top) @ matrix
            height, width = height + top + bottom, width + left + right
        to_height, to_width = transform.size
        if transform.pad_if_needed:
            x, y = max(0, to_width - width), max(0, to_height - height)
            matrix = self.translate(x, y) @ matrix
            height, width = height + 2 * y, width + 2 * x
        top, left, _, _ = transform.get_params(_image_of(_size(height, width)), (to_height, to_width))
        crop = (top, left, to_height, to_width)
        return self.translate(-left, -top) @ matrix, _size(to_height, to_width), ("RandomCrop", crop)

    def fill(self) -> Any:
        """The transform's fill."""
        return self.transform.fill


class RandomPerspectiveMapper(TransformMapper):
    """`torchvision.transforms.RandomPerspective`."""

    source_type = tv.RandomPerspective

    def apply_transform(self, matrix: Matrix, dst_size: Size) -> Applied:
        points: tuple[Any, Any] = (None, None)
        if torch.rand(1) < self.transform.p:
            height, width = map(int, dst_size)
            points = self.transform.get_params(width, height, self.transform.distortion_scale)
            matrix = self.compute_homography(*points) @ matrix
        return matrix, dst_size, ("RandomPerspective", *points)

    @staticmethod
    def compute_homography(startpoints: Sequence[Sequence[float]], endpoints: Sequence[Sequence[float]]) -> Matrix:
        """Return the matrix that maps four points (x, y) to four others."""
        rows: list[list[float]] = []
        for (x, y), (u, v) in zip(startpoints, endpoints, strict=True):
            rows += [[x, y, 1, 0, 0, 0, -u * x, -u * y], [0, 0, 0, x, y, 1, -v * x, -v * y]]
        solved = np.linalg.solve(np.array(rows, np.float64), np.array(endpoints, np.float64).ravel())
        return np.append(solved, 1).reshape(3, 3)

    def fill(self) -> Any:
        """The transform's fill."""
        return self.transform.fill

    def interpolation(self) -> tv.InterpolationMode:
        """The transform's interpolation."""
        return self.transform.interpolation


class CenterCropMapper(TransformMapper):
    """`torchvision.transforms.CenterCrop`; a crop larger than the image pads it."""

    source_type = tv.CenterCrop

    def apply_transform(self, matrix: Matrix, dst_size: Size) -> Applied:
        height, width = _pair(self.transform.size)
        # Rounds like torchvision, which pads and then crops the rest.
        down, right = (
            (want - have) // 2 if want > have else -round((have - want) / 2)
            for want, have in ((height, int(dst_size[0])), (width, int(dst_size[1])))
        )
        return self.translate(right, down) @ matrix, _size(height, width), ("CenterCrop", (down, right, height, width))


_MAPPERS: tuple[type[TransformMapper], ...] = (
    ResizeMapper,
    RandomResizedCropMapper,
    RandomHorizontalFlipMapper,
    RandomVerticalFlipMapper,
    RandomRotationMapper,
    RandomCropMapper,
    RandomPerspectiveMapper,
    CenterCropMapper,
)
_PIL = {
    tv.InterpolationMode.NEAREST: Image.Resampling.NEAREST,
    tv.InterpolationMode.BILINEAR: Image.Resampling.BILINEAR,
    tv.InterpolationMode.BICUBIC: Image.Resampling.BICUBIC,
}


class MergeTransform(torch.nn.Module):
    """Transforms merged into one that resamples once, for Pillow images and for tensors (channels, height, width).

    Args:
        transforms: torchvision's transforms, in order, or `CustomTransform`s. Those with an interpolation or a fill
            must agree. Default: bilinear, and zeros.

    Raises:
        ValueError: A transform is not supported, or the transforms do not agree.
    """

    def __init__(self, transforms: Sequence[Any]) -> None:
        super().__init__()
        self.transforms = [self._mapper(transform) for transform in transforms]
        self.fill_value = self._agreed("fill", [each.fill() for each in self.transforms])
        modes = [each.interpolation() for each in self.transforms]
        self.interpolation = self._agreed("interpolation", modes) or tv.InterpolationMode.BILINEAR
        if self.interpolation not in _PIL:
            raise ValueError(f"interpolation {self.interpolation}: expected one of {', '.join(map(str, _PIL))}")

    def _mapper(self, transform: Any) -> TransformMapper:
        if isinstance(transform, TransformMapper):
            return transform
        for mapper in (*_MAPPERS, *TransformMapper.__subclasses__()):
            if isinstance(transform, getattr(mapper, "source_type", ())):
                return mapper(transform)
        known = ", ".join(mapper.source_type.__name__ for mapper in _MAPPERS)
        raise ValueError(f"{type(transform).__name__} cannot be merged; expected {known}, or CustomTransform")

    def _agreed(self, what: str, settings: Sequence[Any]) -> Any:
        values = [value for value in settings if value is not None]
        if any(value != values[0] for value in values):
            raise ValueError(f"MergeTransform: an image is resampled once, but the transforms have {what} {values}")
        return values[0] if values else None

    def forward(self, x: Any) -> Any:
        """Apply all transforms to an image.

        Raises TypeError if it is neither a Pillow image nor a tensor, and ValueError for a tensor with a fill colour
        other than zero.
        """
        if not isinstance(x, Image.Image | torch.Tensor):
            raise TypeError(f"MergeTransform: expected a Pillow image or a tensor, got a {type(x).__name__}")
        matrix = np.eye(3)
        size = _size(x.height, x.width) if isinstance(x, Image.Image) else _size(*x.shape[-2:])
        for transform in self.transforms:
            matrix, size, _ = transform.apply_transform(matrix, size)
        back = np.linalg.inv(matrix)
        back /= back[2, 2]
        return self._of_image(x, back, size) if isinstance(x, Image.Image) else self._of_tensor(x, back, size)

    def _of_image(self, image: Image.Image, back: Matrix, size: Size) -> Image.Image:
        fill = self.fill_value
        if isinstance(fill, int | float):
            fill = (fill,) * len(image.getbands())
        affine = np.allclose(back[2, :2], 0)
        kind = Image.Transform.AFFINE if affine else Image.Transform.PERSPECTIVE
        coefficients = back.ravel()[: 6 if affine else 8].tolist()
        shape = (int(size[1]), int(size[0]))
        colour = None if fill is None else tuple(fill)
        return image.transform(shape, kind, coefficients, _PIL[self.interpolation], fillcolor=colour)

    def _of_tensor(self, image: torch.Tensor, back: Matrix, size: Size) -> torch.Tensor:
        if self.fill_value is not None and np.any(self.fill_value):
            raise ValueError(f"fill {self.fill_value}: tensors can only be filled with 0")
        height, width = map(int, size)
        x, y = torch.meshgrid(torch.arange(width) + 0.5, torch.arange(height) + 0.5, indexing="xy")
        places = torch.as_tensor(back, dtype=torch.float32) @ torch.stack([x, y, torch.ones_like(x)]).flatten(1)
        scale = torch.tensor([[2 / image.shape[-1]], [2 / image.shape[-2]]])
        grid = (places[:2] / places[2] * scale - 1).T.reshape(1, height, width, 2)
        mode = self.interpolation.value
        floating = image if image.is_floating_point() else image.float()
        sampled = torch.nn.functional.grid_sample(floating[None], grid.to(floating), mode, "zeros", False)[0]
        return sampled if image.is_floating_point() else sampled.round().clamp(0, 255).to(image.dtype)
