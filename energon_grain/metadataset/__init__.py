# SPDX-License-Identifier: Apache-2.0
"""Metadatasets: YAML files that combine datasets, read into typed nodes and resolved into a tree of leaves.

A document (`MetadatasetV2`, `Metadataset`, `DatasetLoader`) holds what is written, one node class for each form.
`load_metadataset` resolves one split of it: paths are absolute, nested files put in place, inherited settings merged.
Nothing here opens a dataset.
"""
