"""Which part a field of a sample type probably comes from: the proposals of the wizard."""

from __future__ import annotations

from collections.abc import Sequence

IMAGE_PARTS = ("jpg", "jpeg", "png", "webp", "bmp", "gif", "tif", "tiff", "jp2", "ppm")
VIDEO_PARTS = ("mp4", "mkv", "webm", "mov", "avi", "m4v")
TEXT_PARTS = ("txt", "text")
_PARTS_OF_FIELD: dict[str, tuple[str, ...]] = {
    "image": ("image", *IMAGE_PARTS),
    "video": ("video", *VIDEO_PARTS),
    "caption": ("caption", "caption.txt", "cap", *TEXT_PARTS),
    "text": TEXT_PARTS,
    "context": ("context", "question", "question.txt", "context.txt", *TEXT_PARTS),
    "label": ("cls", "label"),
    "label_name": ("label_name", "class_name"),
    "answers": ("answers", "answers.json", "answer.json"),
}


def propose_expression(field: str, part_names: Sequence[str]) -> str | None:
    """Propose a field map expression for `field`, or None where no part speaks for itself.

    Several parts of which a sample may have one (`jpg`, `png`) are joined to a list of options.

    >>> propose_expression("image", ["png", "txt", "jpg"])
    'jpg,png'
    """
    candidates = _PARTS_OF_FIELD.get(field, (field, f"{field}.txt", f"{field}.json"))
    present = [part for part in candidates if part in part_names]
    if not present:
        return None
    alike = IMAGE_PARTS if present[0] in IMAGE_PARTS else VIDEO_PARTS if present[0] in VIDEO_PARTS else ()
    return ",".join(part for part in present if part in alike) if alike else present[0]
