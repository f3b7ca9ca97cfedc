"""LoaderTruth: measures what data loaders promise (see docs/loader-truth.md)."""
