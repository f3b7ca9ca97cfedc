# SPDX-License-Identifier: Apache-2.0
"""The public names and their modules. This list is the only one: type checkers read it, and lazy imports use it."""

from .dataset_folder import write_tars as write_tars
from .datasets import (
    cook_interleaved as cook_interleaved,
    make_blob_dataset as make_blob_dataset,
    make_captioning_dataset as make_captioning_dataset,
    make_classification_dataset as make_classification_dataset,
    make_crude_dataset as make_crude_dataset,
    make_image_dataset as make_image_dataset,
    make_interleaved_dataset as make_interleaved_dataset,
    make_multi_choice_vqa_dataset as make_multi_choice_vqa_dataset,
    make_ocr_dataset as make_ocr_dataset,
    make_similarity_interleaved_dataset as make_similarity_interleaved_dataset,
    make_text_dataset as make_text_dataset,
    make_vid_qa_dataset as make_vid_qa_dataset,
    make_vqa_dataset as make_vqa_dataset,
    make_vqa_ocr_dataset as make_vqa_ocr_dataset,
)
from .hook_check import check_hooks as check_hooks
from .kind_check import check_kind as check_kind
from .node_check import check_node as check_node
from .object_store_check import check_object_store as check_object_store
from .pool_check import check_pool as check_pool
from .sampler_check import check_sampler as check_sampler
from .source_check import check_source as check_source
from .store_check import check_store as check_store

__all__: list[str]
