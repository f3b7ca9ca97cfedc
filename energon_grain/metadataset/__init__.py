# SPDX-License-Identifier: Apache-2.0
"""Metadatasets: YAML files that combine datasets, parsed into typed nodes and resolved into a tree of leaves.

A document (`MetadatasetV2`, `Metadataset`, `DatasetLoader`) holds the written content, with one node class per form.
`load_metadataset` resolves one split: it makes paths absolute, inserts nested files, and merges inherited settings.
This package opens no dataset.
"""
