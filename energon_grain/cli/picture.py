"""A picture of areas, lines and labels, written as SVG or drawn as PNG."""

from __future__ import annotations

from dataclasses import dataclass, field
from io import BytesIO
from typing import Literal
from xml.sax.saxutils import escape

Point = tuple[float, float]


@dataclass(frozen=True, kw_only=True, slots=True)
class Area:
    """A filled polygon."""

    points: tuple[Point, ...]
    color: str
    title: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Line:
    """A thin line, dashed or not."""

    start: Point
    end: Point
    color: str
    dashed: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Label:
    """A line of text; `at` is the left, middle or right end of its baseline."""

    at: Point
    text: str
    color: str
    size: int = 12
    anchor: Literal["start", "middle", "end"] = "start"


@dataclass(kw_only=True, slots=True)
class Picture:
    """Shapes on a white ground, in pixels from the top left corner, later ones over earlier ones."""

    width: int
    height: int
    title: str
    shapes: list[Area | Line | Label] = field(default_factory=list[Area | Line | Label])

    def svg(self) -> str:
        """The picture as SVG, the same text for the same shapes."""
        lines = [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{self.width}" height="{self.height}" '
            f'viewBox="0 0 {self.width} {self.height}" role="img" font-family="sans-serif">',
            f"<title>{escape(self.title)}</title>",
            f'<rect width="{self.width}" height="{self.height}" fill="#ffffff"/>',
            *map(_element, self.shapes),
            "</svg>",
        ]
        return "\n".join(lines) + "\n"

    def png(self) -> bytes:
        """The picture as PNG, with two dots for each pixel."""
        from PIL import Image, ImageDraw, ImageFont

        scale = 2
        image = Image.new("RGB", (self.width * scale, self.height * scale), "#ffffff")
        draw = ImageDraw.Draw(image)
        for shape in self.shapes:
            match shape:
                case Area():
                    draw.polygon([(x * scale, y * scale) for x, y in shape.points], fill=shape.color)
                case Line():
                    for start, end in _dashes(shape):
                        draw.line([(x * scale, y * scale) for x, y in (start, end)], fill=shape.color, width=scale)
                case Label():
                    font = ImageFont.load_default(shape.size * scale)
                    anchor = {"start": "ls", "middle": "ms", "end": "rs"}[shape.anchor]
                    place = (shape.at[0] * scale, shape.at[1] * scale)
                    draw.text(place, shape.text, fill=shape.color, font=font, anchor=anchor)
        target = BytesIO()
        image.save(target, "PNG")
        return target.getvalue()


def _element(shape: Area | Line | Label) -> str:
    match shape:
        case Area():
            points = " ".join(f"{x:.2f},{y:.2f}" for x, y in shape.points)
            return f'<polygon points="{points}" fill="{shape.color}"><title>{escape(shape.title)}</title></polygon>'
        case Line():
            (x1, y1), (x2, y2) = shape.start, shape.end
            dashes = ' stroke-dasharray="4 3"' if shape.dashed else ""
            return f'<line x1="{x1:.2f}" y1="{y1:.2f}" x2="{x2:.2f}" y2="{y2:.2f}" stroke="{shape.color}"{dashes}/>'
        case Label():
            x, y = shape.at
            return (
                f'<text x="{x:.2f}" y="{y:.2f}" font-size="{shape.size}" fill="{shape.color}" '
                f'text-anchor="{shape.anchor}">{escape(shape.text)}</text>'
            )


def _dashes(line: Line) -> list[tuple[Point, Point]]:
    """The line, or its dashes of 4 pixels with 3 between them."""
    if not line.dashed:
        return [(line.start, line.end)]
    (x1, y1), (x2, y2) = line.start, line.end
    length = max(abs(x2 - x1), abs(y2 - y1), 1.0)

    def at(distance: float) -> Point:
        part = min(distance / length, 1.0)
        return x1 + (x2 - x1) * part, y1 + (y2 - y1) * part

    return [(at(7.0 * number), at(7.0 * number + 4)) for number in range(int(length // 7) + 1)]
