"""Hooks that set attributes which are no fields: what keeps them, and what goes by fields and leaves them out."""

import copy
import dataclasses
import pickle

import torch
from _usual import train, train_dataset, validation

import energon_grain_torch as energon


@energon.edataclass
class Scored(energon.TextSample):
    score: float = 0.0


@dataclasses.dataclass
class Plain(energon.TextSample):
    score: float = 0.0


@energon.edataclass
class Texts(energon.Batch):
    text: list


BASE = {"__key__": "a", "__restore_key__": ("a", 1)}
MADE = [
    energon.TextSample(**BASE, text="x"),
    energon.ImageSample(**BASE, image=None),
    energon.CaptioningSample(**BASE, image=None, caption="c"),
    energon.VQASample(**BASE, image=None, context="q"),
    energon.InterleavedSample(**BASE, sequence=["x"]),
    Scored(**BASE, text="x"),
    Texts(**BASE, text=["x"]),
    energon.Batch(**BASE),
]
for made in MADE:
    assert vars(made) == {}
    before, bare = repr(made), copy.copy(made)
    made.tokens = [1, 2]
    assert vars(made) == {"tokens": [1, 2]}
    assert made == bare
    assert repr(made) == before
    assert not hasattr(bare, "tokens")
    assert vars(copy.copy(made)) == vars(made)
    assert copy.copy(made).tokens is made.tokens
    deep = copy.deepcopy(made)
    assert deep == made
    assert deep.tokens == [1, 2]
    assert deep.tokens is not made.tokens
    for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
        loaded = pickle.loads(pickle.dumps(made, protocol))
        assert loaded == made
        assert vars(loaded) == vars(made)
    for by_fields in (dataclasses.replace(made), type(made).extend(made)):
        assert by_fields == made
        assert vars(by_fields) == {}
    assert "tokens" not in dataclasses.asdict(made)
    del made.tokens
    assert vars(made) == {}
    assert not hasattr(made, "tokens")

text = energon.TextSample(**BASE, text="x")
text.tokens = [1]
assert vars(energon.TextSample.derive_from(text, text="y")) == {}
assert vars(Scored.extend(text, score=1.0)) == {}
assert vars(energon.TextSample.from_joined(text, text)) == {}
assert not hasattr(Texts.from_samples([text, text]), "tokens")
plain = Plain(**BASE, text="x", score=1.0)
plain.tokens = [1]
assert vars(plain) == {"score": 1.0, "tokens": [1]}
assert vars(pickle.loads(pickle.dumps(plain))) == vars(plain)
crude = energon.CrudeSample(__key__="a", txt="x")
crude.tokens = [1]
assert vars(copy.deepcopy(crude)) == vars(pickle.loads(pickle.dumps(crude))) == {"tokens": [1]}
assert dict(crude) == {"__key__": "a", "txt": "x"}


@energon.stateless
def cook(crude):
    sample = energon.TextSample(**energon.basic_sample_keys(crude), text=crude["txt"])
    sample.letters = sorted(sample.text)
    return sample


class Counting(energon.DefaultTaskEncoder):
    """Each hook leaves what the next one needs in an attribute."""

    cookers = [energon.Cooker(cook)]

    @energon.stateless
    def encode_sample(self, sample):
        sample.count = torch.tensor(len(sample.letters))
        sample.letters = None
        return sample

    @energon.stateless
    def batch(self, samples):
        batch = super().batch(samples)
        assert not hasattr(batch, "count")
        assert not hasattr(batch, "letters")
        batch.counts = torch.stack([sample.count for sample in samples])
        return batch

    @energon.stateless
    def encode_batch(self, batch):
        batch.total = int(batch.counts.sum())
        return batch


class Replacing(Counting):
    """`dataclasses.replace` makes another sample, without the attributes."""

    @energon.stateless
    def encode_sample(self, sample):
        sample = super().encode_sample(sample)
        replaced = dataclasses.replace(sample, text=sample.text.upper())
        assert not hasattr(replaced, "count")
        replaced.count = sample.count
        return replaced


for encoder in (Counting, Replacing):
    for num_workers in (0, 2):
        for batch in validation("crude", 4, num_workers, task_encoder=encoder()):
            assert batch.counts.tolist() == [len(text) for text in batch.text]
            assert batch.total == sum(map(len, batch.text))


class Packing(Counting):
    @energon.stateless
    def select_samples_to_pack(self, samples):
        return [[sample for sample in samples if int(sample.count) % 2 == parity] for parity in (0, 1)]

    @energon.stateless
    def pack_selected_samples(self, samples):
        pack = Texts.from_samples(samples)
        pack.counts = [int(sample.count) for sample in samples]
        return pack

    @energon.stateless
    def batch(self, samples):
        batch = samples[0]
        assert batch.counts == [len(text) for text in batch.text]
        batch.counts = torch.tensor(batch.counts)
        return batch


for num_workers in (0, 2):
    for _, batch in zip(range(6), train("crude", 1, num_workers, packing_buffer_size=6, task_encoder=Packing())):
        assert batch.total == sum(map(len, batch.text))


class Single(Counting):
    @energon.stateless
    def encode_batch(self, batch):
        raise AssertionError("samples are not batched")


for num_workers in (0, 2):
    dataset = train_dataset("crude", None, num_workers, task_encoder=Single())
    loader = energon.get_savable_loader(dataset)
    for _, sample in zip(range(8), loader):
        assert int(sample.count) == len(sample.text)
        assert sample.letters is None
        if num_workers == 0:
            again = loader.restore_sample(sample.__restore_key__)
            assert int(again.count) == len(again.text)
            assert again.__key__ == sample.__key__
