"""What Energon's older sample loaders did, as cookers: boxes of a page, and texts interleaved with pictures."""

import torch

import energon_grain_torch as energon


@energon.stateless
def cook_page(sample: dict) -> energon.OCRSample:
    lines = sample["bbox.json"]
    return energon.OCRSample(
        **energon.basic_sample_keys(sample),
        image=sample["jpg"],
        text=sample["gt.txt"],
        lines_boxes=torch.tensor([line["bbox"] for line in lines], dtype=torch.int64),
        lines_text=[line["text"] for line in lines],
    )


@energon.stateless
def cook_interleaved(sample: dict) -> energon.InterleavedSample:
    images, texts = sample["json"]["images"], sample["json"]["texts"]
    return energon.InterleavedSample(
        **energon.basic_sample_keys(sample),
        sequence=[sample[image] if text is None else text for image, text in zip(images, texts)],
    )


class Pages(energon.DefaultTaskEncoder):
    cookers = [energon.Cooker(cook_page)]


class Interleaved(energon.DefaultTaskEncoder):
    cookers = [energon.Cooker(cook_interleaved)]


def samples_of(path, encoder, **options):
    dataset = energon.get_val_dataset(
        path,
        split_part="train",
        batch_size=None,
        worker_config=energon.WorkerConfig.default_worker_config(num_workers=2),
        task_encoder=encoder,
        **options,
    )
    return list(energon.get_loader(dataset))


pages = samples_of("pages", Pages(), part_filter=lambda part: part in ("bbox.json", "gt.txt", "jpg"))
assert len(pages) == 6
for page in pages:
    assert page.image.shape == (3, 8, 8)
    assert page.lines_boxes.shape == (2, 4)
    assert page.text == "\n".join(page.lines_text)

stories = samples_of("interleaved", Interleaved())
kinds = {type(item) for story in stories for item in story.sequence}
assert kinds == {str, torch.Tensor}
